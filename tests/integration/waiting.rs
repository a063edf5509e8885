//! Waiting polls, on the machine's clock: each kind of news ends the wait, and waiting costs next to nothing.
//!
//! How soon is for the benchmark; here 'soon' is well before the wait is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, task, until};
use tokio::task::JoinHandle;

/// How long the polls here would wait in vain.
const WAIT_SECONDS: u64 = 20;
/// Well before that.
const SOON: Duration = Duration::from_secs(8);

/// A world with a process on the machine's clock.
async fn on_system_clock() -> (World, Arc<Service>) {
    let world = World::new().await;
    let service = world.another(Clock::System, &Settings::default()).await;
    (world, service)
}

/// Begins a poll in a process of its own, and returns once it waits for news.
async fn begin_poll(world: &World, clock: Clock, queue: &str, most: usize) -> JoinHandle<Vec<Value>> {
    let service = world.another(clock, &Settings::default()).await;
    let channel = format!("wake:{}", queue.split('/').next().expect("a type"));
    let subscribers = || {
        let answer = world.redis.run(&format!("PUBSUB NUMSUB {channel}"));
        redis::from_redis_value::<(String, usize)>(answer).expect("a channel and a number").1
    };
    let before = subscribers();
    let path = format!("/api/v1/task/poll/{queue}");
    let poll = tokio::spawn(async move {
        let started = Instant::now();
        let reply = call(&service, "POST", &path, json!({"max": most, "waitSeconds": WAIT_SECONDS})).await;
        assert!(started.elapsed() < SOON, "it took {:?}", started.elapsed());
        reply.data().as_array().expect("an array").clone()
    });
    until("a poll that waits", async || subscribers() != before || poll.is_finished()).await;
    poll
}

async fn add(service: &Service, task: Value) {
    assert_eq!(call(service, "POST", "/api/v1/task/add", task).await.status, 200);
}

async fn post(service: &Service, path: &str, body: Value) {
    let reply = call(service, "POST", &format!("/api/v1/task/{path}"), body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
}

/// Leases the only due task for `lease_seconds`.
async fn take(service: &Service, lease_seconds: u64) -> Value {
    let reply = call(service, "POST", "/api/v1/task/poll/t/0", json!({"leaseSeconds": lease_seconds})).await;
    reply.data()[0].clone()
}

#[tokio::test]
async fn a_waiting_poll_gets_a_task_added_by_another_process() {
    for queue in ["t/0", "t"] {
        let (world, _) = on_system_clock().await;
        let other = world.another(Clock::System, &Settings::default()).await;
        let poll = begin_poll(&world, Clock::System, queue, 10).await;
        add(&other, task("a", 0)).await;
        assert_eq!(ids(&poll.await.expect("it ends")), ["a"], "{queue}");
    }
}

#[tokio::test]
async fn a_waiting_poll_gets_a_task_when_it_becomes_due_and_not_before() {
    for (queue, known_before) in [("t/0", true), ("t", true), ("t/0", false), ("t", false)] {
        let (world, service) = on_system_clock().await;
        add(&service, task("later", 250_000)).await;
        if known_before {
            add(&service, task("a", 500)).await;
        }
        let poll = begin_poll(&world, Clock::System, queue, 10).await;
        if !known_before {
            add(&service, task("a", 300)).await;
        }
        let polled = poll.await.expect("it ends");
        assert_eq!(ids(&polled), ["a"], "{queue} {known_before}");
        assert!(polled[0]["updatedAt"].as_i64() >= polled[0]["executeTime"].as_i64(), "{}", polled[0]);
    }
}

#[tokio::test]
async fn a_waiting_poll_gets_a_task_whose_lease_ends() {
    let (world, service) = on_system_clock().await;
    add(&service, task("a", 0)).await;
    let held = take(&service, 1).await;
    let polled = begin_poll(&world, Clock::System, "t/0", 1).await.await.expect("it ends");
    assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["a".to_owned()], &json!(2)));
    let given = polled[0]["updatedAt"].as_i64().expect("a time");
    assert!(given >= held["leaseUntil"].as_i64().expect("a time"));
}

#[tokio::test]
async fn a_waiting_poll_gets_a_task_that_is_nacked_rescheduled_or_redriven() {
    let (world, service) = on_system_clock().await;
    add(&service, task("a", 0)).await;
    let mut held = take(&service, 600).await;
    for queue in ["t/0", "t"] {
        let poll = begin_poll(&world, Clock::System, queue, 1).await;
        post(&service, "nack/a", json!({"leaseToken": held["leaseToken"], "delay": 0})).await;
        held = poll.await.expect("it ends").remove(0);

        post(&service, "nack/a", json!({"leaseToken": held["leaseToken"], "delay": 3_600_000})).await;
        let poll = begin_poll(&world, Clock::System, queue, 1).await;
        post(&service, "reschedule/a", json!({"delay": 100})).await;
        held = poll.await.expect("it ends").remove(0);

        post(&service, "nack/a", json!({"leaseToken": held["leaseToken"], "permanent": true})).await;
        let poll = begin_poll(&world, Clock::System, queue, 1).await;
        post(&service, "redrive/a", Value::Null).await;
        held = poll.await.expect("it ends").remove(0);
        assert_eq!(held["attempt"], 1);
    }
}

