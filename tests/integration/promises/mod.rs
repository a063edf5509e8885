//! The promises of the design, each in a file of its name.

mod crash_safe;
mod durable;
mod final_state;
mod idempotent_add;
mod in_order;
mod never_early;
mod on_time;
mod one_live_lease;
mod redis_may_lie;

use punctual_core::due_index::Partition;
use punctual_core::task::Lane;
use serde_json::json;
use tests::{World, task};

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
