//! 7. Idempotent add.

use futures::future::join_all;
use serde_json::{Value, json};
use tests::{World, ids, task};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_at_once_makes_one_task() {
    let world = World::new().await;
    let replies = join_all((0..20).map(|_| world.call("POST", "/api/v1/task/add", task("a", 1_000)))).await;
    assert!(replies.iter().all(|reply| reply.data() == "a"));
    assert_eq!(replies.iter().filter(|reply| reply.body["created"] == true).count(), 1);
    world.advance(1_000);
    assert_eq!(ids(&world.drain("t/0").await), ["a"]);
}

#[tokio::test]
async fn holds_whatever_became_of_the_task() {
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
async fn a_cancelled_id_is_free_and_the_new_task_has_no_past() {
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
async fn into_another_queue_after_a_cancel_leaves_nothing_in_the_old_one() {
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
