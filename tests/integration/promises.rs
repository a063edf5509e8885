//! The promises of the design, each by its name.

use std::collections::BTreeSet;

use futures::future::join_all;
use punctual_core::clock::Clock;
use punctual_core::due_index::Partition;
use punctual_core::task::Lane;
use punctual_core::time::Timestamp;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tests::{Fault, Proxy, Settings, World, call, ids, sorted_ids, task};

/// The partition of the tasks that [`task`] makes.
fn partition() -> Partition {
    Partition { lane: Lane { task_type: "t".to_owned(), priority: 0, handler: None }, number: 0 }
}

#[tokio::test]
async fn a_task_is_added_polled_at_its_time_and_acknowledged() {
    let world = World::new().await;
    assert_eq!(world.add(task("a", 20_000)).await, "a");
    world.advance(19_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 1);
    assert_eq!(polled[0]["attempt"], 1);
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true);
    assert_eq!(world.status("a").await, "succeeded");
    assert_eq!(world.redis.places_of("a"), 0);
    assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true);
}

// 1. Durable.

#[tokio::test]
async fn durable_a_task_is_delivered_after_redis_lost_everything() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.add(task(id, 20_000)).await;
    }
    world.redis.run("FLUSHALL");
    world.advance(20_000);
    let report = world.refresh().await;
    assert_eq!(report.load.loaded, 3);
    let mut ids = world.poll_ids("t/0", 10).await;
    ids.sort();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[tokio::test]
async fn on_time_a_poll_needs_no_tick_though_redis_was_emptied_a_moment_ago() {
    let world = World::new().await;
    for id in ["a", "b"] {
        world.add(task(id, 20_000)).await;
    }
    world.redis.run("FLUSHALL");
    world.advance(19_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll("t/0", 10).await.len(), 2);
    assert!(world.poll("t/0", 10).await.is_empty());
}

#[tokio::test]
async fn on_time_a_task_from_beyond_the_window_comes_though_no_refresh_ever_ran() {
    let world = World::new().await;
    world.add(task("a", 1_800_000)).await;
    world.advance(1_799_999);
    assert!(world.poll("t", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t", 10).await, ["a"]);
}

#[tokio::test]
async fn durable_either_tick_alone_brings_a_forgotten_due_task_back() {
    for tick in ["refresh", "recover"] {
        let world = World::new().await;
        world.add(task("a", 1_000)).await;
        world.redis.run("FLUSHALL");
        world.advance(1_000);
        match tick {
            "refresh" => {
                world.refresh().await;
            }
            _ => {
                world.recover().await;
            }
        }
        assert_eq!(world.poll_ids("t/0", 10).await, ["a"], "{tick}");
    }
}

#[tokio::test]
async fn durable_a_task_added_while_redis_was_down_is_delivered_when_it_is_back() {
    let mut world = World::new().await;
    world.redis.stop();
    world.add(task("a", 1_000)).await;
    world.redis.launch();
    world.advance(1_000);
    // The process may let a Redis that has just failed rest for a moment; a new one does not know of that.
    let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    service.refresh(&world.tick()).await.expect("a refresh");
    let polled = call(&service, "POST", "/api/v1/task/poll/t/0", json!({})).await;
    assert_eq!(ids(polled.data().as_array().expect("an array")), ["a"]);
}

#[tokio::test]
async fn durable_tasks_in_every_state_survive_a_redis_restarted_empty() {
    let mut world = World::new().await;
    world.add_many("leased", 5, 0).await;
    let leased = world.poll("t/0", 10).await;
    world.add_many("ready", 5, 0).await;
    world.refresh().await;
    world.add_many("scheduled", 5, 60_000).await;
    world.add_many("far", 5, 3_600_000).await;
    world.redis.stop();
    world.redis.launch();
    let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    let poll = async || {
        let reply = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 100})).await;
        sorted_ids(reply.data().as_array().expect("an array"))
    };
    service.refresh(&world.tick()).await.expect("a refresh");
    assert_eq!(poll().await, ["ready0", "ready1", "ready2", "ready3", "ready4"]);
    for task in &leased {
        let id = task["taskId"].as_str().expect("an id");
        let body = json!({"leaseToken": task["leaseToken"]});
        let reply = call(&service, "POST", &format!("/api/v1/task/ack/{id}"), body).await;
        assert_eq!(reply.data(), true);
    }
    world.advance(3_600_000);
    service.recover(&world.tick()).await.expect("a recovery");
    assert_eq!(poll().await.len(), 15, "5 whose lease ran out, 5 that became due, 5 from afar");
}

