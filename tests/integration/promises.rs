//! The promises of the design, each by its name.

use serde_json::{Value, json};
use tests::World;

fn task(id: &str, delay_ms: i64) -> Value {
    json!({"taskId": id, "taskType": "t", "delay": delay_ms, "parameters": {"n": 1}})
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

#[tokio::test]
async fn durable_a_task_is_delivered_after_redis_lost_everything() {
    let world = World::new().await;
    for id in ["a", "b", "c"] {
        world.add(task(id, 20_000)).await;
    }
    world.redis.run("FLUSHALL");
    world.advance(20_000);
    assert!(world.poll("t/0", 10).await.is_empty());
    let report = world.refresh().await;
    assert_eq!(report.load.loaded, 3);
    let mut ids = world.poll_ids("t/0", 10).await;
    ids.sort();
    assert_eq!(ids, ["a", "b", "c"]);
}
