//! The webhook handler against a real receiver, verified by an independent implementation of Standard Webhooks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use punctual_core::config::{DispatchConfig, Environment};
use punctual_core::handler::Registry;
use punctual_core::service::DispatchReport;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tests::World;

const PASS: DispatchConfig = DispatchConfig { shift: Duration::ZERO, concurrency: 16 };
const OLD: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const NEW: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

/// A status, and a header with its value.
type Response = (u16, &'static str, &'static str);

/// What a receiver was sent, and what it answers, the last answer again and again.
#[derive(Clone, Default)]
struct Receiver {
    received: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    answers: Arc<Mutex<Vec<Response>>>,
}

impl Receiver {
    async fn start(answers: &[Response]) -> (Self, String) {
        let receiver = Self::default();
        *receiver.answers.lock().expect("not poisoned") = answers.to_vec();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
        let routes = Router::new().fallback(receive).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        (receiver, url)
    }

    fn received(&self) -> Vec<(HeaderMap, String)> {
        self.received.lock().expect("not poisoned").clone()
    }
}

async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let body = String::from_utf8(body.to_vec()).expect("UTF-8");
    receiver.received.lock().expect("not poisoned").push((headers, body));
    let mut answers = receiver.answers.lock().expect("not poisoned");
    let (status, name, value) = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
    (StatusCode::from_u16(status).expect("a status"), [(name, value)])
}