#[tokio::test]
async fn durable_no_task_is_lost_when_a_random_half_of_the_keys_is_deleted() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = rand::rngs::StdRng::seed_from_u64(seed);
    let world = World::new().await;
    let mut expected = BTreeSet::new();
    for priority in 0..6 {
        for (kind, delay) in [("due", 0), ("soon", 30_000), ("later", 200_000)] {
            for n in 0..4 {
                let id = format!("{kind}-{priority}-{n}");
                world.add(json!({"taskId": id, "taskType": "t", "priority": priority, "delay": delay})).await;
                expected.insert(id);
            }
        }
        world.poll(&format!("t/{priority}"), 2).await;
    }
    world.refresh().await;
    for _ in 0..5 {
        let mut keys = world.redis.keys();
        keys.shuffle(&mut rng);
        for key in &keys[..keys.len().div_ceil(2)] {
            world.redis.run(&format!("DEL {key}"));
        }
        match rng.random_range(0..3) {
            0 => {
                world.refresh().await;
            }
            1 => {
                world.recover().await;
            }
            _ => {}
        }
        world.advance(10_000);
    }
    world.advance(200_000);
    world.recover().await;
    world.refresh().await;
    let mut delivered = BTreeSet::new();
    for priority in 0..6 {
        for id in ids(&world.drain(&format!("t/{priority}")).await) {
            assert!(delivered.insert(id.clone()), "{id} came twice, seed {seed}");
        }
    }
    assert_eq!(delivered, expected, "seed {seed}");
}

#[tokio::test]
async fn durable_everything_goes_on_when_redis_forgets_its_scripts() {
    let world = World::new().await;
    let forget = || world.redis.run("SCRIPT FLUSH");
    world.add_many("a", 3, 0).await;
    forget();
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 3);
    forget();
    assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true);
    forget();
    assert_eq!(world.settle("nack", &polled[1], json!({"delay": 0})).await.data(), true);
    forget();
    assert_eq!(world.call("DELETE", "/api/v1/task/cancel/a2", Value::Null).await.data(), true);
    forget();
    world.refresh().await;
    forget();
    world.recover().await;
    forget();
    assert_eq!(world.poll_ids("t/0", 10).await.len(), 1);
    assert_eq!(world.redis.places_of("a0") + world.redis.places_of("a2"), 0);
}

// 2. Never early.

#[tokio::test]
async fn never_early_whatever_redis_says() {
    let world = World::new().await;
    for (n, lie) in ["ZADD future:{t_0.0} 0 ", "RPUSH topic:{t_0.0} ", "ZADD lease:{t_0.0} 5 "].iter().enumerate() {
        let id = format!("a{n}");
        world.add(task(&id, 40_000)).await;
        world.redis.run(&format!("{lie}{id}"));
        world.advance(39_999);
        for method in ["GET", "POST"] {
            let polled = world.call(method, "/api/v1/task/poll/t/0", Value::Null).await;
            assert!(polled.data().is_null() || *polled.data() == json!([]), "{lie}: {}", polled.body);
        }
        world.advance(1);
        let polled = world.poll("t/0", 10).await;
        assert_eq!(ids(&polled), [id], "{lie}");
        world.settle("ack", &polled[0], json!({})).await.data();
    }
}

#[tokio::test]
async fn never_early_without_redis_either() {
    let mut world = World::new().await;
    world.add(task("a", 5_000)).await;
    world.redis.stop();
    world.advance(4_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn never_early_after_a_nack_or_a_reschedule() {
    let world = World::new().await;
    world.add(task("nacked", 0)).await;
    let polled = world.poll("t/0", 1).await;
    world.settle("nack", &polled[0], json!({"delay": 7_000})).await.data();
    world.add(task("moved", 0)).await;
    world.refresh().await;
    assert_eq!(world.redis.places_of("moved"), 1);
    world.call("POST", "/api/v1/task/reschedule/moved", json!({"delay": 7_000})).await.data();
    for id in ["nacked", "moved"] {
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} {id}"));
        world.redis.run(&format!("ZADD future:{{t_0.0}} 1 {id}"));
    }
    world.advance(6_999);
    world.refresh().await;
    world.recover().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["moved", "nacked"]);
}

// 3. On time.

