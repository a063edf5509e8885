//! More or fewer partitions, and those that are empty.

use std::collections::BTreeSet;

use punctual_core::clock::Clock;
use punctual_core::due_index::{Partition, Place};
use punctual_core::task::Lane;
use punctual_core::time::Timestamp;
use serde_json::json;
use tests::{Settings, World, call, ids, task};

fn partition() -> Partition {
    Partition { lane: Lane { task_type: "t".to_owned(), priority: 0, handler: None }, number: 0 }
}

#[tokio::test]
async fn a_queue_may_get_more_or_fewer_partitions_with_tasks_in_it() {
    for (before, after) in [(4, 1), (1, 4), (4, 3)] {
        let of = |queue_partitions| Settings { queue_partitions, ..Settings::default() };
        let world = World::with(of(before)).await;
        world.add_many("leased", 12, 0).await;
        assert_eq!(world.drain("t/0").await.len(), 12);
        world.add_many("ready", 12, 0).await;
        world.refresh().await;
        world.add_many("soon", 12, 60_000).await;
        world.add_many("far", 12, 600_000).await;
        let service = world.another(Clock::Manual(world.clock.clone()), &of(after)).await;
        let tick = async || {
            service.recover(&world.tick()).await.expect("a recovery");
            service.refresh(&world.tick()).await.expect("a refresh");
        };
        let drain = async || {
            let mut all = Vec::new();
            loop {
                let reply = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 100})).await;
                let polled = reply.data().as_array().expect("an array").clone();
                if polled.is_empty() {
                    return all;
                }
                for task in &polled {
                    let body = json!({"leaseToken": task["leaseToken"]});
                    let id = task["taskId"].as_str().expect("an id");
                    let reply = call(&service, "POST", &format!("/api/v1/task/ack/{id}"), body).await;
                    assert_eq!(reply.data(), true);
                }
                all.extend(ids(&polled));
            }
        };
        tick().await;
        let mut delivered = drain().await;
        for step in [60_000, 300_000, 60_000, 180_000] {
            world.advance(step);
            tick().await;
            delivered.extend(drain().await);
        }
        let distinct: BTreeSet<&String> = delivered.iter().collect();
        assert_eq!((delivered.len(), distinct.len()), (48, 48), "{before} to {after}");
        world.advance(120_000);
        tick().await;
        tick().await;
        assert!(world.redis.keys().is_empty(), "{before} to {after}: {:?}", world.redis.keys());
    }
}

#[tokio::test]
async fn a_polled_queue_rids_itself_of_ids_that_lie_in_the_wrong_partition() {
    let world = World::new().await;
    world.add_many("a", 40, 0).await;
    let four = Settings { queue_partitions: 4, ..Settings::default() };
    let service = world.another(Clock::Manual(world.clock.clone()), &four).await;
    let mut polled = Vec::new();
    loop {
        let reply = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 10, "leaseSeconds": 300})).await;
        let some = reply.data().as_array().expect("an array").clone();
        if some.is_empty() {
            break;
        }
        polled.extend(some);
    }
    assert_eq!(polled.len(), 40, "the old partition is one of the new ones");
    for task in &polled {
        let id = task["taskId"].as_str().expect("an id");
        assert_eq!(world.redis.places_of(id), 1, "{id}");
        let body = json!({"leaseToken": task["leaseToken"]});
        assert_eq!(call(&service, "POST", &format!("/api/v1/task/ack/{id}"), body).await.data(), true);
    }
    for task in &polled {
        let id = task["taskId"].as_str().expect("an id");
        assert_eq!(world.redis.places_of(id), 0, "{id}");
    }
}

#[tokio::test]
async fn empty_partitions_leave_the_registry_and_come_back_with_the_next_task() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let polled = world.poll("t/0", 1).await;
    assert_eq!(world.recover().await.struck_off, 0, "a leased task is one");
    world.settle("ack", &polled[0], json!({})).await.data();
    assert_eq!(world.recover().await.struck_off, 1);
    assert!(world.redis.keys().is_empty());
    world.add(task("b", 0)).await;
    assert_eq!(world.poll_ids("t", 1).await, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partition_that_gets_a_task_while_it_is_struck_off_stays_in_the_registry() {
    let world = World::new().await;
    let now = Timestamp::from_ms(world.now());
    for round in 0..300 {
        let id = format!("a{round}");
        let all = [partition()];
        let add = [(partition(), id.as_str(), now)];
        let (added, struck_off) =
            tokio::join!(world.service.index.add(&add), world.service.index.strike_off_empty(&all));
        added.expect("Redis");
        struck_off.expect("Redis");
        assert_eq!(world.redis.integer("SISMEMBER partitions t_0.0"), 1, "round {round}");
        world.service.index.place(&[(partition(), id.as_str(), Place::Nowhere)]).await.expect("Redis");
    }
}
