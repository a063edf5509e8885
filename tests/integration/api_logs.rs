//! Logs tell tasks and outcomes, and never parameters, error texts or tokens.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Once;

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::{World, call};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::api_common::due;

const SECRET: &str = "s3cr3t-parameters";
/// Our crates: of these every line counts, of others those of the level that the functions log at.
const OURS: [&str; 9] =
    ["punctual_core", "add", "cancel", "poll", "settle", "inspect", "refresh", "recover", "dispatch"];

thread_local! {
    /// What this thread has logged since [`capture`]: a test's runtime has one thread, and other tests have theirs.
    static CAPTURED: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

struct Captured;

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        CAPTURED.with_borrow_mut(|captured| {
            if let Some(captured) = captured {
                captured.extend(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Captures what is logged on this thread from now on, spans too.
fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = format!("info,{}", OURS.map(|target| format!("{target}=trace")).join(","));
        let filter: Targets = filter.parse().expect("a filter");
        let lines = fmt::layer().json().with_writer(|| Captured).with_span_events(FmtSpan::FULL);
        registry().with(lines).with(filter).init();
    });
    CAPTURED.set(Some(Vec::new()));
}

fn captured() -> String {
    String::from_utf8(CAPTURED.take().expect("captured")).expect("UTF-8")
}

#[tokio::test]
async fn no_log_line_has_parameters_or_tokens_and_each_request_has_one() {
    capture();
    let mut world = World::new().await;
    let mut tokens: Vec<String> = Vec::new();
    let mut note = |polled: &[Value]| {
        tokens.extend(polled.iter().map(|task| task["leaseToken"].as_str().expect("a token").to_owned()));
    };
    let task =
        |id: &str| json!({"taskId": id, "taskType": "t", "delay": 0, "maxAttempts": 2, "parameters": {SECRET: SECRET}});
    world.add(json!([task("a"), task("b"), task("c"), task("d"), task("e")])).await;
    world.call("POST", "/api/v1/task/add", json!({"taskType": "t", "delay": 0, "params": SECRET})).await;
    world.call("POST", "/api/v1/task/add", json!({"taskType": "t", "parameters": SECRET})).await;
    world
        .call("POST", "/api/v1/task/add", json!({"taskId": "a", "taskType": "t", "delay": 0, "parameters": SECRET}))
        .await;
    world.call_raw("POST", "/api/v1/task/add", &format!("{{\"parameters\":\"{SECRET}\",")).await;
    let polled = world.poll("t/0", 4).await;
    note(&polled);
    world.settle("ack", &polled[0], json!({})).await.data();
    world.settle("nack", &polled[1], json!({"error": SECRET, "delay": 0})).await.data();
    world.settle("nack", &polled[2], json!({"error": SECRET, "permanent": true})).await.data();
    world.settle("extend", &polled[3], json!({"leaseSeconds": 5})).await.data();
    assert_eq!(world.settle("nack", &polled[0], json!({})).await.error(), (409, "lease_lost"));
    world.settle("ack", &polled[1], json!({"oops": 1})).await;
    let wrong = json!([{"taskId": "d", "leaseToken": format!("{SECRET}-token")}]);
    world.call("POST", "/api/v1/task/ack", wrong).await.data();
    world.get("/api/v1/task/poll/t/0").await.data();
    world.get("/api/v1/task/a").await.data();
    world.get("/api/v1/task").await.data();
    world.get("/api/v1/queues").await.data();
    world.get("/health").await.data();
    world.call("POST", "/api/v1/task/redrive/c", json!({})).await.data();
    world.call("POST", "/api/v1/task/reschedule/c", json!({"delay": 5})).await.data();
    world.call("DELETE", "/api/v1/task/cancel/d", Value::Null).await.data();
    world.advance(60_000);
    world.refresh().await;
    world.recover().await;
    note(&world.poll("t", 10).await);
    world.redis.stop();
    world.add(task("f")).await;
    note(&world.poll("t/0", 10).await);
    let closed = connect_to("http://127.0.0.1:9").await;
    let clock = Clock::Manual(world.clock.clone());
    let service = Service::new(closed, clock, world.service.config.clone()).expect("valid");
    let unreached = call(&service, "POST", "/api/v1/task/add", task("g")).await;
    assert_eq!(unreached.error(), (503, "unavailable"));
    let lost = call(&service, "POST", "/api/v1/task/ack/a", json!({"leaseToken": tokens[0]})).await;
    assert_eq!(lost.error(), (503, "unavailable"));

    let log = captured();
    assert!(!log.contains(SECRET), "{}", log.lines().find(|line| line.contains(SECRET)).unwrap_or_default());
    assert!(tokens.len() > 5, "{tokens:?}");
    for token in tokens {
        assert!(!log.contains(&token), "{}", log.lines().find(|line| line.contains(&token)).unwrap_or_default());
    }
    assert!(log.contains("Redis could not be told"), "the log has warnings");
    assert!(log.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "each line is JSON");
}

#[tokio::test]
async fn a_request_is_one_line_with_its_task_queue_outcome_and_duration() {
    let world = World::new().await;
    capture();
    world.add(due("a")).await;
    let polled = world.poll("t/0", 1).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    world.get("/api/v1/task/nobody").await;
    let log = captured();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["fields"]["message"] == "request").collect();
    assert_eq!(requests.len(), 4, "{log}");
    for (line, (function, method, task, queue, outcome, status)) in requests.into_iter().zip([
        ("add", "POST", json!("a"), Value::Null, "ok", 200),
        ("poll", "POST", Value::Null, json!("t_0"), "ok", 200),
        ("settle", "POST", json!("a"), Value::Null, "ok", 200),
        ("inspect", "GET", json!("nobody"), Value::Null, "not_found", 404),
    ]) {
        let (span, fields) = (&line["span"], &line["fields"]);
        assert_eq!((&span["function"], &span["method"]), (&json!(function), &json!(method)), "{line}");
        assert_eq!((&span["task_id"], &span["queue"]), (&task, &queue), "{line}");
        assert_eq!((&fields["outcome"], &fields["status"]), (&json!(outcome), &json!(status)), "{line}");
        assert!(fields["duration_ms"].is_number(), "{line}");
    }
}