#[tokio::test]
async fn on_time_polls_need_no_tick_at_all() {
    let world = World::new().await;
    world.add(task("due", 60_000)).await;
    world.advance(60_000);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(ids(&polled), ["due"]);
    // The lease ends after 30 s, to the millisecond.
    world.advance(29_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    let again = world.poll("t/0", 10).await;
    assert_eq!((ids(&again), &again[0]["attempt"]), (vec!["due".to_owned()], &json!(2)));
    // So does the time until the next attempt.
    world.settle("nack", &again[0], json!({"delay": 1_234})).await.data();
    world.advance(1_233);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 10).await, ["due"]);
}

#[tokio::test]
async fn on_time_a_task_from_beyond_the_window_is_loaded_before_it_is_due() {
    let world = World::new().await;
    world.add(task("far", 3_600_000)).await;
    assert_eq!(world.redis.places_of("far"), 0);
    world.advance(3_600_000 - 60_000);
    world.refresh().await;
    world.advance(59_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 10).await, ["far"]);
}

#[tokio::test]
async fn in_order_tasks_come_as_they_became_due_and_an_ended_lease_comes_last() {
    let world = World::new().await;
    world.add(task("poison", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["poison"]);
    for (id, delay) in [("d", 3_000), ("b", 1_000), ("c", 2_000), ("a", 0)] {
        world.add(task(id, delay)).await;
    }
    world.advance(30_000);
    let mut order = Vec::new();
    while let [task] = &world.poll("t/0", 1).await[..] {
        order.push(task["taskId"].as_str().expect("an id").to_owned());
        world.settle("ack", task, json!({})).await.data();
    }
    assert_eq!(order, ["a", "b", "c", "d", "poison"]);
}

#[tokio::test]
async fn in_order_a_retry_stands_at_its_new_time() {
    let world = World::new().await;
    world.add(task("retried", 0)).await;
    let polled = world.poll("t/0", 1).await;
    world.settle("nack", &polled[0], json!({"delay": 1_500})).await.data();
    world.add(task("before", 1_000)).await;
    world.add(task("after", 2_000)).await;
    world.advance(2_000);
    assert_eq!(world.poll_ids("t/0", 10).await, ["before", "retried", "after"]);
}

#[tokio::test]
async fn in_order_the_most_urgent_priority_of_a_type_comes_first() {
    let world = World::new().await;
    for (id, priority, delay) in [("low", 200, 0), ("middle", 7, 500), ("high", 0, 1_000), ("other", 0, 0)] {
        let task_type = if id == "other" { "u" } else { "t" };
        world.add(json!({"taskId": id, "taskType": task_type, "priority": priority, "delay": delay})).await;
    }
    world.advance(1_000);
    assert_eq!(world.poll_ids("t", 2).await, ["high", "middle"]);
    assert_eq!(world.poll_ids("t", 2).await, ["low"]);
    assert!(world.poll("t", 2).await.is_empty());
}

// 4. One live lease.

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_live_lease_of_twenty_polls_at_once_one_gets_the_task() {
    let world = World::new().await;
    let other = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    for round in 0..5 {
        let id = format!("a{round}");
        world.add(task(&id, 0)).await;
        // Redis offers it to everyone.
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} {id} {id} {id} {id} {id} {id}"));
        world.redis.run(&format!("ZADD lease:{{t_0.0}} 0 {id}"));
        let polls = (0..20).map(|n| {
            let service = if n % 2 == 0 { &world.service } else { &other };
            call(service, "POST", "/api/v1/task/poll/t/0", json!({"max": 3}))
        });
        let polled = join_all(polls).await;
        let got: Vec<Value> =
            polled.iter().flat_map(|reply| reply.data().as_array().expect("an array").clone()).collect();
        assert_eq!(ids(&got), std::slice::from_ref(&id));
        assert_eq!(world.task(&id).await["attempts"], 1);
        world.settle("ack", &got[0], json!({})).await.data();
    }
}

