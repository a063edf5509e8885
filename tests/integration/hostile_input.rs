//! Input that means harm, or nothing: no panic, no 5xx for a caller's fault, nothing stored by a refused call.
//!
//! `hostile_input/` keeps inputs that are tried before any random one: `events/` whole events, `bodies/` bodies for
//! every route, `templates/` templates.

use std::cell::RefCell;
use std::path::PathBuf;

use local::template::{TEXT, Template};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestRunner};
use punctual_core::api::{NewTask, Request, parse_addition};
use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::{World, call_event, event};

/// Random inputs of each pure parser.
const PURE_CASES: u32 = 3_000;
/// Random requests to the whole functions.
const REQUESTS: u32 = 1_500;

const NEW: NewTask = NewTask { now: Timestamp::from_ms(1_800_000_000_000), retention_ms: 604_800_000 };

fn config(cases: u32) -> Config {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/hostile_input.txt");
    Config { cases, failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))), ..Config::default() }
}

/// The kept inputs of one kind, with their names.
fn corpus(kind: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/integration/hostile_input")).join(kind);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<(String, String)> = entries
        .map(|entry| {
            let path = entry.expect("an entry").path();
            // What is no UTF-8 cannot come: Lambda hands over text.
            let text = String::from_utf8_lossy(&std::fs::read(&path).expect("readable")).into_owned();
            (path.display().to_string(), text)
        })
        .collect();
    inputs.sort();
    assert!(!inputs.is_empty(), "{kind}");
    inputs
}

/// Text that is nearly something: pieces of the language, put together at random.
fn nearly(pieces: &'static [&'static str]) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        8 => prop::sample::select(pieces).prop_map(str::to_owned),
        1 => any::<String>(),
        1 => any::<i64>().prop_map(|n| n.to_string()),
        1 => any::<f64>().prop_map(|n| n.to_string()),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

/// A good text with a piece cut out, doubled, or another put in.
fn spoiled(text: String) -> impl Strategy<Value = String> {
    let length = text.chars().count().max(1);
    (Just(text), 0..length, 0..40usize, prop_oneof![Just(String::new()), any::<String>(), Just("null".to_owned())])
        .prop_map(|(text, at, cut, put)| {
            let start: String = text.chars().take(at).collect();
            let rest: String = text.chars().skip(at + cut).collect();
            format!("{start}{put}{rest}")
        })
}

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "\"a\"",
    "null",
    "true",
    "1e400",
    "-0",
    "\\u0000",
    "\\ud800",
    "\u{0}",
    "é",
    "\"taskId\":",
    "\"taskType\":",
    "\"delay\":",
    "\"executeTime\":",
    "\"priority\":",
    "\"parameters\":",
    "\"backoff\":",
    "{\"kind\":\"list\",\"delays\":[",
    "\"P1D\"",
    "\"PT9999999999999999999S\"",
    "9223372036854775808",
    "\"9999-12-31T23:59:60Z\"",
    "\"leaseToken\":",
    "\"max\":",
    "\"waitSeconds\":0",
    "\"max\":101",
];
const PATHS: &[&str] = &[
    "/",
    "/api/v1",
    "/task",
    "/add",
    "/cancel",
    "/poll",
    "/ack",
    "/nack",
    "/extend",
    "/reschedule",
    "/redrive",
    "/queues",
    "/health",
    "/t",
    "/0",
    "/256",
    "/-1",
    "/..",
    "/.",
    "//",
    "/%2F",
    "/%00",
    "/%ff",
    "%",
    "/a%20b",
    "?",
    "&",
    "=",
    "status=",
    "dead",
    "limit=",
    "0",
    "cursor=",
    "priority=",
    "#",
    "/prod",
    "/é",
];

/// The routes, with parameters that fit.
const ROUTES: &[&str] = &[
    "/api/v1/task/add",
    "/api/v1/task/cancel/a",
    "/api/v1/task/poll/t/0",
    "/api/v1/task/poll/t",
    "/api/v1/task/ack/a",
    "/api/v1/task/ack",
    "/api/v1/task/nack/a",
    "/api/v1/task/extend/a",
    "/api/v1/task/reschedule/a",
    "/api/v1/task/redrive/a",
    "/api/v1/task/redrive",
    "/api/v1/task/a",
    "/api/v1/task?status=dead",
    "/api/v1/queues",
    "/health",
];

