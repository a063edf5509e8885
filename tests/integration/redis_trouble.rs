//! What calls do when a store refuses, is silent, is full or forgets: they answer right, and within 5 seconds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::{Fault, Proxy, Reply, Settings, World, call, ids, sorted_ids, task, until};

/// A promise: whatever the stores do, a call answers within this.
const LIMIT: Duration = Duration::from_secs(5);

/// A call that must answer within the limit.
async fn bounded(service: &Service, method: &str, path: &str, body: Value) -> Reply {
    let started = Instant::now();
    let reply = call(service, method, path, body).await;
    let took = started.elapsed();
    assert!(took < LIMIT, "{method} {path} took {took:?}");
    reply
}

async fn poll(service: &Service, body: Value) -> Vec<Value> {
    let reply = bounded(service, "POST", "/api/v1/task/poll/t/0", body).await;
    reply.data().as_array().expect("an array").clone()
}

async fn settle(service: &Service, verb: &str, task: &Value, more: Value) -> Reply {
    let mut body = more;
    body["leaseToken"] = task["leaseToken"].clone();
    let id = task["taskId"].as_str().expect("an id");
    bounded(service, "POST", &format!("/api/v1/task/{verb}/{id}"), body).await
}

/// Every call, while Redis is of no use. Tasks `due0..4` of the queue are due, `held0..5` are leased.
async fn every_call_answers_right(service: &Service, held: &[Value]) {
    let added = bounded(service, "POST", "/api/v1/task/add", task("new", 0)).await;
    assert_eq!(added.body["created"], true, "{}", added.body);
    // A queue that Redis has never heard of.
    let unheard = json!({"taskId": "unheard", "taskType": "u", "delay": 0});
    assert_eq!(bounded(service, "POST", "/api/v1/task/add", unheard).await.data(), "unheard");
    let batch: Vec<Value> = (0..50).map(|n| task(&format!("batch{n}"), 600_000)).collect();
    let added = bounded(service, "POST", "/api/v1/task/add", json!(batch)).await;
    assert!(added.data().as_array().expect("an array").iter().all(|item| item["created"] == true));
    assert_eq!(settle(service, "ack", &held[0], json!({})).await.data(), true);
    assert_eq!(settle(service, "nack", &held[1], json!({"delay": 600_000})).await.data(), true);
    assert_eq!(settle(service, "extend", &held[2], json!({"leaseSeconds": 600})).await.data(), true);
    let cancelled = bounded(service, "DELETE", "/api/v1/task/cancel/due3", Value::Null).await;
    assert_eq!(cancelled.data(), true);
    assert_eq!(settle(service, "ack", &held[3], json!({})).await.data(), true);
    // The poll goes by DynamoDB's index: what is leased there is not given out, what is due is, once.
    let polled = poll(service, json!({"max": 2})).await;
    assert_eq!(ids(&polled), ["due0", "due1"]);
    let one = bounded(service, "GET", "/api/v1/task/poll/t/0", Value::Null).await;
    assert_eq!(one.data()["taskId"], "due2");
    let by_type = bounded(service, "POST", "/api/v1/task/poll/t", json!({"max": 10})).await;
    assert_eq!(ids(by_type.data().as_array().expect("an array")), ["new"]);
    assert!(poll(service, json!({"max": 10})).await.is_empty());
    let waited = poll(service, json!({"max": 10, "waitSeconds": 1})).await;
    assert!(waited.is_empty());
    let unheard = bounded(service, "GET", "/api/v1/task/poll/u/0", Value::Null).await;
    assert_eq!(unheard.data()["taskId"], "unheard");
    let listed = bounded(service, "GET", "/api/v1/task?status=leased", Value::Null).await;
    assert_eq!(listed.data()["tasks"].as_array().expect("an array").len(), 5);
}

async fn with_tasks(world: &World) -> Vec<Value> {
    world.add_many("held", 5, 0).await;
    let held = world.poll("t/0", 5).await;
    assert_eq!(held.len(), 5);
    world.advance(1);
    for n in 0..4 {
        world.add(task(&format!("due{n}"), 0)).await;
        world.advance(1);
    }
    let by_id = |n: usize| held.iter().find(|task| task["taskId"] == format!("held{n}")).expect("held").clone();
    (0..5).map(by_id).collect()
}

