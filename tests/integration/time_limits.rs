//! What is taken from the stores reaches the caller, however slow they are; and one moment of trouble costs no more
//! than that moment.

use std::sync::Arc;
use std::time::Duration;

use punctual_core::config::DispatchConfig;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::{Fault, Proxy, Reply, World, call, task};
use tokio::sync::Notify;

/// A service that reaches DynamoDB through a proxy that holds each answer back for so long.
async fn slowed(world: &World, ms: u64) -> Arc<Service> {
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.set(Fault::Slow(Duration::from_millis(ms)));
    service
}

/// How many of `ids` DynamoDB has in `status`.
async fn count(world: &World, ids: &[String], status: &str) -> usize {
    let mut count = 0;
    for id in ids {
        count += usize::from(world.status(id).await == status);
    }
    count
}

fn given(reply: &Reply) -> usize {
    reply.data().as_array().expect("an array").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_of_a_slow_dynamodb_gives_all_that_it_leased() {
    let world = World::new().await;
    let added = world.add_many("a", 100, 0).await;
    let service = slowed(&world, 500).await;
    let polled = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 100, "leaseSeconds": 43_200})).await;
    let given = given(&polled);
    assert!((1..100).contains(&given), "{given}");
    assert_eq!(count(&world, &added, "leased").await, given);
    // What it could not take is free at once.
    assert_eq!(world.poll("t/0", 100).await.len(), 100 - given);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_of_many_priorities_with_redis_silent_gives_all_that_it_leased() {
    let world = World::new().await;
    let mut added = Vec::new();
    for priority in 0..20 {
        let id = format!("p{priority}");
        world.add(json!({"taskId": id, "taskType": "t", "priority": priority, "delay": 0})).await;
        added.push(id);
    }
    let service = slowed(&world, 50).await;
    let redis = world.redis.pid();
    world.redis.signal_pid(redis, "STOP");
    let polled = call(&service, "POST", "/api/v1/task/poll/t", json!({"max": 100, "leaseSeconds": 600})).await;
    world.redis.signal_pid(redis, "CONT");
    let given = given(&polled);
    assert!(given > 0);
    assert_eq!(count(&world, &added, "leased").await, given);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taking_poll_gives_what_it_ended() {
    for ms in [400, 700, 900] {
        let world = World::new().await;
        world.add(task("a", 0)).await;
        let service = slowed(&world, ms).await;
        let redis = world.redis.pid();
        world.redis.signal_pid(redis, "STOP");
        let polled = call(&service, "GET", "/api/v1/task/poll/t/0", Value::Null).await;
        world.redis.signal_pid(redis, "CONT");
        let is_given = polled.status == 200 && polled.body["data"]["taskId"] == "a";
        assert_eq!(is_given, world.status("a").await == "succeeded", "{ms} ms: {}", polled.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_a_poll_behind_another_queues_backlog_answers_that_it_found_nothing() {
    let mut world = World::new().await;
    world.import_many("other", 8_000, 0).await;
    let service = slowed(&world, 1_000).await;
    world.redis.stop();
    let polled = call(&service, "POST", "/api/v1/task/poll/u/0", json!({})).await;
    assert_eq!(polled.data(), &json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_goes_on_after_a_request_that_failed() {
    struct Heard(Arc<Notify>);
    impl Handler for Heard {
        const NAME: &'static str = "heard";
        type Parameters = Value;
        async fn handle(&self, _: Value, _: &Context) -> Result<(), HandlerError> {
            self.0.notify_one();
            Ok(())
        }
    }
    let (world, heard) = (World::new().await, Arc::new(Notify::new()));
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    let pushed = |id: &str| json!({"taskId": id, "taskType": "p", "delay": 0, "handler": "heard"});
    world.add(pushed("refused")).await;
    // All tries of the one request.
    proxy.refuse_requests("UpdateItem", 3);
    let registry = Registry::default().with(Heard(heard.clone())).expect("one handler");
    let config = DispatchConfig { shift: Duration::from_secs(8), concurrency: 4 };
    let shift = dispatch::handle(&service, &registry, &config);
    let later = async {
        while proxy.requests_to_refuse() > 0 {
            tokio::task::yield_now().await;
        }
        world.add(pushed("later")).await;
        heard.notified().await;
    };
    let (report, ()) = tokio::join!(shift, later);
    assert_eq!(report.expect("a shift").succeeded, 1);
}
