//! 5. Crash-safe: whoever dies, the task goes on.

use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::{Fault, Proxy, World, call, ids, task, until};

use super::partition;

#[tokio::test]
async fn a_consumer_that_dies_each_time_leads_to_a_dead_task_that_says_why() {
    let world = World::new().await;
    let mut mortal = task("a", 0);
    mortal["maxAttempts"] = json!(3);
    world.add(mortal).await;
    for attempt in 1..=3 {
        let polled = world.poll("t/0", 1).await;
        assert_eq!(polled[0]["attempt"], attempt);
        world.advance(30_000);
    }
    // No tick ran, the poll itself sees that the attempts are used.
    assert!(world.poll("t/0", 1).await.is_empty());
    let dead = world.task("a").await;
    assert_eq!((&dead["status"], &dead["attempts"]), (&json!("dead"), &json!(3)));
    assert_eq!(dead["lastError"]["attempt"], 3);
    assert!(dead["lastError"]["message"].as_str().is_some_and(|why| why.contains("lease ran out")), "{dead}");
    world.advance(86_400_000);
    world.refresh().await;
    world.recover().await;
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.redis.places_of("a"), 0);
}

#[tokio::test]
async fn recover_ends_leases_of_queues_that_nobody_polls() {
    let world = World::new().await;
    let mut mortal = task("last", 0);
    mortal["maxAttempts"] = json!(1);
    world.add(mortal).await;
    world.add(task("more", 0)).await;
    assert_eq!(world.poll("t/0", 10).await.len(), 2);
    world.advance(29_999);
    let early = world.recover().await;
    assert_eq!((early.ended, early.load.dead), (0, 0));
    world.advance(1);
    let report = world.recover().await;
    assert_eq!((report.ended, report.load.dead), (2, 1));
    assert_eq!(world.status("last").await, "dead");
    let queues = world.get("/api/v1/queues").await;
    assert_eq!((&queues.data()[0]["ready"], &queues.data()[0]["dead"]), (&json!(1), &json!(1)), "{}", queues.body);
    let polled = world.poll("t/0", 10).await;
    assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["more".to_owned()], &json!(2)));
}

#[tokio::test]
async fn a_poll_that_dies_between_the_stores_costs_no_attempt() {
    let world = World::new().await;
    world.add_many("a", 3, 0).await;
    let now = Timestamp::from_ms(world.now());
    // What a poll does first; then its process dies.
    let taken = world.service.index.lease_due(&partition(), now, 10, now.plus_ms(30_000)).await.expect("Redis");
    assert_eq!(taken.ids.len(), 3);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(30_000);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 3);
    assert!(polled.iter().all(|task| task["attempt"] == 1), "{polled:?}");
}

#[tokio::test]
async fn a_dying_poll_with_a_lease_of_twelve_hours_delays_its_tasks_by_a_minute_only() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.set(Fault::Silent);
    let mut dying = Box::pin(call(&service, "POST", "/api/v1/task/poll/t/0", json!({"leaseSeconds": 43_200})));
    // It takes the task in Redis, asks DynamoDB, and is gone.
    tokio::select! {
        _ = &mut dying => panic!("the poll answered"),
        () = until("the task taken in Redis", async || world.redis.integer("EXISTS lease:{t_0.0}") == 1) => {}
    }
    drop(dying);
    assert!(world.poll("t/0", 1).await.is_empty());
    world.advance(60_000);
    let polled = world.poll("t/0", 1).await;
    assert_eq!((ids(&polled), &polled[0]["attempt"]), (vec!["a".to_owned()], &json!(1)));
}

#[tokio::test]
async fn a_lease_of_twelve_hours_in_redis_that_dynamodb_does_not_know_is_ended_by_recover() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let now = Timestamp::from_ms(world.now());
    let taken = world.service.index.lease_due(&partition(), now, 10, now.plus_ms(43_200_000)).await.expect("Redis");
    assert_eq!(taken.ids, ["a"]);
    world.advance(60_000);
    world.recover().await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn poison_does_not_starve_the_rest() {
    let world = World::new().await;
    let mut poison = task("poison", 0);
    poison["maxAttempts"] = json!(1_000);
    world.add(poison).await;
    world.add_many("good", 20, 1).await;
    let mut good = 0;
    for _ in 0..40 {
        world.advance(30_000);
        if let [task] = &world.poll("t/0", 1).await[..]
            && task["taskId"] != "poison"
        {
            good += 1;
            world.settle("ack", task, json!({})).await.data();
        }
    }
    assert_eq!(good, 20);
}

#[tokio::test]
async fn a_dead_task_is_redriven_with_all_its_attempts_and_its_last_error() {
    let world = World::new().await;
    let mut mortal = task("a", 0);
    mortal["maxAttempts"] = json!(2);
    world.add(mortal).await;
    let polled = world.poll("t/0", 1).await;
    world.settle("nack", &polled[0], json!({"permanent": true, "error": "no such account"})).await.data();
    assert_eq!(world.status("a").await, "dead");
    assert_eq!(world.redis.places_of("a"), 0);
    world.advance(1_000);
    let redriven = world.call("POST", "/api/v1/task/redrive/a", Value::Null).await;
    assert_eq!(redriven.data()["lastError"]["message"], "no such account");
    for attempt in 1..=2 {
        assert_eq!(world.poll("t/0", 1).await[0]["attempt"], attempt);
        world.advance(30_000);
    }
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.status("a").await, "dead");
}
