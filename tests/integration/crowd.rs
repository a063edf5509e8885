//! Two of everything at once, some of them dying: the ledger of what was given out is checked task by task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use punctual_core::clock::Clock;
use punctual_core::config::DispatchConfig;
use punctual_core::error::Error;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::{Patience, Reply, Settings, World, call};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Tasks of each crowd in `make test`.
const TASKS: usize = 1_000;
const PRODUCERS: usize = 4;
const CONSUMERS: usize = 8;
const LEASE_SECONDS: i64 = 30;
/// One task in so many is run by a handler.
const HANDLED_EACH: usize = 5;
/// A call that found no store comes again after this.
const AGAIN: Duration = Duration::from_millis(100);
/// A crowd that is not done after this never will be.
const PATIENCE: Duration = Duration::from_secs(150);

/// One lease that somebody was given.
#[derive(Clone, Debug)]
struct Lease {
    from: i64,
    /// Its end, or the earliest moment at which its holder can have given it back.
    until: i64,
    attempt: u64,
    /// When its holder was told that the task is done.
    done: Option<i64>,
}

/// Every lease of every task.
#[derive(Default)]
struct Ledger {
    leases: Mutex<BTreeMap<String, Vec<Lease>>>,
    done: AtomicUsize,
}

impl Ledger {
    fn given(&self, task: &Value) -> usize {
        let id = task["taskId"].as_str().expect("an id").to_owned();
        let until = task["leaseUntil"].as_i64().expect("an end");
        self.note(id, until - LEASE_SECONDS * 1_000, until, task["attempt"].as_u64().expect("a number"))
    }

    fn note(&self, id: String, from: i64, until: i64, attempt: u64) -> usize {
        let mut ledger = self.leases.lock().expect("no panic");
        let leases = ledger.entry(id).or_default();
        leases.push(Lease { from, until, attempt, done: None });
        leases.len() - 1
    }

    fn given_back(&self, id: &str, number: usize, at: i64) {
        let mut ledger = self.leases.lock().expect("no panic");
        let lease = &mut ledger.get_mut(id).expect("given before")[number];
        lease.until = lease.until.min(at);
    }

    fn done(&self, id: &str, number: usize, at: i64) {
        let mut ledger = self.leases.lock().expect("no panic");
        let leases = ledger.get_mut(id).expect("given before");
        let first = leases.iter().all(|lease| lease.done.is_none());
        leases[number].done = Some(at);
        self.done.fetch_add(usize::from(first), Ordering::SeqCst);
    }
}

/// A handler that notes its attempts; each tenth fails the first time.
struct Noting(Arc<Ledger>, Arc<Service>);

impl Handler for Noting {
    const NAME: &'static str = "noting";
    type Parameters = u64;

    async fn handle(&self, n: u64, context: &Context) -> Result<(), HandlerError> {
        let now = self.1.clock.now().as_ms();
        // How long a handler's lease is, it is not told.
        let number = self.0.note(context.task_id.clone(), now, now, u64::from(context.attempt));
        tokio::task::yield_now().await;
        if n.is_multiple_of(10) && context.attempt == 1 {
            return Err(HandlerError::retry("the first time"));
        }
        self.0.done(&context.task_id, number, self.1.clock.now().as_ms());
        Ok(())
    }
}

fn queue_of(n: usize, queues: usize) -> String {
    format!("q{}", n % queues)
}

/// A tick may be too late for a store; the next one makes up for it.
fn unless_unavailable<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        assert_eq!(error.word(), "unavailable", "{error}");
    }
}

/// A call that is repeated until a store has answered, as clients do.
async fn patient(service: &Service, path: &str, body: Value) -> Reply {
    let patience = Patience::new("an answer of a store", AGAIN);
    loop {
        let reply = call(service, "POST", path, body.clone()).await;
        if reply.status != 503 {
            return reply;
        }
        patience.look_again().await;
    }
}