#[tokio::test]
async fn a_waiting_poll_gets_what_a_tick_finds() {
    let (world, service) = on_system_clock().await;
    add(&service, task("a", 0)).await;
    world.redis.run("FLUSHALL");
    let poll = begin_poll(&world, Clock::System, "t/0", 1).await;
    service.refresh(&world.tick()).await.expect("a refresh");
    assert_eq!(ids(&poll.await.expect("it ends")), ["a"]);
}

#[tokio::test]
async fn moving_a_manual_clock_wakes_waiting_polls() {
    let world = World::new().await;
    world.add(task("a", 1_800_000)).await;
    world.add(task("b", 200_000)).await;
    let poll = begin_poll(&world, Clock::Manual(world.clock.clone()), "t/0", 10).await;
    world.advance(199_999);
    tokio::task::yield_now().await;
    assert!(!poll.is_finished());
    world.advance(1);
    assert_eq!(ids(&poll.await.expect("it ends")), ["b"]);
    // What Redis does not know yet, since no tick ran, is found in DynamoDB.
    assert_eq!(world.call("POST", "/api/v1/task/cancel/b", Value::Null).await.data(), true);
    let poll = begin_poll(&world, Clock::Manual(world.clock.clone()), "t/0", 10).await;
    world.advance(1_600_000);
    assert_eq!(ids(&poll.await.expect("it ends")), ["a"]);
}

#[tokio::test]
async fn a_poll_that_finds_something_does_not_wait_for_more() {
    let (world, service) = on_system_clock().await;
    for n in 0..3 {
        add(&service, task(&format!("a{n}"), 0)).await;
    }
    let poll = begin_poll(&world, Clock::System, "t/0", 2).await;
    assert_eq!(poll.await.expect("it ends").len(), 2, "the most it may have");
    let poll = begin_poll(&world, Clock::System, "t/0", 2).await;
    assert_eq!(poll.await.expect("it ends").len(), 1, "all there is");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_waiting_polls_each_task_goes_to_one() {
    let (world, service) = on_system_clock().await;
    let mut polls = vec![begin_poll(&world, Clock::System, "t/0", 1).await];
    let path = "/api/v1/task/poll/t/0";
    for _ in 0..9 {
        let service = service.clone();
        polls.push(tokio::spawn(async move {
            let reply = call(&service, "POST", path, json!({"waitSeconds": WAIT_SECONDS})).await;
            reply.data().as_array().expect("an array").clone()
        }));
    }
    let tasks: Vec<Value> = (0..10).map(|n| task(&format!("a{n}"), 0)).collect();
    add(&service, Value::Array(tasks)).await;
    let mut got = Vec::new();
    for poll in polls {
        got.extend(ids(&poll.await.expect("it ends")));
    }
    got.sort();
    got.dedup();
    assert_eq!(got.len(), 10);
}

#[tokio::test]
async fn an_idle_wait_costs_few_commands_and_ends_in_time() {
    for queue in ["t/0", "t"] {
        let (world, service) = on_system_clock().await;
        add(&service, task("far", 3_600_000)).await;
        add(&service, task("near", 250_000)).await;
        let commands = || {
            let info: String = redis::from_redis_value(world.redis.run("INFO stats")).expect("a text");
            let line = info.lines().find_map(|line| line.strip_prefix("total_commands_processed:"));
            line.expect("INFO tells it").trim().parse::<u64>().expect("a number")
        };
        let requests = || service.table.usage().requests;
        let (before, requests_before, started) = (commands(), requests(), Instant::now());
        let reply = call(&service, "POST", &format!("/api/v1/task/poll/{queue}"), json!({"waitSeconds": 2})).await;
        assert!(reply.data().as_array().expect("an array").is_empty());
        assert!(started.elapsed() >= Duration::from_secs(2));
        // Each look is a script of some six commands, or eight by type; one a second, and two at the beginning.
        let used = commands() - before;
        assert!(used <= 60, "{queue}: {used}");
        assert_eq!(requests(), requests_before, "DynamoDB is not asked");
    }
}

#[tokio::test]
async fn a_waiting_poll_outlives_a_restart_of_redis() {
    let (mut world, _) = on_system_clock().await;
    let poll = begin_poll(&world, Clock::System, "t/0", 1).await;
    world.redis.stop();
    world.redis.launch();
    let other = world.another(Clock::System, &Settings::default()).await;
    add(&other, task("a", 0)).await;
    assert_eq!(ids(&poll.await.expect("it ends")), ["a"]);
}

#[tokio::test]
async fn a_waiting_poll_gets_its_task_without_redis() {
    let (mut world, service) = on_system_clock().await;
    let poll = begin_poll(&world, Clock::System, "t", 1).await;
    world.redis.stop();
    add(&service, task("a", 300)).await;
    let polled = poll.await.expect("it ends");
    assert_eq!(ids(&polled), ["a"]);
    assert!(polled[0]["updatedAt"].as_i64() >= polled[0]["executeTime"].as_i64());
}