#[tokio::test]
async fn one_live_lease_is_kept_when_redis_forgets_it() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
    for loss in ["FLUSHALL", "DEL lease:{t_0.0}", "ZADD future:{t_0.0} 0 a", "RPUSH topic:{t_0.0} a"] {
        world.redis.run(loss);
        assert!(world.poll("t/0", 1).await.is_empty(), "{loss}");
        world.refresh().await;
        world.recover().await;
        assert!(world.poll("t/0", 1).await.is_empty(), "{loss}");
    }
    assert_eq!(world.task("a").await["attempts"], 1);
    world.advance(30_000);
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn one_live_lease_any_other_token_gets_409_and_changes_nothing() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let first = world.poll("t/0", 1).await.remove(0);
    world.advance(30_000);
    let second = world.poll("t/0", 1).await.remove(0);
    let before = world.task("a").await;
    for stranger in [&first["leaseToken"], &json!("x"), &json!(second["leaseToken"].as_str().map(str::to_lowercase))] {
        if *stranger == second["leaseToken"] {
            continue;
        }
        let task = json!({"taskId": "a", "leaseToken": stranger});
        for (verb, more) in [("ack", json!({})), ("nack", json!({"delay": 0})), ("extend", json!({"leaseSeconds": 9}))]
        {
            let reply = world.settle(verb, &task, more).await;
            assert_eq!(reply.error(), (409, "lease_lost"), "{verb}");
        }
        let batch = world.call("POST", "/api/v1/task/ack", json!([task])).await;
        assert_eq!(batch.data()[0]["error"], "lease_lost");
    }
    assert_eq!(world.task("a").await, before);
    assert_eq!(world.settle("ack", &second, json!({})).await.data(), true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_live_lease_of_an_ack_and_a_nack_at_once_one_decides() {
    let world = World::new().await;
    for round in 0..10 {
        let id = format!("a{round}");
        world.add(task(&id, 0)).await;
        let held = world.poll("t/0", 1).await.remove(0);
        let (acked, nacked) = tokio::join!(
            world.settle("ack", &held, json!({})),
            world.settle("nack", &held, json!({"permanent": true})),
        );
        let cancelled = world.call("DELETE", &format!("/api/v1/task/cancel/{id}"), Value::Null).await;
        assert_eq!(u8::from(acked.status == 200) + u8::from(nacked.status == 200), 1, "{acked:?} {nacked:?}");
        assert_eq!(cancelled.error(), (409, "task_finished"));
        let status = if acked.status == 200 { "succeeded" } else { "dead" };
        assert_eq!(world.status(&id).await, status);
    }
}

// 5. Crash-safe.

#[tokio::test]
async fn crash_safe_a_consumer_that_dies_each_time_leads_to_a_dead_task_that_says_why() {
    let world = World::new().await;
    let mut mortal = task("a", 0);
    mortal["maxAttempts"] = json!(3);
    world.add(mortal).await;
    for attempt in 1..=3 {
        let polled = world.poll("t/0", 1).await;
        assert_eq!(polled[0]["attempt"], attempt);
        world.advance(30_000);
    }
    // No tick ran, the poll itself sees that the attempts are used.
    assert!(world.poll("t/0", 1).await.is_empty());
    let dead = world.task("a").await;
    assert_eq!((&dead["status"], &dead["attempts"]), (&json!("dead"), &json!(3)));
    assert_eq!(dead["lastError"]["attempt"], 3);
    assert!(dead["lastError"]["message"].as_str().is_some_and(|why| why.contains("lease ran out")), "{dead}");
    world.advance(86_400_000);
    world.refresh().await;
    world.recover().await;
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.redis.places_of("a"), 0);
}

#[tokio::test]
async fn crash_safe_recover_ends_leases_of_queues_that_nobody_polls() {
    let world = World::new().await;
    let mut mortal = task("last", 0);
    mortal["maxAttempts"] = json!(1);
    world.add(mortal).await;
    world.add(task("more", 0)).await;
    assert_eq!(world.poll("t/0", 10).await.len(), 2);
    world.advance(29_999);
    let early = world.recover().await;
    assert_eq!((early.ended, early.load.dead), (0, 0));
    world.advance(1);
    let report = world.recover().await;
    assert_eq!((report.ended, report.load.dead), (2, 1));
    assert_eq!(world.status("last").await, "dead");
    let queues = world.get("/api/v1/queues").await;
    assert_eq!((&queues.data()[0]["ready"], &queues.data()[0]["dead"]), (&json!(1), &json!(1)), "{}", queues.body);
    let polled = world.poll("t/0", 10).await;
    assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["more".to_owned()], &json!(2)));
}

#[tokio::test]
async fn crash_safe_a_poll_that_dies_between_the_stores_costs_no_attempt() {
    let world = World::new().await;
    world.add_many("a", 3, 0).await;
    let now = Timestamp::from_ms(world.now());
    // What a poll does first; then its process dies.
    let taken = world.service.index.lease_due(&partition(), now, 10, now.plus_ms(30_000)).await.expect("Redis");
    assert_eq!(taken.ids.len(), 3);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(30_000);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 3);
    assert!(polled.iter().all(|task| task["attempt"] == 1), "{polled:?}");
}