/// A value of JSON, of any shape.
fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(&["t", "1", "P1D", "a/b", "2030-01-01T00:00:00Z", "\u{0}"][..]).prop_map(Value::from),
        (0..300i64).prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let key = prop::sample::select(&["kind", "delay", "delays", "initial", "factor", "max", "jitter", "x"][..]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(key, inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())),
        ]
    })
}

/// A body with fields of the API that hold anything.
fn bodies() -> impl Strategy<Value = String> {
    const NAMES: &[&str] = &[
        "taskId",
        "taskType",
        "priority",
        "executeTime",
        "delay",
        "parameters",
        "handler",
        "maxAttempts",
        "backoff",
        "retention",
        "timeout",
        "leaseToken",
        "error",
        "permanent",
        "leaseSeconds",
        "max",
        "limit",
        "unknown",
    ];
    let object = prop::collection::hash_map(prop::sample::select(NAMES), values(), 0..6).prop_map(|map| {
        let mut body = Value::Object(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect());
        // Else almost nothing would get beyond what is required.
        if body.get("taskType").is_none() {
            body["taskType"] = json!("t");
        }
        body.to_string()
    });
    prop_oneof![4 => object, 2 => nearly(JSON), 1 => any::<String>(), 1 => values().prop_map(|v| v.to_string())]
}

fn paths() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(ROUTES).prop_map(str::to_owned),
        1 => prop::sample::select(ROUTES).prop_flat_map(|route| spoiled(route.to_owned())),
        1 => nearly(PATHS),
    ]
}

