//! The scenarios of faults seen elsewhere, by their number: lost, late, duplicate and starved deliveries.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use futures::future::join_all;
use punctual_core::clock::{Clock, ManualClock};
use punctual_core::table::connect_to;
use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, sorted_ids, task};

async fn cancel(world: &World, id: &str) -> Value {
    world.call("DELETE", &format!("/api/v1/task/cancel/{id}"), Value::Null).await.data().clone()
}

#[tokio::test]
async fn scenario_01_a_due_task_that_no_tick_has_moved_is_cancelled_for_good() {
    for ticked in [false, true] {
        let world = World::new().await;
        world.add(task("a", 20_000)).await;
        world.advance(30_000);
        if ticked {
            world.refresh().await;
            assert_eq!(world.redis.integer("LLEN topic:{t_0.0}"), 1);
        }
        assert_eq!(cancel(&world, "a").await, true);
        assert_eq!(world.redis.places_of("a"), 0);
        world.refresh().await;
        world.recover().await;
        assert!(world.poll("t/0", 10).await.is_empty());
        assert_eq!(world.status("a").await, "cancelled");
    }
}

#[tokio::test]
async fn scenario_02_a_consumers_old_lease_is_no_lease() {
    let world = World::new().await;
    world.add(task("x", 0)).await;
    let poll = async || {
        let reply = world.call("POST", "/api/v1/task/poll/t/0", json!({"leaseSeconds": 5})).await;
        reply.data()[0].clone()
    };
    let first = poll().await;
    world.advance(5_000);
    world.recover().await;
    let second = poll().await;
    for verb in ["extend", "nack", "ack"] {
        assert_eq!(world.settle(verb, &first, json!({})).await.error(), (409, "lease_lost"), "{verb}");
    }
    assert_eq!(world.task("x").await["leaseUntil"], second["leaseUntil"]);
    assert_eq!(world.settle("ack", &second, json!({})).await.data(), true);
    assert_eq!(world.task("x").await["attempts"], 2);
}