#[tokio::test]
async fn crash_safe_a_dying_poll_with_a_lease_of_twelve_hours_delays_its_tasks_by_a_minute_only() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.set(Fault::Silent);
    let mut dying = Box::pin(call(&service, "POST", "/api/v1/task/poll/t/0", json!({"leaseSeconds": 43_200})));
    // It takes the task in Redis, asks DynamoDB, and is gone.
    while world.redis.run("EXISTS lease:{t_0.0}") == redis::Value::Int(0) {
        let pause = tokio::time::sleep(std::time::Duration::from_millis(5));
        tokio::select! {
            _ = &mut dying => panic!("the poll answered"),
            () = pause => {}
        }
    }
    drop(dying);
    assert!(world.poll("t/0", 1).await.is_empty());
    world.advance(60_000);
    let polled = world.poll("t/0", 1).await;
    assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["a".to_owned()], &json!(1)));
}

#[tokio::test]
async fn crash_safe_a_lease_of_twelve_hours_in_redis_that_dynamodb_does_not_know_is_ended_by_recover() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let now = Timestamp::from_ms(world.now());
    let taken = world.service.index.lease_due(&partition(), now, 10, now.plus_ms(43_200_000)).await.expect("Redis");
    assert_eq!(taken.ids, ["a"]);
    world.advance(60_000);
    world.recover().await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn crash_safe_poison_does_not_starve_the_rest() {
    let world = World::new().await;
    let mut poison = task("poison", 0);
    poison["maxAttempts"] = json!(1_000);
    world.add(poison).await;
    world.add_many("good", 20, 1).await;
    let mut good = 0;
    for _ in 0..40 {
        world.advance(30_000);
        if let [task] = &world.poll("t/0", 1).await[..]
            && task["taskId"] != "poison"
        {
            good += 1;
            world.settle("ack", task, json!({})).await.data();
        }
    }
    assert_eq!(good, 20);
}

#[tokio::test]
async fn crash_safe_a_dead_task_is_redriven_with_all_its_attempts_and_its_last_error() {
    let world = World::new().await;
    let mut mortal = task("a", 0);
    mortal["maxAttempts"] = json!(2);
    world.add(mortal).await;
    let polled = world.poll("t/0", 1).await;
    world.settle("nack", &polled[0], json!({"permanent": true, "error": "no such account"})).await.data();
    assert_eq!(world.status("a").await, "dead");
    assert_eq!(world.redis.places_of("a"), 0);
    world.advance(1_000);
    let redriven = world.call("POST", "/api/v1/task/redrive/a", Value::Null).await;
    assert_eq!(redriven.data()["lastError"]["message"], "no such account");
    for attempt in 1..=2 {
        assert_eq!(world.poll("t/0", 1).await[0]["attempt"], attempt);
        world.advance(30_000);
    }
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.status("a").await, "dead");
}

// 6. Final.

#[tokio::test]
async fn final_a_task_that_is_over_is_never_delivered_again_whatever_redis_says() {
    let world = World::new().await;
    world.add_many("a", 4, 0).await;
    let polled = world.poll("t/0", 3).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    world.settle("nack", &polled[1], json!({"permanent": true})).await.data();
    world.call("DELETE", "/api/v1/task/cancel/a2", Value::Null).await.data();
    assert_eq!(world.get("/api/v1/task/poll/t/0").await.data()["taskId"], "a3");
    let over = ["succeeded", "dead", "cancelled", "succeeded"];
    for lie in ["RPUSH topic:{t_0.0} ", "ZADD future:{t_0.0} 1 ", "ZADD lease:{t_0.0} 1 "] {
        for (n, status) in over.iter().enumerate() {
            world.redis.run(&format!("{lie}a{n}"));
            assert_eq!(world.status(&format!("a{n}")).await, *status);
        }
        match lie.as_bytes()[0] {
            b'R' => {
                world.refresh().await;
            }
            _ => {
                world.recover().await;
            }
        }
        assert!(world.poll("t/0", 10).await.is_empty(), "{lie}");
        assert!(world.get("/api/v1/task/poll/t/0").await.data().is_null(), "{lie}");
    }
    for (n, status) in over.iter().enumerate() {
        let id = format!("a{n}");
        assert_eq!((world.status(&id).await.as_str(), world.redis.places_of(&id)), (*status, 0), "{id}");
    }
}