/// After the trouble a new process finds everything in its place: what is leased stays so, what is due comes once.
async fn all_catches_up(world: &World) {
    let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    service.recover(&world.tick()).await.expect("a recovery");
    service.refresh(&world.tick()).await.expect("a refresh");
    assert!(poll(&service, json!({"max": 100})).await.is_empty());
    world.advance(30_000);
    service.recover(&world.tick()).await.expect("a recovery");
    let again = poll(&service, json!({"max": 100})).await;
    let again = sorted_ids(&again);
    assert_eq!(&again[..3], ["due0", "due1", "held4"], "the rest of the leases ran out: {again:?}");
    assert_eq!(again.len(), 4, "and that of the new task: {again:?}");
    world.advance(600_000);
    service.refresh(&world.tick()).await.expect("a refresh");
    let late = poll(&service, json!({"max": 100})).await;
    assert_eq!(late.len(), 4 + 50 + 2, "those again, the batch, the nacked and the extended one");
}

#[tokio::test]
async fn with_redis_stopped_every_call_answers_right_and_all_catches_up_after() {
    let mut world = World::new().await;
    let held = with_tasks(&world).await;
    world.redis.stop();
    let service = world.service.clone();
    every_call_answers_right(&service, &held).await;
    world.redis.launch();
    all_catches_up(&world).await;
}

#[tokio::test]
async fn with_redis_silent_every_call_answers_right_and_all_catches_up_after() {
    let world = World::new().await;
    let held = with_tasks(&world).await;
    let pid = world.redis.pid();
    world.redis.signal_pid(pid, "STOP");
    every_call_answers_right(&world.service, &held).await;
    // A process that has never seen it answer does no worse.
    let fresh = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    assert!(poll(&fresh, json!({"max": 100, "leaseSeconds": 600})).await.is_empty());
    world.redis.signal_pid(pid, "CONT");
    all_catches_up(&world).await;
}

#[tokio::test]
async fn with_redis_a_read_only_replica_every_call_answers_right_and_all_catches_up_after() {
    let world = World::new().await;
    let held = with_tasks(&world).await;
    world.redis.run("REPLICAOF 127.0.0.1 1");
    every_call_answers_right(&world.service, &held).await;
    world.redis.run("REPLICAOF NO ONE");
    all_catches_up(&world).await;
}

#[tokio::test]
async fn with_redis_full_every_call_answers_right_and_all_catches_up_after() {
    let world = World::new().await;
    let held = with_tasks(&world).await;
    world.redis.run("CONFIG SET maxmemory 1");
    every_call_answers_right(&world.service, &held).await;
    world.redis.run("CONFIG SET maxmemory 0");
    all_catches_up(&world).await;
}

#[tokio::test]
async fn connections_killed_between_any_two_calls_are_not_noticed() {
    let world = World::new().await;
    let kill = || drop(world.redis.run("CLIENT KILL TYPE normal SKIPME yes"));
    for round in 0..5 {
        let id = format!("a{round}");
        kill();
        world.add(task(&id, 0)).await;
        assert_eq!(world.redis.places_of(&id), 1, "Redis was told at once");
        kill();
        let polled = world.poll("t/0", 1).await;
        assert_eq!(ids(&polled), std::slice::from_ref(&id));
        kill();
        assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true);
        assert_eq!(world.redis.places_of(&id), 0);
        kill();
        world.refresh().await;
        kill();
        world.recover().await;
    }
}

#[tokio::test]
async fn a_redis_restarted_empty_is_used_again_by_the_same_process() {
    let mut world = World::new().await;
    world.add(task("before", 60_000)).await;
    world.redis.stop();
    world.redis.launch();
    world.add(task("after", 60_000)).await;
    assert_eq!(world.redis.places_of("after"), 1, "the broken connection was replaced within the call");
    world.refresh().await;
    world.advance(60_000);
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["after", "before"]);
}

#[tokio::test]
async fn a_redis_that_comes_back_is_found_within_a_second() {
    let mut world = World::new().await;
    world.redis.stop();
    world.add(task("a", 0)).await;
    world.redis.launch();
    let started = Instant::now();
    until("Redis found again", async || world.get("/health").await.data()["redis"] == "ok").await;
    assert!(started.elapsed() < Duration::from_secs(5));
    world.add(task("b", 0)).await;
    assert_eq!(world.redis.places_of("b"), 1);
}

#[tokio::test]
async fn forgotten_scripts_are_sent_again_also_inside_a_pipeline() {
    let world = World::new().await;
    // A batch over many queues is one pipeline with a script for each; so are the ticks' loads.
    let tasks: Vec<Value> =
        (0..40).map(|n| json!({"taskId": format!("a{n}"), "taskType": "t", "priority": n, "delay": 0})).collect();
    world.add(Value::Array(tasks)).await;
    for (lost, loaded) in [("SCRIPT FLUSH", 0), ("FLUSHALL", 40)] {
        world.redis.run(lost);
        world.redis.run("SCRIPT FLUSH");
        let report = world.recover().await;
        assert_eq!(report.load.loaded, loaded, "{lost}");
        world.redis.run("SCRIPT FLUSH");
        world.refresh().await;
    }
    world.redis.run("SCRIPT FLUSH");
    let polled = world.poll("t", 100).await;
    assert_eq!(polled.len(), 40);
    world.redis.run("SCRIPT FLUSH");
    let all: Vec<Value> =
        polled.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]})).collect();
    let acked = world.call("POST", "/api/v1/task/ack", Value::Array(all)).await;
    assert!(acked.data().as_array().expect("an array").iter().all(|item| item["ok"] == true));
    world.recover().await;
    assert!(world.redis.keys().is_empty());
}