#[tokio::test]
async fn scenario_03_siblings_of_one_moment_do_not_take_each_other_along() {
    let world = World::new().await;
    let due = world.now() + 1_000;
    for id in ["A", "B", "C"] {
        world.add(json!({"taskId": id, "taskType": "t", "executeTime": due, "parameters": {"same": true}})).await;
    }
    world.advance(1_000);
    let held = world.poll("t/0", 1).await.remove(0);
    assert_eq!(held["taskId"], "A");
    world.refresh().await;
    world.settle("nack", &held, json!({"delay": 0})).await.data();
    cancel(&world, "B").await;
    assert_eq!(["A", "B", "C"].map(|id| world.redis.places_of(id)), [1, 0, 1]);
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["A", "C"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn scenario_04_reloads_at_once_double_and_lose_nothing() {
    let world = World::new().await;
    world.add(task("x", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["x"]);
    world.add(task("y", 0)).await;
    for round in 0..10 {
        let cold = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
        let z = task(&format!("z{round}"), 0);
        let tick = world.tick();
        let (a, b, added, c) = tokio::join!(
            world.service.refresh(&tick),
            cold.refresh(&tick),
            world.call("POST", "/api/v1/task/add", z),
            cold.recover(&tick)
        );
        a.expect("ok");
        b.expect("ok");
        c.expect("ok");
        assert_eq!(added.status, 200);
        if round % 3 == 0 {
            world.redis.run("FLUSHALL");
        }
    }
    world.refresh().await;
    let mut expected: Vec<String> = (0..10).map(|n| format!("z{n}")).collect();
    expected.insert(0, "y".to_owned());
    assert_eq!(sorted_ids(&world.drain("t/0").await), expected);
    world.advance(30_000);
    assert!(world.poll_ids("t/0", 100).await.contains(&"x".to_owned()));
}

#[tokio::test]
async fn scenario_05_a_tick_that_dies_half_way_loses_and_doubles_nothing() {
    const COUNT: usize = 3_000;
    let world = World::new().await;
    world.import_many("a", COUNT, 600_000).await;
    world.advance(600_000);
    for after_ms in [1, 20, 57, 150, 300] {
        let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
        let tick = world.tick();
        // Dropped in the middle, as a killed process is.
        let _ = tokio::time::timeout(Duration::from_millis(after_ms), service.refresh(&tick)).await;
        let _ = tokio::time::timeout(Duration::from_millis(after_ms), service.recover(&tick)).await;
    }
    // The killed one's lock ends by itself.
    assert!(world.redis.integer("PTTL lock:refresh") != -1);
    world.redis.run("DEL lock:refresh");
    while world.refresh().await.load.more {}
    while world.recover().await.load.more {}
    let lists = world.redis.integer("LLEN topic:{t_0.0}") + world.redis.integer("ZCARD future:{t_0.0}");
    assert_eq!(lists, COUNT as i64);
    let mut seen = BTreeSet::new();
    for _ in 0..5 {
        for id in world.poll_ids("t/0", 100).await {
            assert!(seen.insert(id));
        }
    }
    assert_eq!(seen.len(), 500);
}

#[tokio::test]
async fn scenario_06_seconds_sent_by_mistake_and_times_before_the_epoch_are_refused_or_due_at_once() {
    let world = World::new().await;
    for wrong in [json!(0), json!(-1), json!(i64::MIN), json!(1_700_000_000)] {
        let reply = world.call("POST", "/api/v1/task/add", json!({"taskType": "t", "executeTime": wrong})).await;
        assert_eq!(reply.error(), (400, "invalid"));
        let message = reply.body["errorMessage"].as_str().expect("a text");
        assert!(message.contains("executeTime") && message.contains("millisecond"), "{message}");
    }
    assert!(world.redis.keys().is_empty());
    world.add(json!({"taskId": "old", "taskType": "t", "executeTime": 999_999_999_000_i64})).await;
    assert_eq!(world.poll_ids("t/0", 10).await, ["old"]);
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.task("old").await["executeTime"], 999_999_999_000_i64);
}

#[tokio::test]
async fn scenario_07_many_cancelled_tasks_before_large_due_ones_are_no_end_of_the_page() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    let cancelled = world.add_many("cancelled", 400, 0).await;
    for some in cancelled.chunks(20) {
        join_all(some.iter().map(|id| cancel(&world, id))).await;
    }
    let large = "x".repeat(8_000);
    for batch in 0..6 {
        let tasks: Vec<Value> = (0..50)
            .map(|n| json!({"taskId": format!("due{batch}-{n}"), "taskType": "t", "delay": 0, "parameters": large}))
            .collect();
        world.add(Value::Array(tasks)).await;
    }
    world.redis.run("FLUSHALL");
    assert_eq!(world.refresh().await.load.loaded, 300);
    assert_eq!(world.drain("t/0").await.len(), 300);
}

#[tokio::test]
async fn scenario_08_a_task_that_the_index_shows_late_is_found_though_overdue() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    world.add(task("a", 1_000)).await;
    world.redis.run("FLUSHALL");
    world.spoil("a", "bucket", None).await;
    world.refresh().await;
    world.advance(10_000);
    world.refresh().await;
    world.spoil("a", "bucket", Some(AttributeValue::S("pending#0".to_owned()))).await;
    world.refresh().await;
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn scenario_09_a_cancel_of_a_running_task_is_not_overwritten_by_its_holder_or_recovery() {
    for how in ["nack", "expire"] {
        let world = World::new().await;
        world.add(task("x", 0)).await;
        let held = world.poll("t/0", 1).await.remove(0);
        assert_eq!(cancel(&world, "x").await, true);
        if how == "nack" {
            assert_eq!(world.settle("nack", &held, json!({"delay": 5_000})).await.error(), (409, "lease_lost"));
        }
        world.advance(120_000);
        world.recover().await;
        world.refresh().await;
        assert!(world.poll("t/0", 10).await.is_empty());
        assert_eq!((world.status("x").await.as_str(), world.redis.places_of("x")), ("cancelled", 0), "{how}");
    }
}

#[tokio::test]
async fn scenario_10_more_than_a_page_of_unmovable_entries_hides_nothing_behind_them() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    let corrupt = world.add_many("corrupt", 520, 0).await;
    for id in &corrupt {
        world.spoil(id, "status", None).await;
    }
    world.add(task("valid", 1)).await;
    world.redis.run("FLUSHALL");
    world.advance(1);
    world.refresh().await;
    world.refresh().await;
    assert_eq!(world.poll_ids("t/0", 10).await, ["valid"]);
    // The same in recovery, and with members that are nothing at the head of Redis's own list.
    world.redis.run("FLUSHALL");
    for n in 0..520 {
        world.redis.run(&format!("ZADD lease:{{t_0.0}} {n} nothing{n}"));
    }
    world.advance(30_000);
    world.recover().await;
    assert_eq!(world.poll_ids("t/0", 10).await, ["valid"]);
}