#[tokio::test]
async fn final_a_task_cancelled_while_it_runs_is_lost_to_its_holder_and_never_retried() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let held = world.poll("t/0", 1).await.remove(0);
    assert_eq!(world.call("POST", "/api/v1/task/cancel/a", Value::Null).await.data(), true);
    for (verb, more) in [("ack", json!({})), ("nack", json!({"delay": 5_000})), ("extend", json!({}))] {
        assert_eq!(world.settle(verb, &held, more).await.error(), (409, "lease_lost"), "{verb}");
    }
    world.advance(3_600_000);
    world.recover().await;
    world.refresh().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.status("a").await, "cancelled");
}

// 7. Idempotent add.

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn idempotent_add_of_twenty_at_once_makes_one_task() {
    let world = World::new().await;
    let replies = join_all((0..20).map(|_| world.call("POST", "/api/v1/task/add", task("a", 1_000)))).await;
    assert!(replies.iter().all(|reply| reply.data() == "a"));
    assert_eq!(replies.iter().filter(|reply| reply.body["created"] == true).count(), 1);
    world.advance(1_000);
    assert_eq!(ids(&world.drain("t/0").await), ["a"]);
}

#[tokio::test]
async fn idempotent_add_holds_whatever_became_of_the_task() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let repeat = async |what: &str| {
        let reply = world.call("POST", "/api/v1/task/add", task("a", 0)).await;
        assert_eq!((reply.data(), &reply.body["created"]), (&json!("a"), &json!(false)), "{what}");
        let mut other = task("a", 0);
        other["parameters"] = json!({"n": 2});
        let reply = world.call("POST", "/api/v1/task/add", other).await;
        assert_eq!(reply.error(), (409, "task_exists"), "{what}");
        assert_eq!(world.task("a").await["parameters"], json!({"n": 1}), "{what}");
    };
    repeat("scheduled").await;
    world.advance(5);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 1);
    repeat("leased").await;
    assert!(world.poll("t/0", 10).await.is_empty());
    world.settle("nack", &polled[0], json!({"permanent": true})).await.data();
    repeat("dead").await;
    world.call("POST", "/api/v1/task/redrive/a", Value::Null).await.data();
    let polled = world.poll("t/0", 10).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    repeat("succeeded").await;
    assert!(world.poll("t/0", 10).await.is_empty());
}

#[tokio::test]
async fn idempotent_add_a_cancelled_id_is_free_and_the_new_task_has_no_past() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let held = world.poll("t/0", 1).await.remove(0);
    world.call("POST", "/api/v1/task/cancel/a", Value::Null).await.data();
    let mut other = task("a", 5_000);
    other["parameters"] = json!("new");
    let reply = world.call("POST", "/api/v1/task/add", other).await;
    assert_eq!((reply.data(), &reply.body["created"]), (&json!("a"), &json!(true)));
    assert_eq!(world.settle("ack", &held, json!({})).await.error(), (409, "lease_lost"));
    world.advance(4_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    let polled = world.poll("t/0", 10).await;
    assert_eq!((&polled[0]["parameters"], &polled[0]["attempt"]), (&json!("new"), &json!(1)));
}

#[tokio::test]
async fn idempotent_add_into_another_queue_after_a_cancel_leaves_nothing_in_the_old_one() {
    let mut world = World::new().await;
    world.add(task("a", 1_000)).await;
    // Redis misses the cancel and keeps the id in the old queue.
    world.redis.run("ZADD future:{t_0.0} 1 a");
    world.redis.run("RENAME future:{t_0.0} kept");
    world.call("POST", "/api/v1/task/cancel/a", Value::Null).await.data();
    world.redis.run("RENAME kept future:{t_0.0}");
    world.add(json!({"taskId": "a", "taskType": "u", "delay": 0})).await;
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.poll_ids("u/0", 10).await, ["a"]);
    assert_eq!(world.redis.places_of("a"), 1, "{:?}", world.redis.keys());
    world.redis.stop();
}

// 8. Redis may lie.

#[tokio::test]
async fn redis_may_lie_one_id_in_all_three_places_is_one_task() {
    let world = World::new().await;
    world.add_many("a", 3, 0).await;
    for n in 0..3 {
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} a{n} a{n}"));
        world.redis.run(&format!("ZADD lease:{{t_0.0}} 7 a{n}"));
        world.redis.run(&format!("ZADD future:{{t_0.0}} 8 a{n}"));
    }
    let polled = world.drain("t/0").await;
    assert_eq!(sorted_ids(&polled), ["a0", "a1", "a2"]);
    for task in &polled {
        world.settle("ack", task, json!({})).await.data();
    }
    world.advance(120_000);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.recover().await;
    for n in 0..3 {
        assert_eq!(world.redis.places_of(&format!("a{n}")), 0);
    }
}

