//! The order within a partition, and among priorities.

use serde_json::json;
use tests::{World, task};

#[tokio::test]
async fn tasks_come_as_they_became_due_and_an_ended_lease_comes_last() {
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
async fn a_retry_stands_at_its_new_time() {
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
async fn the_most_urgent_priority_of_a_type_comes_first() {
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