/// Lets `ms` milliseconds of the service's clock pass, or the rest of the test.
async fn pause(service: &Service, ms: i64, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = service.clock.sleep_until(service.clock.now().plus_ms(ms)) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn produce(service: Arc<Service>, from: usize, tasks: usize, queues: usize) {
    let mine: Vec<usize> = (from..tasks).step_by(PRODUCERS).collect();
    for batch in mine.chunks(20) {
        let task = |n: &usize| {
            let mut task = json!({
                "taskId": format!("t{n}"), "taskType": queue_of(*n, queues), "delay": (n % 7) * 1_000,
                "maxAttempts": 1000, "backoff": {"kind": "fixed", "delay": 1_000}, "parameters": n,
            });
            if n.is_multiple_of(HANDLED_EACH) {
                task["handler"] = json!(Noting::NAME);
            }
            task
        };
        let batch: Vec<Value> = batch.iter().map(task).collect();
        // A machine that has other things to do too may let a store wait beyond its limits.
        loop {
            let reply = patient(&service, "/api/v1/task/add", json!(batch)).await;
            let items = reply.data().as_array().expect("an array");
            if items.iter().all(|item| item["created"].is_boolean()) {
                break;
            }
            assert!(
                items.iter().all(|item| item["created"].is_boolean() || item["error"] == "unavailable"),
                "{items:?}"
            );
        }
    }
}

async fn consume(service: Arc<Service>, ledger: Arc<Ledger>, queues: usize, mut stop: watch::Receiver<bool>) {
    while !*stop.borrow() {
        let queue = queue_of(rand::random_range(0..queues), queues);
        let path = if rand::random() { format!("{queue}/0") } else { queue };
        let body = json!({"max": rand::random_range(1..20), "leaseSeconds": LEASE_SECONDS});
        let reply = patient(&service, &format!("/api/v1/task/poll/{path}"), body).await;
        let tasks = reply.data().as_array().expect("an array").clone();
        if tasks.is_empty() {
            pause(&service, 500, &mut stop).await;
        }
        let leased: Vec<usize> = tasks.iter().map(|task| ledger.given(task)).collect();
        // One in ten dies here with all that it holds.
        if rand::random_range(0..10) == 0 {
            continue;
        }
        for (task, number) in tasks.iter().zip(leased) {
            let id = task["taskId"].as_str().expect("an id");
            let token = json!({"leaseToken": task["leaseToken"]});
            match rand::random_range(0..20) {
                0 => {}
                1 => {
                    // The clock goes on meanwhile, so somebody else may have it by now.
                    let mut body = token;
                    body["delay"] = json!(500);
                    let now = service.clock.now().as_ms();
                    let reply = patient(&service, &format!("/api/v1/task/nack/{id}"), body).await;
                    match reply.status {
                        200 => ledger.given_back(id, number, now),
                        _ => assert_eq!(reply.error(), (409, "lease_lost")),
                    }
                }
                _ => {
                    let reply = patient(&service, &format!("/api/v1/task/ack/{id}"), token).await;
                    match reply.status {
                        200 => ledger.done(id, number, service.clock.now().as_ms()),
                        _ => assert_eq!(reply.error(), (409, "lease_lost")),
                    }
                }
            }
        }
    }
}

/// Runs `tasks` tasks through `queues` queues and checks what came of each.
pub async fn crowd(tasks: usize, queues: usize) {
    let started = Instant::now();
    let world = World::new().await;
    let other = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    let processes = [world.service.clone(), other];
    let ledger = Arc::new(Ledger::default());
    let (stop, stopped) = watch::channel(false);
    let process = |n: usize| processes[n % 2].clone();
    let mut crowd = JoinSet::new();
    for n in 0..PRODUCERS {
        crowd.spawn(produce(process(n), n, tasks, queues));
    }
    for n in 0..CONSUMERS {
        crowd.spawn(consume(process(n), ledger.clone(), queues, stopped.clone()));
    }
    for n in 0..2 {
        let (service, tick, mut stop) = (process(n), world.tick(), stopped.clone());
        crowd.spawn(async move {
            while !*stop.borrow() {
                unless_unavailable(refresh::handle(&service, &tick).await);
                pause(&service, rand::random_range(1_000..8_000), &mut stop).await;
            }
        });
        let (service, tick, mut stop) = (process(n), world.tick(), stopped.clone());
        crowd.spawn(async move {
            while !*stop.borrow() {
                unless_unavailable(recover::handle(&service, &tick).await);
                pause(&service, rand::random_range(1_000..8_000), &mut stop).await;
            }
        });
        let (service, ledger, mut stop) = (process(n), ledger.clone(), stopped.clone());
        crowd.spawn(async move {
            let registry = Registry::default().with(Noting(ledger, service.clone())).expect("one handler");
            let config = DispatchConfig { shift: Duration::ZERO, concurrency: 16 };
            while !*stop.borrow() {
                unless_unavailable(dispatch::handle(&service, &registry, &config).await);
                pause(&service, 500, &mut stop).await;
            }
        });
    }
    // The clock goes 25 times as fast as the wall's.
    let mut beat = tokio::time::interval(Duration::from_millis(20));
    while ledger.done.load(Ordering::SeqCst) < tasks {
        if started.elapsed() > PATIENCE.max(Duration::from_millis(20 * tasks as u64)) {
            break;
        }
        beat.tick().await;
        world.advance(500);
    }
    stop.send_replace(true);
    while let Some(ended) = crowd.join_next().await {
        ended.expect("no panic");
    }
    let ledger = ledger.leases.lock().expect("no panic").clone();
    check(&ledger, tasks);
    let statuses = (0..tasks).map(|n| format!("t{n}"));
    for id in statuses {
        assert_eq!(world.status(&id).await, "succeeded", "{id}: {:?}", ledger[&id]);
    }
    let leases: usize = ledger.values().map(Vec::len).sum();
    println!("{tasks} tasks, {queues} queues, {leases} leases in {:?}", started.elapsed());
}

fn check(ledger: &BTreeMap<String, Vec<Lease>>, tasks: usize) {
    let all: BTreeSet<String> = (0..tasks).map(|n| format!("t{n}")).collect();
    let seen: BTreeSet<String> = ledger.keys().cloned().collect();
    assert_eq!(all.difference(&seen).collect::<Vec<_>>(), Vec::<&String>::new(), "never given out");
    for (id, leases) in ledger {
        let mut leases = leases.clone();
        leases.sort_by_key(|lease| lease.attempt);
        let done = leases.iter().filter(|lease| lease.done.is_some()).count();
        // A handler whose success could not be noted in time runs again: its effect is not promised to be single.
        let is_handled = id[1..].parse::<usize>().expect("a number").is_multiple_of(HANDLED_EACH);
        assert!(done == 1 || is_handled && done > 1, "{id} was done {done} times: {leases:?}");
        for (before, after) in leases.iter().zip(&leases[1..]) {
            // A lease that nobody was told of, since the answer failed, counts too; none is given twice.
            assert!(before.attempt < after.attempt, "{id}: {leases:?}");
            assert!(before.done.is_none() || is_handled, "{id} was given out after it was done: {leases:?}");
            assert!(before.until <= after.from, "{id} had two live leases: {leases:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_of_a_crowd_on_one_queue_is_done_once() {
    crowd(TASKS, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_task_of_a_crowd_on_fifty_queues_is_done_once() {
    crowd(TASKS, 50).await;
}