#[tokio::test]
async fn redis_may_lie_garbage_members_are_dropped_and_hold_up_nobody() {
    let world = World::new().await;
    world.add_many("a", 5, 0).await;
    let mut connection = world.redis.connection();
    let long = "x".repeat(5_000);
    let garbage: [&[u8]; 8] =
        [b"", b" ", b"no/id", b"unknown", b"\xff\xfe\x00", "任务".as_bytes(), long.as_bytes(), b"{\"taskId\":\"a0\"}"];
    for member in garbage {
        for place in ["future", "lease"] {
            redis::cmd("ZADD")
                .arg(format!("{place}:{{t_0.0}}"))
                .arg(1)
                .arg(member)
                .exec(&mut connection)
                .expect("ZADD");
        }
        redis::cmd("LPUSH").arg("topic:{t_0.0}").arg(member).exec(&mut connection).expect("LPUSH");
    }
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["a0", "a1", "a2", "a3", "a4"]);
    world.advance(60_000);
    world.recover().await;
    world.refresh().await;
    assert_eq!(world.get("/api/v1/queues").await.status, 200);
    let polled = world.drain("t/0").await;
    assert_eq!(polled.len(), 5);
    for task in &polled {
        world.settle("ack", task, json!({})).await.data();
    }
    world.recover().await;
    assert!(world.redis.keys().iter().all(|key| !key.contains("t_0")), "{:?}", world.redis.keys());
}