async fn registry(more: &[(&str, &str)]) -> Registry {
    let local = [
        ("WEBHOOK_ALLOWED_HOSTS", "*"),
        ("WEBHOOK_SECRET", OLD),
        ("WEBHOOK_ALLOW_HTTP", "true"),
        ("WEBHOOK_ALLOW_PRIVATE", "true"),
        ("WEBHOOK_TIMEOUT_MS", "2000"),
    ];
    let lookup = |name: &str| {
        let found = more.iter().chain(&local).find(|(n, _)| *n == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    dispatch::registry(&Environment(&lookup)).await.expect("valid")
}

async fn pass(world: &World, registry: &Registry) -> DispatchReport {
    dispatch::handle(&world.service, registry, &PASS).await.expect("a pass")
}

/// Whether one of the signatures is what the `standardwebhooks` crate makes of the message. Its own check also wants
/// the timestamp to be near real time, which a manual clock is not.
fn is_signed(secret: &str, headers: &HeaderMap, body: &str) -> bool {
    let text = |name: &str| headers[name].to_str().expect("a text");
    let timestamp = text("webhook-timestamp").parse().expect("seconds");
    let signer = Webhook::new(secret).expect("a key");
    let signature = signer.sign(text("webhook-id"), timestamp, body.as_bytes()).expect("a signature");
    text("webhook-signature").split(' ').any(|candidate| candidate == signature)
}

fn hook(id: &str, url: &str) -> Value {
    json!({"taskId": id, "taskType": "w", "delay": 0, "handler": "webhook", "maxAttempts": 3,
        "backoff": {"kind": "fixed", "delay": 1000},
        "parameters": {"url": url, "headers": {"X-Shop": "7"}, "body": {"order": 7}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_arrives_unchanged_and_signed_the_same_id_on_each_attempt() {
    let world = World::new().await;
    let (receiver, url) = Receiver::start(&[(500, "x", ""), (204, "x", "")]).await;
    let body = r#"{"taskId":"a","taskType":"w","delay":0,"handler":"webhook","backoff":{"kind":"fixed","delay":1000},
        "parameters":{"url":"URL","headers":{"X-Shop":"7"},"body":{"n": 130775545883395173, "e":[ ],"s":"é\u0000"}}}"#;
    let reply = world.call_raw("POST", "/api/v1/task/add", &body.replace("URL", &url)).await;
    assert_eq!(reply.data(), "a");
    let registry = registry(&[]).await;
    assert_eq!(pass(&world, &registry).await.failed, 1);
    world.advance(1_000);
    assert_eq!(pass(&world, &registry).await.succeeded, 1);
    let received = receiver.received();
    assert_eq!(received.len(), 2);
    for (attempt, (headers, body)) in received.iter().enumerate() {
        assert_eq!(body, r#"{"n": 130775545883395173, "e":[ ],"s":"é\u0000"}"#);
        assert_eq!(headers["webhook-id"], "a");
        assert_eq!(headers["webhook-attempt"], (attempt + 1).to_string().as_str());
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-shop"], "7");
        assert!(is_signed(OLD, headers, body));
        assert!(!is_signed(NEW, headers, body));
        assert!(!is_signed(OLD, headers, "{}"));
    }
    assert_eq!(world.status("a").await, "succeeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_secrets_sign_while_one_is_being_replaced() {
    let world = World::new().await;
    let (receiver, url) = Receiver::start(&[(200, "x", "")]).await;
    world.add(hook("a", &url)).await;
    pass(&world, &registry(&[("WEBHOOK_SECRET", &format!("{NEW} {OLD}"))]).await).await;
    let (headers, body) = receiver.received().remove(0);
    for secret in [OLD, NEW] {
        assert!(is_signed(secret, &headers, &body), "{secret}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receivers_answer_decides_what_becomes_of_the_task() {
    for (status, name, value, wanted, wait_ms) in [
        (200, "x", "", "succeeded", 0),
        (299, "x", "", "succeeded", 0),
        (301, "location", "http://127.0.0.1:1/", "scheduled", 1_000),
        (400, "x", "", "dead", 0),
        (404, "x", "", "dead", 0),
        (410, "x", "", "dead", 0),
        (408, "x", "", "scheduled", 1_000),
        (425, "x", "", "scheduled", 1_000),
        (429, "retry-after", "120", "scheduled", 120_000),
        (500, "x", "", "scheduled", 1_000),
        (503, "retry-after", "99999999", "scheduled", 86_400_000),
        (503, "retry-after", "nonsense", "scheduled", 1_000),
    ] {
        let world = World::new().await;
        let (receiver, url) = Receiver::start(&[(status, name, value)]).await;
        world.add(hook("a", &url)).await;
        pass(&world, &registry(&[]).await).await;
        let task = world.task("a").await;
        assert_eq!(task["status"], wanted, "{status} {value}");
        if wanted == "scheduled" {
            assert_eq!(task["executeTime"], world.now() + wait_ms, "{status} {value}");
        }
        assert_eq!(receiver.received().len(), 1, "redirects are not followed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_or_silent_is_tried_again_and_the_url_stays_out_of_the_reason() {
    let world = World::new().await;
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let away = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = |listener: &tokio::net::TcpListener| {
        format!("http://{}/hook?secret=1", listener.local_addr().expect("an address"))
    };
    world.add(hook("silent", &url(&silent))).await;
    world.add(hook("away", &url(&away))).await;
    drop(away);
    let report = pass(&world, &registry(&[("WEBHOOK_TIMEOUT_MS", "200")]).await).await;
    assert_eq!(report.failed, 2);
    for id in ["silent", "away"] {
        let task = world.task(id).await;
        assert_eq!(task["status"], "scheduled");
        let message = task["lastError"]["message"].as_str().expect("a reason");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_plain_http_and_other_hosts_are_refused_for_good() {
    let (receiver, url) = Receiver::start(&[(200, "x", "")]).await;
    let local_name = url.replace("127.0.0.1", "localhost");
    for (task_url, setting, word) in [
        (&url, ("WEBHOOK_ALLOW_PRIVATE", "false"), "dead"),
        (&url, ("WEBHOOK_ALLOW_HTTP", "false"), "dead"),
        (&url, ("WEBHOOK_ALLOWED_HOSTS", "example.com"), "dead"),
        // The name is allowed, but its address is not: it might be another one next time.
        (&local_name, ("WEBHOOK_ALLOW_PRIVATE", "false"), "scheduled"),
    ] {
        let world = World::new().await;
        world.add(hook("a", task_url)).await;
        pass(&world, &registry(&[setting]).await).await;
        assert_eq!(world.status("a").await, word, "{task_url} {setting:?}");
    }
    assert!(receiver.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_of_the_service_cannot_be_forged() {
    let (receiver, url) = Receiver::start(&[(200, "x", "")]).await;
    for header in ["webhook-id", "Webhook-Signature", "Host", "Content-Length", "bad name", ""] {
        let world = World::new().await;
        let mut task = hook("a", &url);
        task["parameters"]["headers"] = json!({header: "x"});
        world.add(task).await;
        pass(&world, &registry(&[]).await).await;
        assert_eq!(world.status("a").await, "dead", "{header}");
    }
    assert!(receiver.received().is_empty());
}
