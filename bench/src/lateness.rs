//! How late tasks come: receipt minus due time, by waiting polls and by webhooks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use bench::client::{Caller, now_ms};
use bench::runner::Runner;
use bench::table::{Table, percentile};

/// Waiting polls at once.
const CONSUMERS: usize = 8;
/// The first task is due so long after adding began, in milliseconds.
const LEAD_MS: i64 = 5_000;
/// Tasks whose consumer dies with them.
const LEASES: usize = 50;
/// Their leases, long enough for all to be taken before the first ends.
const LEASE_SECONDS: usize = 10;
/// So that the leases do not end all at once.
const BETWEEN_LEASES: Duration = Duration::from_millis(100);
/// Signs the webhooks; a key for measuring is no secret.
const SECRET: &str = "whsec_YmVuY2htYXJrIHNpZ25pbmcga2V5IDAxMjM0NTY3ODk=";

const COLUMNS: [&str; 6] = ["due", "p50 ms", "p99 ms", "max ms", "early", "received"];

type Receipts = Arc<Mutex<Vec<f64>>>;

/// Due times of `tasks` tasks over `spread_seconds`, 0 for one instant.
fn plan(tasks: usize, spread_seconds: u64) -> Vec<i64> {
    let base = now_ms() as i64 + LEAD_MS;
    let spread_ms = i64::try_from(spread_seconds).expect("a small number") * 1_000;
    (0..tasks as i64).map(|task| base + spread_ms * task / tasks as i64).collect()
}

async fn add(caller: &Caller, due_times: &[i64], task: impl Fn(i64) -> Value) {
    for chunk in due_times.chunks(100) {
        caller.post("add", &Value::Array(chunk.iter().map(|due| task(*due)).collect())).await;
    }
}

async fn all(receipts: &Receipts, due_times: &[i64]) -> Vec<f64> {
    let last = due_times.last().copied().unwrap_or_default() as f64;
    while receipts.lock().expect("not poisoned").len() < due_times.len() && now_ms() < last + 30_000.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut lateness = receipts.lock().expect("not poisoned").clone();
    lateness.sort_by(f64::total_cmp);
    lateness
}

fn told(due: String, lateness: &[f64], wanted: usize) -> Vec<String> {
    let early = lateness.iter().filter(|ms| **ms < 0.0).count();
    let at = |fraction| format!("{:.1}", percentile(lateness, fraction));
    vec![due, at(0.5), at(0.99), at(1.0), early.to_string(), format!("{} of {wanted}", lateness.len())]
}

fn cases(tasks: usize, spread_seconds: u64) -> [(String, u64); 2] {
    [(format!("{tasks} over {spread_seconds} s"), spread_seconds), (format!("{tasks} in one instant"), 0)]
}

/// By waiting polls: of tasks that become due, and of tasks that a dead consumer had leased.
pub async fn of_polls(tasks: usize, spread_seconds: u64) -> Table {
    let mut table = Table::new(format!("Lateness of {CONSUMERS} waiting polls"), &COLUMNS);
    for (name, spread_seconds) in cases(tasks, spread_seconds) {
        let runner = Runner::start(&[]);
        let consumers = consume(runner.url(), |task| task["executeTime"].as_f64().expect("a time"));
        let due_times = plan(tasks, spread_seconds);
        add(&Caller::connect(runner.url()).await, &due_times, |due| json!({"taskType": "bench", "executeTime": due}))
            .await;
        table.row(told(name, &all(&consumers.receipts, &due_times).await, tasks));
    }
    let runner = Runner::start(&[]);
    let caller = Caller::connect(runner.url()).await;
    let mut ends = HashMap::new();
    add(&caller, &[now_ms() as i64; LEASES], |due| json!({"taskType": "bench", "executeTime": due})).await;
    for _ in 0..LEASES {
        let taken = caller.post("poll/bench/0", &json!({"leaseSeconds": LEASE_SECONDS, "waitSeconds": 1})).await;
        ends.insert(taken[0]["taskId"].to_string(), taken[0]["leaseUntil"].as_i64().expect("a time"));
        tokio::time::sleep(BETWEEN_LEASES).await;
    }
    let mut due_times: Vec<i64> = ends.values().copied().collect();
    due_times.sort_unstable();
    let consumers = consume(runner.url(), move |task| ends[&task["taskId"].to_string()] as f64);
    let name = format!("{LEASES} leases of {LEASE_SECONDS} s that end");
    table.row(told(name, &all(&consumers.receipts, &due_times).await, LEASES));
    table
}

/// Consumers that poll, wait and acknowledge; they end with this value.
struct Consumers {
    receipts: Receipts,
    _running: JoinSet<()>,
}

/// Starts them; what they receive is late by the time since `expected`, in milliseconds since 1970.
fn consume(url: &str, expected: impl Fn(&Value) -> f64 + Send + Sync + 'static) -> Consumers {
    let (receipts, expected) = (Receipts::default(), Arc::new(expected));
    let mut running = JoinSet::new();
    for _ in 0..CONSUMERS {
        let (url, receipts, expected) = (url.to_owned(), receipts.clone(), expected.clone());
        running.spawn(async move {
            let caller = Caller::connect(&url).await;
            loop {
                let polled = caller.post("poll/bench/0", &json!({"max": 10, "waitSeconds": 20})).await;
                let received = now_ms();
                let polled = polled.as_array().expect("an array");
                receipts.lock().expect("not poisoned").extend(polled.iter().map(|task| received - expected(task)));
                if polled.is_empty() {
                    continue;
                }
                let settled = |t: &Value| json!({"taskId": t["taskId"], "leaseToken": t["leaseToken"]});
                caller.post("ack", &Value::Array(polled.iter().map(settled).collect())).await;
            }
        });
    }
    Consumers { receipts, _running: running }
}

/// By webhooks to a receiver in this process.
pub async fn of_push(tasks: usize, spread_seconds: u64) -> Table {
    let mut table = Table::new("Lateness of webhooks", &COLUMNS);
    for (name, spread_seconds) in cases(tasks, spread_seconds) {
        let receipts = Receipts::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let hook = format!("http://{}/", listener.local_addr().expect("an address"));
        let routes = Router::new().fallback(receive).with_state(receipts.clone());
        let receiver = tokio::spawn(async move { axum::serve(listener, routes).await });
        let runner = Runner::start(&[
            ("WEBHOOK_ALLOWED_HOSTS", "127.0.0.1"),
            ("WEBHOOK_ALLOW_HTTP", "true"),
            ("WEBHOOK_ALLOW_PRIVATE", "true"),
            ("WEBHOOK_SECRET", SECRET),
        ]);
        let due_times = plan(tasks, spread_seconds);
        let task = |due: i64| {
            let parameters = json!({"url": hook, "headers": {"x-due": due.to_string()}, "body": {}});
            json!({"taskType": "bench", "executeTime": due, "handler": "webhook", "parameters": parameters})
        };
        add(&Caller::connect(runner.url()).await, &due_times, task).await;
        let lateness = all(&receipts, &due_times).await;
        receiver.abort();
        table.row(told(name, &lateness, tasks));
    }
    table
}

async fn receive(State(receipts): State<Receipts>, headers: HeaderMap) -> StatusCode {
    let received = now_ms();
    let due: f64 = headers["x-due"].to_str().expect("a text").parse().expect("a time");
    receipts.lock().expect("not poisoned").push(received - due);
    StatusCode::OK
}