#[tokio::test]
async fn scenario_11_a_lease_that_redis_lost_ends_by_dynamodbs_own_account() {
    for lost in ["DEL lease:{t_0.0}", "FLUSHALL"] {
        let world = World::new().await;
        world.add(task("x", 0)).await;
        assert_eq!(world.poll_ids("t/0", 1).await, ["x"]);
        world.redis.run(lost);
        world.advance(29_999);
        world.recover().await;
        assert!(world.poll("t/0", 1).await.is_empty());
        world.redis.run(lost);
        world.advance(1);
        world.recover().await;
        assert_eq!(world.redis.places_of("x"), 1);
        let polled = world.poll("t/0", 10).await;
        assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["x".to_owned()], &json!(2)));
    }
}

#[tokio::test]
async fn scenario_12_a_cancel_outlives_every_restart() {
    let mut world = World::new().await;
    world.add(task("x", 600_000)).await;
    cancel(&world, "x").await;
    world.redis.stop();
    world.redis.launch();
    let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    service.refresh(&world.tick()).await.expect("a refresh");
    world.advance(660_000);
    service.refresh(&world.tick()).await.expect("a refresh");
    let polled = call(&service, "POST", "/api/v1/task/poll/t/0", json!({})).await;
    assert_eq!(*polled.data(), json!([]));
    assert_eq!(world.status("x").await, "cancelled");
}

#[tokio::test]
async fn scenario_13_priority_holds_after_promotion_and_after_retries() {
    let world = World::new().await;
    for (id, priority) in [("second", 2), ("first", 1)] {
        world.add(json!({"taskId": id, "taskType": "t", "priority": priority, "delay": 2_000})).await;
    }
    world.advance(2_000);
    world.refresh().await;
    for _ in 0..2 {
        let polled = world.poll("t", 10).await;
        assert_eq!(ids(&polled), ["first", "second"]);
        assert_eq!((&polled[0]["priority"], &polled[1]["priority"]), (&json!(1), &json!(2)));
        for task in polled.iter().rev() {
            world.settle("nack", task, json!({"delay": 1_000})).await.data();
        }
        world.advance(1_000);
        world.refresh().await;
    }
}