#[tokio::test]
async fn without_redis_a_poll_finds_the_one_free_task_behind_many_leased_ones() {
    let mut world = World::with(Settings { index_shards: 2, ..Settings::default() }).await;
    world.add_many("held", 1_200, 0).await;
    assert_eq!(world.drain("t/0").await.len(), 1_200);
    world.advance(10);
    world.add(task("free", 0)).await;
    world.add(json!({"taskId": "other", "taskType": "u", "delay": 0})).await;
    world.redis.stop();
    assert_eq!(ids(&poll(&world.service, json!({"max": 10})).await), ["free"]);
    assert!(poll(&world.service, json!({"max": 10})).await.is_empty());
    world.advance(30_000);
    assert_eq!(poll(&world.service, json!({"max": 100})).await.len(), 100);
}

#[tokio::test]
async fn a_poll_of_a_hundred_without_redis_gives_all_it_leases_though_dynamodb_is_slow() {
    for trouble in ["stopped", "silent"] {
        let mut world = World::new().await;
        world.add_many("a", 100, 0).await;
        let proxy = Proxy::before(&world.endpoint).await;
        let service = world.through(&proxy.url()).await;
        proxy.set(Fault::Slow(Duration::from_millis(25)));
        let pid = world.redis.pid();
        if trouble == "stopped" {
            world.redis.stop()
        } else {
            world.redis.signal_pid(pid, "STOP")
        }
        let polled = poll(&service, json!({"max": 100, "leaseSeconds": 600})).await;
        assert_eq!(polled.len(), 100, "{trouble}");
        if trouble == "silent" {
            world.redis.signal_pid(pid, "CONT");
        }
    }
}

#[tokio::test]
async fn with_dynamodb_down_or_silent_every_call_answers_503_in_time_and_works_after() {
    for (fault, also_redis) in
        [(Fault::Refusing, false), (Fault::Silent, false), (Fault::Silent, true), (Fault::Refusing, true)]
    {
        let world = World::new().await;
        world.add_many("held", 2, 0).await;
        let held = world.poll("t/0", 2).await;
        world.add_many("due", 3, 0).await;
        for task_type in ["u", "v"] {
            world.add(json!({"taskId": task_type, "taskType": task_type, "delay": 0})).await;
        }
        let proxy = Proxy::before(&world.endpoint).await;
        let service: Arc<Service> = world.through(&proxy.url()).await;
        // It has connections to both stores when the trouble begins.
        assert_eq!(bounded(&service, "GET", "/health", Value::Null).await.status, 200);
        proxy.set(fault);
        let pid = world.redis.pid();
        if also_redis {
            world.redis.signal_pid(pid, "STOP");
        }
        let token = json!({"leaseToken": held[0]["leaseToken"]});
        let calls = [
            ("POST", "/api/v1/task/add", task("new", 0)),
            ("DELETE", "/api/v1/task/cancel/due0", Value::Null),
            ("GET", "/api/v1/task/cancel/due0", Value::Null),
            ("POST", "/api/v1/task/ack/held0", token.clone()),
            ("POST", "/api/v1/task/nack/held0", token.clone()),
            ("POST", "/api/v1/task/extend/held0", token),
            ("POST", "/api/v1/task/reschedule/due0", json!({"delay": 5})),
            ("POST", "/api/v1/task/poll/t/0", json!({"max": 10})),
            ("POST", "/api/v1/task/poll/u", json!({"max": 10})),
            ("GET", "/api/v1/task/poll/v/0", Value::Null),
            ("GET", "/api/v1/task/due0", Value::Null),
            ("GET", "/api/v1/task", Value::Null),
            ("GET", "/health", Value::Null),
        ];
        let calls = calls.iter().map(|(method, path, body)| bounded(&service, method, path, body.clone()));
        for reply in futures::future::join_all(calls).await {
            assert_eq!(reply.status, 503, "{fault:?} {also_redis}: {}", reply.body);
        }
        proxy.set(Fault::None);
        if also_redis {
            world.redis.signal_pid(pid, "CONT");
        }
        let reply = bounded(&service, "GET", "/api/v1/task/due1", Value::Null).await;
        assert_eq!(reply.data()["status"], "scheduled", "{fault:?}");
        // What the failed polls took in Redis comes back when those leases end.
        world.advance(60_000);
        world.recover().await;
        let polled = sorted_ids(&world.drain("t/0").await);
        assert!(["due1", "due2"].iter().all(|id| polled.contains(&(*id).to_owned())), "{fault:?}: {polled:?}");
    }
}