#[tokio::test]
async fn redis_may_lie_a_single_poll_gets_past_any_number_of_members_that_are_nothing() {
    let world = World::new().await;
    let mut connection = world.redis.connection();
    let mut push = redis::cmd("RPUSH");
    push.arg("topic:{t_0.0}");
    for n in 0..300 {
        push.arg(format!("unknown{n}")).arg(format!("not an id {n}"));
    }
    push.exec(&mut connection).expect("RPUSH");
    world.add(task("a", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn redis_may_lie_garbage_among_the_ended_leases_does_not_stop_recovery() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    assert_eq!(world.poll("t/0", 1).await.len(), 1);
    let mut connection = world.redis.connection();
    let long = "x".repeat(5_000);
    for member in [b"".as_slice(), b"\xff\xfe", long.as_bytes(), b"a b"] {
        redis::cmd("ZADD").arg("lease:{t_0.0}").arg(1).arg(member).exec(&mut connection).expect("ZADD");
    }
    world.advance(30_000);
    let report = world.recover().await;
    assert_eq!((report.load.malformed, report.load.loaded), (4, 1), "{report:?}");
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn redis_may_lie_garbage_at_the_head_of_the_list_does_not_stop_the_view_of_queues() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let mut connection = world.redis.connection();
    for member in [b"".as_slice(), b"\xff\xfe"] {
        redis::cmd("LPUSH").arg("topic:{t_0.0}").arg(member).exec(&mut connection).expect("LPUSH");
        redis::cmd("ZADD").arg("future:{t_0.0}").arg(0).arg(member).exec(&mut connection).expect("ZADD");
        let queues = world.get("/api/v1/queues").await;
        assert_eq!(queues.data()[0]["taskType"], "t");
    }
}

#[tokio::test]
async fn redis_may_lie_a_registry_full_of_garbage_does_not_stop_ticks_or_polls() {
    let world = World::new().await;
    let mut connection = world.redis.connection();
    for member in [b"".as_slice(), b"\xff\xfe", b"t_0", b"t_999.0", b"{t}_0.0", b"t_0.99999"] {
        redis::cmd("SADD").arg("partitions").arg(member).exec(&mut connection).expect("SADD");
    }
    world.add(task("a", 0)).await;
    let report = world.refresh().await;
    assert_eq!(report.load.malformed, 6, "{report:?}");
    world.recover().await;
    assert_eq!(world.poll_ids("t", 10).await, ["a"]);
    assert_eq!(world.get("/api/v1/queues").await.status, 200);
}

#[tokio::test]
async fn redis_may_lie_keys_of_the_wrong_type_are_replaced() {
    for (key, of_wrong_type) in [
        ("future:{t_0.0}", "SET {} x"),
        ("topic:{t_0.0}", "SADD {} a0"),
        ("lease:{t_0.0}", "RPUSH {} a0"),
        ("partitions", "SET {} x"),
        ("horizon", "SET {} x"),
        ("horizon", "RPUSH {} x"),
        ("lock:refresh", "RPUSH {} x"),
        ("cursor:refresh-overdue", "SET {} x"),
        ("cursor:refresh-soon", "RPUSH {} x"),
        ("cursor:recover-overdue", "SADD {} x"),
    ] {
        let world = World::new().await;
        world.add(task("a0", 0)).await;
        world.add(json!({"taskId": "b0", "taskType": "u", "delay": 0})).await;
        world.redis.run(&format!("DEL {key}"));
        world.redis.run(&of_wrong_type.replace("{}", key));
        // Adding must not fail, nor may the ticks be stopped for good.
        world.add(task("a1", 0)).await;
        for _ in 0..2 {
            let _ = world.service.refresh(&world.tick()).await;
            let _ = world.service.recover(&world.tick()).await;
        }
        let report = world.recover().await;
        assert!(!report.load.more, "{key}");
        if key == "lock:refresh" {
            let left: i64 = redis::cmd("PTTL").arg(key).query(&mut world.redis.connection()).expect("PTTL");
            assert!(left > 0, "the lock ends by itself: {left}");
        } else {
            world.refresh().await;
        }
        let mut polled = world.drain("t/0").await;
        assert_eq!(sorted_ids(&polled), ["a0", "a1"], "{key}");
        polled.extend(world.drain("u").await);
        assert_eq!(polled.len(), 3, "{key}");
        for task in &polled {
            assert_eq!(world.settle("ack", task, json!({})).await.data(), true, "{key}");
        }
    }
}

#[tokio::test]
async fn redis_may_lie_a_cursor_of_nonsense_costs_one_tick_at_most() {
    let world = World::new().await;
    world.add_many("a", 10, 0).await;
    let mut connection = world.redis.connection();
    let long = "9".repeat(3_000);
    for (field, value) in [("x", "y"), ("0", "zzzz"), ("1", ""), ("2", &long), ("70000", "000"), ("3", "\u{0}")] {
        world.redis.run("DEL future:{t_0.0}");
        for tick in ["refresh-soon", "refresh-overdue", "recover-overdue"] {
            redis::cmd("HSET").arg(format!("cursor:{tick}")).arg(field).arg(value).exec(&mut connection).expect("HSET");
        }
        let _ = world.service.refresh(&world.tick()).await;
        let _ = world.service.recover(&world.tick()).await;
        world.refresh().await;
        world.recover().await;
        assert!(world.redis.places_of("a0") > 0, "{field}");
    }
    assert_eq!(world.drain("t/0").await.len(), 10);
}

#[tokio::test]
async fn redis_may_lie_members_in_another_queue_or_with_far_leases_are_set_right() {
    let world = World::new().await;
    world.add_many("a", 6, 0).await;
    world.redis.run("DEL future:{t_0.0}");
    // Ids of queue t/0 in the queues t/1 and u/0, ready and leased until the year 2286.
    world.redis.run("RPUSH topic:{t_1.0} a0 a1 a2");
    world.redis.run("ZADD future:{u_0.0} 1 a3");
    world.redis.run("ZADD lease:{t_0.0} 9999999999999 a4 9999999999999 a5");
    world.redis.run("SADD partitions t_1.0 u_0.0");
    assert!(world.poll("t/1", 10).await.is_empty());
    assert!(world.poll("u/0", 10).await.is_empty());
    world.recover().await;
    assert_eq!(world.drain("t/0").await.len(), 6);
    assert_eq!(world.redis.places_of("a0") + world.redis.places_of("a3"), 2);
}

#[tokio::test]
async fn redis_may_lie_stale_scores_only_cost_time() {
    let world = World::new().await;
    world.add_many("a", 3, 10_000).await;
    // Redis thinks that they are due in an hour; refresh knows better, before they are due and after.
    for n in 0..3 {
        world.redis.run(&format!("ZADD future:{{t_0.0}} {} a{n}", world.now() + 3_600_000));
    }
    world.refresh().await;
    world.advance(10_000);
    assert_eq!(world.drain("t/0").await.len(), 3);
    world.add_many("b", 3, 10_000).await;
    world.advance(10_000);
    for n in 0..3 {
        world.redis.run(&format!("ZADD future:{{t_0.0}} {} b{n}", world.now() + 3_600_000));
    }
    world.refresh().await;
    assert_eq!(world.drain("t/0").await.len(), 3);
}