#[tokio::test]
async fn scenario_14_types_that_look_like_keys_are_kept_apart_or_refused() {
    let world = World::new().await;
    for bad in ["a:b", "{t}", "*", "[ab]", "", "任务", "a b", "..", &"x".repeat(300)] {
        let reply = world.call("POST", "/api/v1/task/add", json!({"taskType": bad, "delay": 0})).await;
        assert_eq!(reply.error(), (400, "invalid"), "{bad}");
    }
    assert!(world.redis.keys().is_empty());
    let queues = [("future_x", 0), ("a_1", 2), ("a", 12), ("a_1_2", 0), ("a", 1), ("a.1", 0), ("a", 0), ("1", 2)];
    for (task_type, priority) in queues {
        let id = format!("{task_type}-{priority}");
        world.add(json!({"taskId": id, "taskType": task_type, "priority": priority, "delay": 0})).await;
    }
    world.refresh().await;
    world.recover().await;
    for (task_type, priority) in queues {
        let polled = world.poll(&format!("{task_type}/{priority}"), 100).await;
        assert_eq!(ids(&polled), [format!("{task_type}-{priority}")]);
        assert_eq!(polled[0]["taskType"], task_type);
    }
}

#[tokio::test]
async fn scenario_24_ticks_that_overlap_make_each_of_two_hundred_tasks_ready_once() {
    let world = World::new().await;
    world.add_many("a", 200, 0).await;
    let other = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    let tick = world.tick();
    let (first, second) = tokio::join!(world.service.refresh(&tick), other.refresh(&tick));
    let moved = first.expect("ok").promoted + second.expect("ok").promoted;
    world.advance(40_000);
    assert_eq!(moved + world.refresh().await.promoted, 200);
    assert_eq!(world.redis.integer("LLEN topic:{t_0.0}"), 200);
    assert_eq!(world.drain("t/0").await.len(), 200);
}

#[tokio::test]
async fn scenario_25_a_task_at_the_edge_of_the_window_depends_on_no_later_reload() {
    let window = Settings::default().window_ms;
    for off in [-1, 0, 1] {
        let world = World::new().await;
        world.add(task("a", window + off)).await;
        // The last moment before a reload that comes a window later.
        world.advance(u32::try_from(window - 1).expect("small"));
        world.refresh().await;
        assert!(world.poll("t/0", 10).await.is_empty() || off == -1);
        world.advance(2);
        let late = world.poll_ids("t/0", 10).await;
        assert!(off == -1 || late == ["a"], "{off}: {late:?}");
    }
}

#[tokio::test]
async fn scenario_26_five_thousand_tasks_of_one_minute_are_ready_after_one_tick() {
    let world = World::new().await;
    world.import_many("a", 5_000, 3_600_000).await;
    world.advance(3_600_000);
    let report = world.refresh().await;
    assert!(!report.load.more);
    let queues = world.get("/api/v1/queues").await;
    assert_eq!(queues.data()[0]["ready"], 5_000);
}

#[tokio::test]
async fn scenario_27_recovery_goes_by_each_tasks_own_lease() {
    let world = World::new().await;
    world.add(task("long", 0)).await;
    let reply = world.call("POST", "/api/v1/task/poll/t/0", json!({"leaseSeconds": 1_800})).await;
    assert_eq!(reply.data()[0]["taskId"], "long");
    world.add(task("extended", 0)).await;
    let held = world.poll("t/0", 1).await.remove(0);
    world.settle("extend", &held, json!({"leaseSeconds": 1_800})).await.data();
    for _ in 0..5 {
        world.advance(300_000);
        world.recover().await;
        world.refresh().await;
        assert!(world.poll("t/0", 10).await.is_empty());
    }
    world.advance(360_000);
    world.recover().await;
    world.recover().await;
    assert_eq!(sorted_ids(&world.poll("t/0", 10).await), ["extended", "long"]);
}

#[tokio::test]
async fn scenario_28_a_task_of_six_hours_from_now_is_held_and_delivered_once() {
    let mut world = World::new().await;
    world.add(task("x", 6 * 3_600_000)).await;
    for step in 0..180 {
        if step % 60 == 59 {
            world.redis.stop();
            world.redis.launch();
        }
        world.refresh().await;
        world.recover().await;
        assert!(world.redis.places_of("x") <= 1);
        assert!(world.poll("t/0", 10).await.is_empty());
        world.advance(120_000);
    }
    let polled = world.poll("t/0", 10).await;
    assert_eq!(ids(&polled), ["x"]);
    world.settle("ack", &polled[0], json!({})).await.data();
    for _ in 0..5 {
        world.advance(60_000);
        world.refresh().await;
        world.recover().await;
        assert!(world.poll("t/0", 10).await.is_empty());
    }
}