fn method() -> impl Strategy<Value = String> {
    prop_oneof![
        6 => prop::sample::select(&["GET", "POST", "DELETE", "PUT", "get"][..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

/// Tasks in a template's text are untouched: only whether it is read at all.
fn parse_event(text: &str) -> Result<(), String> {
    match Request::from_event(text) {
        Ok(request) => drop(request.route()),
        Err(error) if error.status() < 500 => {}
        Err(error) => return Err(format!("{} {error}", error.status())),
    }
    Ok(())
}

fn parse_task(text: &str) -> Result<(), String> {
    match parse_addition(text, NEW) {
        Err(error) if error.status() >= 500 => Err(format!("{} {error}", error.status())),
        Ok(addition) if addition.execute_time.as_ms() < 0 => Err("due before the epoch".to_owned()),
        _ => Ok(()),
    }
}

fn run<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(&S::Value) -> Result<(), String>) {
    let result = TestRunner::new(config(cases)).run(strategy, |value| test(&value).map_err(TestCaseError::fail));
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn no_event_is_more_than_a_bad_request() {
    for (name, text) in corpus("events") {
        parse_event(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
    let good = event("POST", "/api/v1/task/add?x=%20", r#"{"taskType":"t","delay":0}"#);
    let texts = prop_oneof![any::<String>(), nearly(JSON), spoiled(good)];
    run(PURE_CASES, &texts, |text| parse_event(text));
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    run(PURE_CASES, &bytes, |bytes| parse_event(&String::from_utf8_lossy(bytes)));
}

#[test]
fn no_task_object_is_more_than_a_bad_request() {
    for (name, text) in corpus("bodies") {
        parse_task(&text).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
    }
    run(PURE_CASES, &bodies(), |text| parse_task(text));
    let good = json!({"taskId": "a", "taskType": 7, "priority": 3, "delay": "PT1M", "parameters": {"a": [1.0]},
        "backoff": {"kind": "exponential", "initial": 5, "factor": 2.5, "max": 10, "jitter": 0.5}, "retention": 0});
    run(PURE_CASES, &spoiled(good.to_string()), |text| parse_task(text));
}

#[test]
fn a_broken_template_is_read_or_refused() {
    let read = |text: &String| {
        let _ = Template::parse(text);
        Ok(())
    };
    for (_, text) in corpus("templates") {
        read(&text).expect("no panic");
    }
    run(60, &spoiled(TEXT.to_owned()), read);
    const YAML: &[&str] = &[
        "Resources:\n",
        "  A:\n",
        "    Type: AWS::Serverless::Function\n",
        "    Properties:\n",
        "      Events:\n",
        "    Type: AWS::DynamoDB::Table\n",
        "      KeySchema: ",
        "[",
        "]",
        "{",
        "}",
        "!Ref A",
        "!Sub ",
        "- ",
        ": ",
        "&a ",
        "*a",
        "|\n",
        "'",
        "\"",
        "\t",
        "---\n",
        "<<: *a\n",
    ];
    run(500, &nearly(YAML), read);
    run(500, &any::<String>(), read);
}

/// Where requests are sent: empty stores, made anew when one has stored something.
struct Target {
    runtime: tokio::runtime::Runtime,
    world: Option<World>,
}

impl Target {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self { runtime: runtime.expect("a runtime"), world: None }
    }

    /// Sends one request to the function of its path; a refused one stores nothing.
    fn send(&mut self, method: &str, path: &str, body: &str) -> Result<(), String> {
        let world = self.world.take();
        let (result, world) = self.runtime.block_on(async {
            let world = match world {
                Some(world) => world,
                None => World::new().await,
            };
            let reply = call_event(&world.service, path, &event(method, path, body)).await;
            if reply.status >= 500 || reply.body["code"] != reply.status {
                return (Err(format!("{} {}", reply.status, reply.body)), None);
            }
            let items: i64 =
                world.database.table_stats().expect("statistics").iter().map(|table| table.item_count).sum();
            let of_batch = |item: &Value| item["created"] == true;
            let created = reply.body["created"] == true
                || reply.body["data"].as_array().is_some_and(|items| items.iter().any(of_batch));
            // All that Redis may have learned from a call that added nothing is nothing.
            let stored = items > 0 || !world.redis.keys().is_empty();
            match (created, stored) {
                (true, true) => (Ok(()), None),
                (false, false) => (Ok(()), Some(world)),
                _ => (Err(format!("created: {created}, stored: {stored}, by {}", reply.body)), None),
            }
        });
        self.world = world;
        result
    }
}

#[test]
fn no_request_is_more_than_a_bad_request_and_a_refused_one_stores_nothing() {
    let target = RefCell::new(Target::new());
    for (name, body) in corpus("bodies") {
        for method in ["POST", "GET"] {
            for path in ROUTES {
                let sent = target.borrow_mut().send(method, path, &body);
                sent.unwrap_or_else(|wrong| panic!("{name} {method} {path}: {wrong}"));
            }
        }
    }
    run(REQUESTS, &(method(), paths(), bodies()), |(method, path, body)| target.borrow_mut().send(method, path, body));
}

#[test]
fn members_of_redis_that_are_no_ids_are_dropped_and_harm_nobody() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let world = runtime.block_on(World::new());
    let member = prop::collection::vec(any::<u8>(), 0..40);
    let count = std::cell::Cell::new(0);
    run(150, &prop::collection::vec((0..4usize, member), 1..6), |members| {
        count.set(count.get() + 1);
        let queue = format!("r{}", count.get());
        let mut connection = world.redis.connection();
        for (place, member) in members {
            let sent = match place {
                0 => redis::cmd("ZADD").arg(format!("future:{{{queue}_0.0}}")).arg(5).arg(member).exec(&mut connection),
                1 => redis::cmd("RPUSH").arg(format!("topic:{{{queue}_0.0}}")).arg(member).exec(&mut connection),
                2 => redis::cmd("ZADD").arg(format!("lease:{{{queue}_0.0}}")).arg(5).arg(member).exec(&mut connection),
                _ => redis::cmd("SADD").arg("partitions").arg(member).exec(&mut connection),
            };
            sent.map_err(|error| error.to_string())?;
        }
        runtime.block_on(async {
            world.add(json!({"taskId": queue, "taskType": queue, "delay": 0})).await;
            world.refresh().await;
            world.recover().await;
            let queues = world.get("/api/v1/queues").await;
            let polled = world.poll(&format!("{queue}/0"), 10).await;
            if queues.status != 200 || tests::ids(&polled) != [queue.clone()] {
                return Err(format!("{} {polled:?}", queues.body));
            }
            world.settle("ack", &polled[0], json!({})).await.data();
            Ok(())
        })
    });
}
