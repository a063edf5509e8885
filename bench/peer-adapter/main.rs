//! Answers the commands of a runner of delayed-task benchmarks, so that punctual is measured beside other systems.
//!
//! One more argument is the command; the rest comes by `PEER_*` variables; answers are JSON lines on stdout.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use bench::client::{Caller, now_ms};
use serde_json::{Value, json};
use tokio::task::{JoinSet, LocalSet};

const HOUR_MS: i64 = 3_600_000;
/// Size of the parameters, in bytes of JSON.
const BODY_BYTES: usize = 100;
/// Room for duplicates after the last task.
const LINGER: Duration = Duration::from_millis(500);
/// The least pause between two looks at what came.
const LOOK: Duration = Duration::from_millis(2);

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}

fn number(name: &str) -> usize {
    variable(name).parse().unwrap_or_else(|_| panic!("{name} is not a number"))
}

fn tell(event: &Value) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{event}").and_then(|()| out.flush()).expect("stdout takes it");
}

async fn connect() -> Caller {
    Caller::connect(&format!("http://127.0.0.1:{}", variable("PEER_PORT"))).await
}

fn task(id: usize, due_ms: i64) -> Value {
    let head = format!("{{\"id\":{id},\"due\":{due_ms},\"p\":\"\"}}");
    let padding = "x".repeat(BODY_BYTES.saturating_sub(head.len()));
    json!({"taskType": "bench", "executeTime": due_ms, "parameters": {"id": id, "due": due_ms, "p": padding}})
}

/// Adds the tasks of `due_times` in batches; returns when it began and ended.
async fn produce(due_times: Rc<Vec<i64>>, batch: usize) -> (f64, f64) {
    let producers = number("PEER_CONC");
    let mut callers = Vec::new();
    for _ in 0..producers {
        callers.push(connect().await);
    }
    let start = now_ms();
    let mut running = JoinSet::new();
    for (first, caller) in callers.into_iter().enumerate() {
        let due_times = due_times.clone();
        running.spawn_local(async move {
            let ids: Vec<usize> = (first..due_times.len()).step_by(producers).collect();
            for chunk in ids.chunks(batch) {
                let mut tasks: Vec<Value> = chunk.iter().map(|id| task(*id, due_times[*id])).collect();
                let body = if batch == 1 { tasks.remove(0) } else { Value::Array(tasks) };
                caller.post("add", &body).await;
            }
        });
    }
    running.join_all().await;
    (start, now_ms())
}

/// What came.
#[derive(Default)]
struct Receipts {
    rows: RefCell<Vec<(usize, i64, f64)>>,
    seen: RefCell<std::collections::HashSet<usize>>,
    stop: Cell<bool>,
}

impl Receipts {
    fn distinct(&self) -> usize {
        self.seen.borrow().len()
    }
}

async fn consume(most: usize) -> (Rc<Receipts>, JoinSet<()>) {
    let receipts = Rc::new(Receipts::default());
    let mut running = JoinSet::new();
    for _ in 0..number("PEER_CONC") {
        let (caller, receipts) = (connect().await, receipts.clone());
        running.spawn_local(async move {
            while !receipts.stop.get() {
                let polled = caller.post("poll/bench/0", &json!({"max": most, "waitSeconds": 1})).await;
                let received = now_ms();
                let polled = polled.as_array().expect("an array");
                if polled.is_empty() {
                    continue;
                }
                for task in polled {
                    let id = task["parameters"]["id"].as_u64().expect("an id") as usize;
                    let due = task["parameters"]["due"].as_i64().expect("a time");
                    receipts.rows.borrow_mut().push((id, due, received));
                    receipts.seen.borrow_mut().insert(id);
                }
                let settled = |task: &Value| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]});
                caller.post("ack", &Value::Array(polled.iter().map(settled).collect())).await;
            }
        });
    }
    (receipts, running)
}

