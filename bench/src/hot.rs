//! One hot second: very many tasks of one queue due in the same instant, and two others that must not feel it: one with a
//! task at a time, one with two due at once.
//!
//! The same two in a runner of their own, with stores of its own, tell what of their lateness comes from a machine that has
//! no processor to spare, and what from the runner that they share with the hot queue.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bench::client::{Caller, now_ms};
use bench::runner::Runner;
use bench::table::{Table, percentile};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Consumers of the hot queue at once.
const CONSUMERS: usize = 8;
/// Tasks that they take at once.
const BATCH: usize = 100;
/// Partitions of each queue.
const PARTITIONS: &str = "4";
/// Tasks that go in each second, by which it is reckoned when all are in; fewer than any machine so far took.
const ADDED_PER_SECOND: usize = 2_000;
/// The other queues, by the tasks that become due in them at once.
const OTHERS: [(&str, usize); 2] = [("single", 1), ("pairs", 2)];
/// Each gets so many each so many milliseconds.
const OTHER_EVERY_MS: usize = 50;
/// Tasks that their consumers take at once; a single one, where there is never more.
const OTHER_BATCH: usize = 10;
/// The least time between two lines of progress.
const SHOW_EVERY: Duration = Duration::from_secs(10);

/// When each task came, in milliseconds since 1970, with its due time.
type Receipts = Arc<Mutex<Vec<(f64, f64)>>>;

/// Drains `tasks` tasks that are due in one instant.
pub async fn measure(tasks: usize) -> Table {
    let title = format!("One hot instant: {tasks} tasks, {PARTITIONS} partitions, {CONSUMERS} consumers");
    let columns = ["queue", "tasks", "first ms", "last ms", "tasks a second", "first quarter", "last quarter"];
    let mut table = Table::new(title, &columns);
    let runner = Runner::start(&[("QUEUE_PARTITIONS", PARTITIONS)]);
    let due = now_ms() as i64 + 5_000 + (tasks * 1_000 / ADDED_PER_SECOND) as i64;
    add(runner.url(), tasks, |_| json!({"taskType": "hot", "executeTime": due})).await;
    assert!((now_ms() as i64) < due, "adding took longer than was reckoned");

    // From the hot instant on, for as long as it may last.
    let of_their_own = Runner::start(&[("QUEUE_PARTITIONS", PARTITIONS)]);
    let beside = OTHERS.map(|(queue, together)| Other::start(runner.url(), queue, together));
    let apart = OTHERS.map(|(queue, together)| Other::start(of_their_own.url(), queue, together));
    let hot = Receipts::default();
    let mut running = JoinSet::new();
    for _ in 0..CONSUMERS {
        running.spawn(consume(Caller::connect(runner.url()).await, "hot", BATCH, hot.clone()));
    }
    let mut shown = tokio::time::Instant::now();
    while hot.lock().expect("not poisoned").len() < tasks {
        tokio::time::sleep(Duration::from_millis(50)).await;
        if shown.elapsed() > SHOW_EVERY {
            shown = tokio::time::Instant::now();
            eprintln!("{} of {tasks}", hot.lock().expect("not poisoned").len());
        }
    }
    running.shutdown().await;
    let (beside, apart) = (beside.map(Other::stop), apart.map(Other::stop));

    let hot: Vec<f64> = hot.lock().expect("not poisoned").iter().map(|(received, due)| received - due).collect();
    assert!(hot.iter().all(|late| *late >= 0.0), "none is early");
    let quarter = hot.len() / 4;
    let rate = |part: &[f64]| part.len() as f64 * 1_000.0 / (part[part.len() - 1] - part[0]);
    let rates = [rate(&hot), rate(&hot[..quarter]), rate(&hot[hot.len() - quarter..])].map(|rate| format!("{rate:.0}"));
    let [first, last] = [hot[0], hot[hot.len() - 1]].map(|late| format!("{late:.0}"));
    table.row([vec!["hot".to_owned(), tasks.to_string(), first, last], rates.to_vec()].concat());

    let part = |received: &[(f64, f64)], during: bool| {
        let mut late: Vec<f64> =
            received.iter().filter(|(at, _)| (*at >= due as f64) == during).map(|(at, due)| at - due).collect();
        late.sort_by(f64::total_cmp);
        late
    };
    for (place, (queue, _)) in OTHERS.iter().enumerate() {
        for (where_it_is, receipts) in [("beside it", &beside[place]), ("in another runner", &apart[place])] {
            for (when, during) in [("before", false), ("meanwhile", true)] {
                let late = part(receipts, during);
                let at = |fraction| format!("p{:.0} {:.1} ms", fraction * 100.0, percentile(&late, fraction));
                table.row(vec![
                    format!("{queue}, {where_it_is}, {when}"),
                    late.len().to_string(),
                    at(0.5),
                    at(0.99),
                    at(1.0),
                    String::new(),
                    String::new(),
                ]);
            }
        }
    }
    table
}

async fn add(url: &str, tasks: usize, task: impl Fn(usize) -> Value) {
    let mut adding = JoinSet::new();
    for first in 0..CONSUMERS {
        let caller = Caller::connect(url).await;
        let numbers: Vec<usize> = (first..tasks).step_by(CONSUMERS).collect();
        let batches: Vec<Value> =
            numbers.chunks(BATCH).map(|chunk| Value::Array(chunk.iter().map(|n| task(*n)).collect())).collect();
        adding.spawn(async move {
            for batch in batches {
                caller.post("add", &batch).await;
            }
        });
    }
    adding.join_all().await;
}

/// Another queue: someone elsewhere who adds to it and takes from it, on a thread that does not wait for the hot queue's
/// consumers.
struct Other {
    receipts: Receipts,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Other {
    fn start(url: &str, queue: &'static str, together: usize) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (url, receipts) = (url.to_owned(), Receipts::default());
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let received = receipts.clone();
        let most = if together == 1 { 1 } else { OTHER_BATCH };
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = consume(Caller::connect(&url).await, queue, most, received) => {}
                    () = add_others(Caller::connect(&url).await, queue, together) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { receipts, stop, thread }
    }

    fn stop(self) -> Vec<(f64, f64)> {
        drop(self.stop);
        self.thread.join().expect("the other queue is served");
        self.receipts.lock().expect("not poisoned").clone()
    }
}

async fn add_others(caller: Caller, queue: &str, together: usize) {
    loop {
        let task = json!({"taskType": queue, "executeTime": now_ms() as i64 + 1_000});
        caller.post("add", &Value::Array(vec![task; together])).await;
        tokio::time::sleep(Duration::from_millis(OTHER_EVERY_MS as u64)).await;
    }
}

async fn consume(caller: Caller, queue: &str, most: usize, receipts: Receipts) {
    loop {
        let polled = caller.post(&format!("poll/{queue}/0"), &json!({"max": most, "waitSeconds": 20})).await;
        let received = now_ms();
        let polled = polled.as_array().expect("an array");
        let due = |task: &Value| task["executeTime"].as_f64().expect("a time");
        receipts.lock().expect("not poisoned").extend(polled.iter().map(|task| (received, due(task))));
        let settled = |task: &Value| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]});
        if !polled.is_empty() {
            caller.post("ack", &Value::Array(polled.iter().map(settled).collect())).await;
        }
    }
}
