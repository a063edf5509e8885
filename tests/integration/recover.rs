//! What recover alone does.

use std::time::Duration;

use punctual_core::config::TickConfig;
use serde_json::{Value, json};
use tests::{World, task};

#[tokio::test]
async fn a_recovery_leaves_long_leases_alone_and_gets_past_them() {
    let world = World::new().await;
    world.add_many("long", 700, 0).await;
    for _ in 0..7 {
        let reply = world.call("POST", "/api/v1/task/poll/t/0", json!({"max": 100, "leaseSeconds": 1_800})).await;
        assert_eq!(reply.data().as_array().expect("an array").len(), 100);
    }
    world.add(task("short", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["short"]);
    world.advance(300_000);
    let report = world.recover().await;
    assert_eq!(report.ended, 1, "{report:?}");
    assert_eq!(world.poll_ids("t/0", 10).await, ["short"]);
}

#[tokio::test]
async fn an_unlimited_number_of_ended_leases_is_recovered_in_one_tick() {
    let world = World::new().await;
    world.add_many("a", 1_300, 0).await;
    assert_eq!(world.drain("t/0").await.len(), 1_300);
    world.advance(30_000);
    let report = world.recover().await;
    assert_eq!((report.ended, report.load.more), (1_300, false));
    assert_eq!(world.redis.integer("ZCARD future:{t_0.0}"), 1_300);
    let tick = TickConfig { budget: Duration::ZERO };
    assert_eq!(world.service.recover(&tick).await.expect("a recovery").ended, 0);
}

#[tokio::test]
async fn recover_drops_what_is_over_from_a_queue_that_nobody_polls() {
    let world = World::new().await;
    let cancelled = world.add_many("cancelled", 5, 0).await;
    for id in &cancelled {
        world.call("DELETE", &format!("/api/v1/task/cancel/{id}"), Value::Null).await.data();
        // As if Redis had not been told.
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} {id}"));
    }
    world.redis.run("RPUSH topic:{t_0.0} unknown");
    world.redis.run("SADD partitions t_0.0");
    world.advance(3_600_000);
    assert_eq!(world.get("/api/v1/queues").await.data()[0]["oldestDueAgeMs"], 0, "what is over is not late");
    assert_eq!(world.recover().await.oldest_due_age_ms, 0);
    assert_eq!(world.redis.integer("EXISTS topic:{t_0.0}"), 0);
}
