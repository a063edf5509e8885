//! 2. Never early.

use serde_json::{Value, json};
use tests::{World, ids, sorted_ids, task};

#[tokio::test]
async fn whatever_redis_says() {
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
async fn without_redis_either() {
    let mut world = World::new().await;
    world.add(task("a", 5_000)).await;
    world.redis.stop();
    world.advance(4_999);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn after_a_nack_or_a_reschedule() {
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
