//! Calls that are made again: by a client that heard no answer, and by the SDK.

use punctual_core::backoff::Backoff;
use punctual_core::table::Inserted;
use punctual_core::task::{Content, DEFAULT_MAX_ATTEMPTS, Task, TaskType};
use punctual_core::time::Timestamp;
use serde_json::json;
use tests::{World, task};

fn stored(now: Timestamp) -> Task {
    let content = Content {
        task_type: TaskType::from_name("t").expect("a type"),
        priority: 0,
        parameters: None,
        handler: None,
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        backoff: Backoff::default(),
        retention_ms: 604_800_000,
        timeout_ms: None,
    };
    Task::new("a".to_owned(), content, "digest".to_owned(), now, now)
}

#[tokio::test]
async fn an_add_that_the_sdk_sends_again_does_not_revive_a_task_that_was_cancelled_meanwhile() {
    let world = World::new().await;
    let (table, now) = (&world.service.table, world.service.clock.now());
    let task = stored(now);
    assert!(matches!(table.insert(&task, now).await, Ok(Inserted::Created)));
    assert!(matches!(table.cancel("a", now).await, Ok(Ok(_))));
    assert!(matches!(table.insert(&task, now).await, Ok(Inserted::Created)), "it was added by this very write");
    assert_eq!(world.status("a").await, "cancelled");
    // Another add of the id is another task.
    let another = Task { write_id: "another add".to_owned(), ..task };
    assert!(matches!(table.insert(&another, now).await, Ok(Inserted::Created)));
    assert_eq!(world.status("a").await, "scheduled");
}

#[tokio::test]
async fn an_add_that_the_sdk_sends_again_knows_its_task_though_somebody_has_leased_it() {
    let world = World::new().await;
    let (table, now) = (&world.service.table, world.service.clock.now());
    let task = stored(now);
    assert!(matches!(table.insert(&task, now).await, Ok(Inserted::Created)));
    let leased = table.lease("a", &task.lane(), "token", now.plus_ms(1_000), now).await;
    assert!(matches!(leased, Ok(Ok(_))));
    assert!(matches!(table.insert(&task, now).await, Ok(Inserted::Created)));
    assert_eq!(world.status("a").await, "leased");
}

#[tokio::test]
async fn a_repeated_add_tells_redis_what_the_first_one_could_not() {
    let world = World::new().await;
    world.add(task("a", 2_000)).await;
    world.redis.run("FLUSHALL");
    let again = world.call("POST", "/api/v1/task/add", task("a", 2_000)).await;
    assert_eq!((again.data(), &again.body["created"]), (&json!("a"), &json!(false)));
    assert_eq!(world.redis.places_of("a"), 1);
}

#[tokio::test]
async fn a_repeated_nack_tells_redis_what_the_first_one_could_not() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let polled = world.poll("t/0", 1).await;
    for _ in 0..2 {
        world.redis.run("FLUSHALL");
        assert_eq!(world.settle("nack", &polled[0], json!({"delay": 2_000})).await.data(), true);
        assert_eq!(world.redis.places_of("a"), 1);
    }
    world.advance(2_000);
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn an_ack_of_a_batch_takes_ids_that_are_numbers_of_any_length_as_add_does() {
    let world = World::new().await;
    let id = "123456789012345678901234567890";
    let sent = format!(r#"{{"taskId":{id},"taskType":"t","delay":0}}"#);
    world.call_raw("POST", "/api/v1/task/add", &sent).await.data();
    let token = world.poll("t/0", 1).await[0]["leaseToken"].clone();
    let batch = format!(r#"[{{"taskId":{id},"leaseToken":{token}}},{{"taskId":{id}.5,"leaseToken":{token}}},7]"#);
    let told = world.call_raw("POST", "/api/v1/task/ack", &batch).await;
    assert_eq!(told.data()[0], json!({"taskId": id, "ok": true}));
    assert_eq!(told.data()[1]["taskId"], format!("{id}.5"));
    assert_eq!((&told.data()[1]["error"], &told.data()[2]["taskId"]), (&json!("not_found"), &json!(null)));
    assert_eq!(world.status(id).await, "succeeded");
}
