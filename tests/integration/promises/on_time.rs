//! 3. On time.

use serde_json::json;
use tests::{World, ids, task};

#[tokio::test]
async fn a_poll_needs_no_tick_though_redis_was_emptied_a_moment_ago() {
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
async fn a_task_from_beyond_the_window_comes_though_no_refresh_ever_ran() {
    let world = World::new().await;
    world.add(task("a", 1_800_000)).await;
    world.advance(1_799_999);
    assert!(world.poll("t", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t", 10).await, ["a"]);
}

#[tokio::test]
async fn polls_need_no_tick_at_all() {
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
async fn a_task_from_beyond_the_window_is_loaded_before_it_is_due() {
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