#[tokio::test]
async fn writes_whose_answer_was_lost_count_as_done() {
    let world = World::new().await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    let lossy = async |method: &str, path: &str, body: Value| {
        proxy.lose_answers(1);
        let reply = bounded(&service, method, path, body).await;
        assert_eq!(proxy.answers_to_lose(), 0, "{path}");
        reply
    };
    for id in ["acked", "nacked", "cancelled", "dead"] {
        let added = lossy("POST", "/api/v1/task/add", task(id, 0)).await;
        assert_eq!((added.data(), &added.body["created"]), (&json!(id), &json!(true)));
        let polled = lossy("POST", "/api/v1/task/poll/t/0", json!({})).await;
        let held = polled.data()[0].clone();
        assert_eq!((&held["taskId"], &held["attempt"]), (&json!(id), &json!(1)), "{}", polled.body);
        let token = json!({"leaseToken": held["leaseToken"]});
        let reply = match id {
            "acked" => lossy("POST", "/api/v1/task/ack/acked", token).await,
            "cancelled" => lossy("DELETE", "/api/v1/task/cancel/cancelled", Value::Null).await,
            _ => {
                let body = json!({"leaseToken": held["leaseToken"], "permanent": id == "dead", "delay": 60_000});
                lossy("POST", &format!("/api/v1/task/nack/{id}"), body).await
            }
        };
        assert_eq!(reply.data(), true, "{id}");
        assert_eq!(world.redis.places_of(id), usize::from(id == "nacked"), "{id}");
    }
    for (id, status) in [("acked", "succeeded"), ("nacked", "scheduled"), ("cancelled", "cancelled"), ("dead", "dead")]
    {
        let task = world.task(id).await;
        assert_eq!((&task["status"], &task["attempts"]), (&json!(status), &json!(1)), "{task}");
    }
    let moved = lossy("POST", "/api/v1/task/reschedule/nacked", json!({"delay": 1_000})).await;
    assert_eq!(moved.data()["executeTime"], world.now() + 1_000);
    let redriven = lossy("POST", "/api/v1/task/redrive/dead", Value::Null).await;
    assert_eq!(redriven.data()["status"], "scheduled");
    // The documented poll takes a task for good; a lost answer of the store does not lose it.
    let taken = lossy("GET", "/api/v1/task/poll/t/0", Value::Null).await;
    assert_eq!(taken.data()["taskId"], "dead", "{}", taken.body);
}

#[tokio::test]
async fn writes_whose_answers_are_lost_lose_no_task_of_a_batch() {
    let world = World::new().await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    // Fewer than the tries of one request: none can lose all of its answers.
    proxy.lose_answers(2);
    let tasks: Vec<Value> = (0..100).map(|n| task(&format!("a{n}"), 0)).collect();
    let added = bounded(&service, "POST", "/api/v1/task/add", Value::Array(tasks)).await;
    assert!(added.data().as_array().expect("an array").iter().all(|item| item["created"] == true), "{}", added.body);
    proxy.lose_answers(2);
    let polled = poll(&service, json!({"max": 100})).await;
    assert!(polled.iter().all(|task| task["attempt"] == 1));
    let more = poll(&service, json!({"max": 100})).await;
    let held = world.get("/api/v1/task?status=leased&limit=100").await;
    let held = held.data()["tasks"].as_array().expect("an array").len();
    assert_eq!(polled.len() + more.len(), held, "every lease was told to its holder");
}

#[tokio::test]
async fn ticks_with_redis_silent_end_in_time_and_leave_no_lock_for_long() {
    let world = World::new().await;
    world.add(task("a", 1_000)).await;
    let pid = world.redis.pid();
    world.redis.signal_pid(pid, "STOP");
    for _ in 0..2 {
        let started = Instant::now();
        assert!(world.service.refresh(&world.tick()).await.is_err());
        assert!(world.service.recover(&world.tick()).await.is_err());
        assert!(started.elapsed() < 2 * LIMIT);
    }
    world.redis.signal_pid(pid, "CONT");
    world.advance(1_000);
    // A lock that was asked for in vain may have been given when Redis woke up; it ends by itself.
    world.redis.run("DEL lock:refresh");
    let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    assert!(!service.refresh(&world.tick()).await.expect("a refresh").locked);
    assert_eq!(ids(&poll(&service, json!({})).await), ["a"]);
}
