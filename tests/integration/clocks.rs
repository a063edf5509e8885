//! Processes whose clocks are apart: as early as the fastest clock says and no earlier, and nothing is lost.
//!
//! See 'Clock and skew' in ARCHITECTURE.md: "never early" is by the clock of the function that answers the poll.

use std::sync::Arc;

use punctual_core::clock::{Clock, ManualClock};
use punctual_core::service::Service;
use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, task};

/// How far the clocks are apart.
const SKEW_MS: i64 = 90_000;

/// A process whose clock is ahead of the world's by `ahead` milliseconds, and that clock.
async fn skewed(world: &World, ahead: i64) -> (Arc<Service>, ManualClock) {
    let clock = ManualClock::new(Timestamp::from_ms(world.now() + ahead));
    (world.another(Clock::Manual(clock.clone()), &Settings::default()).await, clock)
}

async fn poll(service: &Service, body: Value) -> Vec<Value> {
    let reply = call(service, "POST", "/api/v1/task/poll/t/0", body).await;
    reply.data().as_array().expect("an array").clone()
}

async fn settle(service: &Service, verb: &str, task: &Value, mut body: Value) -> Value {
    body["leaseToken"] = task["leaseToken"].clone();
    let id = task["taskId"].as_str().expect("an id");
    call(service, "POST", &format!("/api/v1/task/{verb}/{id}"), body).await.data().clone()
}

async fn tick(world: &World, service: &Service) {
    refresh::handle(service, &world.tick()).await.expect("a refresh");
    recover::handle(service, &world.tick()).await.expect("a recovery");
}

#[tokio::test]
async fn ticks_with_a_clock_apart_make_nothing_early_and_nothing_late() {
    for ahead in [SKEW_MS, -SKEW_MS] {
        let world = World::new().await;
        let (ticking, ticking_clock) = skewed(&world, ahead).await;
        world.add(task("soon", 40_000)).await;
        world.add(task("later", 100_000)).await;
        world.add(task("far", 600_000)).await;
        let advance = |ms: u32| {
            world.advance(ms);
            ticking_clock.advance(ms);
        };
        let mut given = Vec::new();
        for due in [40_000, 100_000, 600_000] {
            let left = |ms: i64| u32::try_from(tests::START_MS + due - world.now() - ms).expect("ahead");
            // Each minute a tick, and one just before.
            while left(0) > 60_000 {
                advance(60_000);
                tick(&world, &ticking).await;
            }
            advance(left(1));
            tick(&world, &ticking).await;
            assert!(poll(&world.service, json!({"max": 10})).await.is_empty(), "{ahead}: early");
            advance(1);
            let polled = poll(&world.service, json!({"max": 10})).await;
            assert_eq!(polled.len(), 1, "{ahead}: late");
            settle(&world.service, "ack", &polled[0], json!({})).await;
            given.extend(ids(&polled));
        }
        assert_eq!(given, ["soon", "later", "far"]);
    }
}

#[tokio::test]
async fn a_tick_ahead_ends_no_lease_early_for_those_who_poll() {
    for ahead in [SKEW_MS, -SKEW_MS] {
        let world = World::new().await;
        let (ticking, _) = skewed(&world, ahead).await;
        world.add(json!({"taskId": "a", "taskType": "t", "delay": 0, "maxAttempts": 2})).await;
        let held = world.poll("t/0", 1).await;
        tick(&world, &ticking).await;
        world.advance(29_999);
        tick(&world, &ticking).await;
        assert!(world.poll("t/0", 1).await.is_empty(), "{ahead}: two leases");
        // Its holder is in time.
        assert_eq!(world.settle("extend", &held[0], json!({"leaseSeconds": 30})).await.data(), true);
        world.advance(30_000);
        let again = world.poll("t/0", 1).await;
        assert_eq!(ids(&again), ["a"], "{ahead}: late");
        assert_eq!(world.settle("ack", &again[0], json!({})).await.data(), true);
        assert_eq!(world.redis.places_of("a"), 0);
    }
}

#[tokio::test]
async fn a_poll_ahead_is_early_by_its_skew_and_no_more() {
    let world = World::new().await;
    let (fast, clock) = skewed(&world, SKEW_MS).await;
    world.add(task("a", 200_000)).await;
    let advance = |ms: u32| {
        world.advance(ms);
        clock.advance(ms);
    };
    advance(109_999);
    assert!(poll(&fast, json!({})).await.is_empty());
    advance(1);
    let first = poll(&fast, json!({"leaseSeconds": 60})).await;
    assert_eq!(ids(&first), ["a"], "due by the clock of the process that answers");
    // For the slower one the lease lasts longer by the skew, and then it ends.
    assert!(world.poll("t/0", 1).await.is_empty());
    advance(149_999);
    assert!(world.poll("t/0", 1).await.is_empty());
    advance(1);
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn nothing_is_lost_whoever_is_ahead() {
    for ahead in [SKEW_MS, -SKEW_MS] {
        let world = World::new().await;
        let (api, api_clock) = skewed(&world, ahead).await;
        let (ticking, ticking_clock) = skewed(&world, -ahead).await;
        for n in 0..30 {
            let body = json!({"taskId": format!("a{n}"), "taskType": "t", "delay": n * 20_000});
            let reply = call(&api, "POST", "/api/v1/task/add", body).await;
            assert_eq!(reply.body["created"], true);
        }
        let mut done = Vec::new();
        for minute in 0..40 {
            for clock in [&world.clock, &api_clock, &ticking_clock] {
                clock.advance(30_000);
            }
            if minute % 7 == 3 {
                world.redis.run("FLUSHALL");
            }
            tick(&world, &ticking).await;
            // Polls by two processes that disagree on the time; every third task fails once.
            for service in [&api, &world.service] {
                let now = service.clock.now().as_ms();
                for task in poll(service, json!({"max": 10, "leaseSeconds": 300})).await {
                    assert!(task["executeTime"].as_i64().expect("a time") <= now, "early: {task}");
                    let retry = task["attempt"] == 1 && done.len() % 3 == 0;
                    if retry {
                        settle(service, "nack", &task, json!({"delay": 1_000})).await;
                    } else {
                        settle(service, "ack", &task, json!({})).await;
                        done.extend(ids(&[task]));
                    }
                }
            }
        }
        done.sort();
        let mut all: Vec<String> = (0..30).map(|n| format!("a{n}")).collect();
        all.sort();
        assert_eq!(done, all, "ahead by {ahead}");
    }
}