#[tokio::test]
async fn scenario_35_tasks_of_one_moment_spread_over_every_shard_and_all_are_read() {
    let world = World::with(Settings { index_shards: 16, ..Settings::default() }).await;
    world.add_many("a", 400, 60_000).await;
    let client = connect_to(&world.endpoint).await;
    let items = client.scan().table_name("tasks").into_paginator().items().send();
    let items = items.try_collect().await.expect("a scan");
    let buckets: BTreeSet<&String> = items.iter().map(|item| item["bucket"].as_s().expect("a text")).collect();
    assert_eq!(buckets.len(), 16);
    world.redis.run("FLUSHALL");
    assert_eq!(world.refresh().await.load.loaded, 400);
}

#[tokio::test]
async fn scenario_37_skewed_clocks_of_api_and_ticks_make_nothing_early_and_nothing_lost() {
    let world = World::new().await;
    let skewed = |ms: i64| Clock::Manual(ManualClock::new(Timestamp::from_ms(world.now() + ms)));
    let ahead = world.another(skewed(90_000), &Settings::default()).await;
    let behind = world.another(skewed(-90_000), &Settings::default()).await;
    let due = world.now() + 120_000;
    let add = json!({"taskId": "x", "taskType": "t", "executeTime": due});
    assert_eq!(call(&ahead, "POST", "/api/v1/task/add", add).await.status, 200);
    for service in [&behind, &ahead] {
        service.refresh(&world.tick()).await.expect("a refresh");
        service.recover(&world.tick()).await.expect("a recovery");
    }
    world.advance(119_999);
    assert!(world.poll("t/0", 1).await.is_empty());
    world.advance(1);
    let held = world.poll("t/0", 1).await.remove(0);
    assert_eq!(held["taskId"], "x");
    // A recovery whose clock is fast does not hand the task to another consumer of the reference clock.
    let fast = world.another(skewed(90_000), &Settings::default()).await;
    fast.recover(&world.tick()).await.expect("a recovery");
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.settle("ack", &held, json!({})).await.data(), true);
}

#[tokio::test]
async fn scenario_40_redis_returns_to_its_baseline_after_many_cycles() {
    let world = World::new().await;
    let memory = || {
        let info: String = redis::from_redis_value(world.redis.run("INFO memory")).expect("a text");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:")).expect("INFO tells it");
        line.trim().parse::<i64>().expect("a number")
    };
    let mut baseline = 0;
    for cycle in 0..12 {
        let prefix = format!("c{cycle}-");
        world.add_many(&prefix, 40, 0).await;
        world.add_many(&format!("later{cycle}-"), 10, 200_000).await;
        if cycle % 2 == 0 {
            world.refresh().await;
        }
        let polled = world.poll("t/0", 100).await;
        for (n, task) in polled.iter().enumerate() {
            let id = task["taskId"].as_str().expect("an id");
            match n % 4 {
                0 => drop(world.settle("ack", task, json!({})).await.data()),
                1 => drop(cancel(&world, id).await),
                2 => drop(world.settle("nack", task, json!({"permanent": true})).await.data()),
                _ => {}
            }
        }
        world.advance(30_000);
        world.recover().await;
        for task in world.drain("t/0").await {
            world.settle("ack", &task, json!({})).await.data();
        }
        for n in 0..10 {
            cancel(&world, &format!("later{cycle}-{n}")).await;
        }
        world.recover().await;
        assert!(world.redis.keys().is_empty(), "{:?}", world.redis.keys());
        if cycle == 3 {
            baseline = memory();
        }
    }
    assert!(memory() < baseline + 200_000, "{} bytes, {baseline} before", memory());
}