/// Waits for `wanted` tasks or `until`, and writes down what came.
async fn finish(receipts: Rc<Receipts>, running: JoinSet<()>, wanted: usize, until: f64) {
    while receipts.distinct() < wanted && now_ms() < until {
        tokio::time::sleep(LOOK).await;
    }
    tokio::time::sleep(LINGER).await;
    receipts.stop.set(true);
    running.join_all().await;
    let rows = receipts.rows.borrow();
    let trace: String = rows.iter().map(|(id, due, received)| format!("{id} {due} {received:.3}\n")).collect();
    std::fs::write(variable("PEER_TRACE"), trace).expect("the trace is written");
}

fn timed(metric: &str, count: usize, (start, end): (f64, f64)) {
    tell(&json!({"event": "timed", "metric": metric, "count": count, "start_ms": start, "end_ms": end}));
}

/// Tasks that are not over.
async fn left() -> usize {
    let caller = connect().await;
    let mut count = 0;
    for status in ["scheduled", "leased", "dead"] {
        let mut cursor = String::new();
        loop {
            let page = caller.get(&format!("/api/v1/task?status={status}&limit=100{cursor}")).await;
            count += page["tasks"].as_array().expect("an array").len();
            match page["cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
    }
    count
}

async fn run(command: &str) {
    let cap_ms = || 1_000.0 * variable("PEER_CAP_S").parse::<f64>().expect("PEER_CAP_S is a number");
    let batch = || number("PEER_BATCH");
    match command {
        "w1" | "w4" => {
            let count = number("PEER_N");
            let due_times = Rc::new(vec![now_ms() as i64 + HOUR_MS; count]);
            timed("adds_per_s", count, produce(due_times.clone(), 1).await);
            if command == "w1" {
                timed("batch_adds_per_s", count, produce(due_times, batch()).await);
            }
        }
        "w2" => {
            let count = number("PEER_N");
            produce(Rc::new(vec![now_ms() as i64; count]), batch()).await;
            let until = now_ms() + cap_ms();
            let (receipts, running) = consume(batch()).await;
            finish(receipts, running, count, until).await;
        }
        "w3" => {
            let plan = std::fs::read_to_string(variable("PEER_PLAN")).expect("a plan");
            let plan: Vec<i64> = plan.lines().map(|line| line.parse().expect("milliseconds")).collect();
            let (receipts, running) = consume(batch()).await;
            tokio::time::sleep(Duration::from_secs(1)).await;
            let base = now_ms() as i64;
            let due_times: Vec<i64> = plan.iter().map(|after| base + after).collect();
            let last = due_times.iter().copied().max().unwrap_or(base);
            let (_, end) = produce(Rc::new(due_times), 1).await;
            tell(&json!({"event": "planned", "base_ms": base, "add_end_ms": end}));
            finish(receipts, running, plan.len(), last as f64 + cap_ms()).await;
        }
        "w5-take" => {
            let caller = connect().await;
            caller.post("add", &task(0, now_ms() as i64)).await;
            let polled = caller.post("poll/bench/0", &json!({"waitSeconds": 20})).await;
            assert_eq!(polled.as_array().map(Vec::len), Some(1), "the task comes");
            tell(&json!({"event": "taken"}));
            // Killed long before.
            tokio::time::sleep(Duration::from_secs(300)).await;
        }
        "w5-wait" => {
            let (receipts, running) = consume(1).await;
            tell(&json!({"event": "ready"}));
            let until = now_ms() + cap_ms();
            while receipts.distinct() == 0 && now_ms() < until {
                tokio::time::sleep(LOOK).await;
            }
            if let Some((_, _, received)) = receipts.rows.borrow().first() {
                tell(&json!({"event": "redelivered", "ms": received}));
            }
            receipts.stop.set(true);
            running.join_all().await;
        }
        "left" => tell(&json!({"event": "left", "count": left().await})),
        other => panic!("unknown command '{other}'"),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let command = std::env::args().nth(1).expect("a command");
    LocalSet::new().run_until(run(&command)).await;
}
