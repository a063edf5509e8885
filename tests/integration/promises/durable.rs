//! 1. Durable: what was acknowledged is delivered, whatever Redis forgets.

use std::collections::BTreeSet;

use punctual_core::clock::Clock;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, sorted_ids, task};

#[tokio::test]
async fn a_task_is_delivered_after_redis_lost_everything() {
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
async fn either_tick_alone_brings_a_forgotten_due_task_back() {
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
async fn a_task_added_while_redis_was_down_is_delivered_when_it_is_back() {
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
async fn tasks_in_every_state_survive_a_redis_restarted_empty() {
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
async fn no_task_is_lost_when_a_random_half_of_the_keys_is_deleted() {
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
async fn everything_goes_on_when_redis_forgets_its_scripts() {
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
