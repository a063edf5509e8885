//! How many tasks a second go in and come out, over HTTP, with 8 clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde_json::{Value, json};

use bench::client::{Caller, now_ms};
use bench::process::processor_time;
use bench::runner::Runner;
use bench::table::{Table, percentile};

/// Clients at once.
const CLIENTS: usize = 8;
/// Each figure is the median of so many runs.
const RUNS: usize = 3;

/// Adds, drains and whole lives, one by one and in batches.
pub async fn measure(tasks: usize) -> Table {
    let mut table = Table::new(
        format!(
            "Rates: {tasks} tasks of 100 bytes, {CLIENTS} clients, tasks a second (median, least - most of {RUNS})"
        ),
        &["batch", "add", "poll + ack", "whole life", "processor time a task, µs"],
    );
    for batch in [1, 25, 100] {
        let (mut adds, mut drains, mut lives, mut processor) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            let runner = Runner::start(&[]);
            let before = processor_time(runner.pid());
            let add_seconds = add(runner.url(), tasks, batch).await;
            let drain_seconds = drain(runner.url(), tasks, batch).await;
            let used = processor_time(runner.pid()) - before;
            processor.push(used.as_secs_f64() * 1e6 / tasks as f64);
            adds.push(tasks as f64 / add_seconds);
            drains.push(tasks as f64 / drain_seconds);
            lives.push(tasks as f64 / (add_seconds + drain_seconds));
        }
        table.row(vec![batch.to_string(), told(adds), told(drains), told(lives), told(processor)]);
    }
    table
}

fn told(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    format!("{:.0} ({:.0} - {:.0})", percentile(&rates, 0.5), percentile(&rates, 0.0), percentile(&rates, 1.0))
}

fn task(due_ms: i64) -> Value {
    json!({"taskType": "bench", "executeTime": due_ms, "parameters": {"pad": "x".repeat(88)}})
}

async fn callers(url: &str) -> Vec<Caller> {
    futures::future::join_all((0..CLIENTS).map(|_| Caller::connect(url))).await
}

/// Adds `tasks` tasks that are due now; returns seconds.
async fn add(url: &str, tasks: usize, batch: usize) -> f64 {
    let next = Arc::new(AtomicUsize::new(0));
    let callers = callers(url).await;
    let started = Instant::now();
    let clients = callers.into_iter().map(|caller| {
        let next = next.clone();
        tokio::spawn(async move {
            while next.fetch_add(batch, Ordering::Relaxed) < tasks {
                let due = now_ms() as i64;
                let body = match batch {
                    1 => task(due),
                    _ => Value::Array((0..batch).map(|_| task(due)).collect()),
                };
                caller.post("add", &body).await;
            }
        })
    });
    futures::future::join_all(clients).await.into_iter().for_each(|client| client.expect("a client ends well"));
    started.elapsed().as_secs_f64()
}

/// Polls and acknowledges until `tasks` have come; returns seconds.
async fn drain(url: &str, tasks: usize, batch: usize) -> f64 {
    let done = Arc::new(AtomicUsize::new(0));
    let callers = callers(url).await;
    let started = Instant::now();
    let clients = callers.into_iter().map(|caller| {
        let done = done.clone();
        tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < tasks {
                let polled = caller.post("poll/bench/0", &json!({"max": batch})).await;
                let polled = polled.as_array().expect("an array");
                if polled.is_empty() {
                    tokio::task::yield_now().await;
                    continue;
                }
                let settled = |task: &Value| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]});
                caller.post("ack", &Value::Array(polled.iter().map(settled).collect())).await;
                done.fetch_add(polled.len(), Ordering::Relaxed);
            }
        })
    });
    futures::future::join_all(clients).await.into_iter().for_each(|client| client.expect("a client ends well"));
    started.elapsed().as_secs_f64()
}
