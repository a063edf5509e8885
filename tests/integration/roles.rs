//! Each function's role in template.yaml allows what the function calls, and nothing else.
//!
//! What it calls is recorded: a proxy before DynamoDB notes each request while the function goes through its paths,
//! once with Redis and once without.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::config::DispatchConfig;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::role::{actions_of, actions_of_endpoint};
use tests::{FaultProxy, Store, World, call, task};

const FUNCTIONS: [&str; 8] = ["add", "cancel", "poll", "settle", "inspect", "refresh", "recover", "dispatch"];

/// Longer than every lease that is given here.
const PAST_LEASES: u32 = 60_000;

/// Goes through the paths of `function` by `calls`, on a service whose requests are noted, and compares these with the
/// role. What `calls` does with the world's own service is not noted.
async fn compare(function: &str, calls: impl AsyncFn(&World, &Arc<Service>)) {
    let mut called = BTreeSet::new();
    for with_redis in [true, false] {
        let world = World::new().await;
        let proxy = FaultProxy::before(Store::DynamoDb(world.endpoint.replace("http://", ""))).await;
        let endpoint = format!("http://{}", proxy.address());
        let mut config = world.service.config.clone();
        if !with_redis {
            config.redis_urls = vec!["redis://127.0.0.1:1".to_owned()];
        }
        let client = connect_to(&endpoint).await;
        let service = Service::new(client, world.service.clock.clone(), config).expect("a valid configuration");
        let service = Arc::new(service);
        calls(&world, &service).await;
        called.extend(proxy.seen().into_iter().map(|operation| format!("dynamodb:{operation}")));
    }
    let allowed = actions_of(function);
    let of_table = allowed.keys().filter(|action| action.starts_with("dynamodb:")).cloned().collect::<BTreeSet<_>>();
    assert_eq!(called, of_table, "{function}: called, and allowed by its role");
}

/// Tasks in every state that a tick or a poll may meet, where Redis knows them and where it has forgotten them.
async fn fill(world: &World) {
    for (id, attempts) in [("held", 5), ("ended", 5), ("exhausted", 1)] {
        let mut task = task(id, 0);
        task["maxAttempts"] = json!(attempts);
        world.add(task).await;
    }
    assert_eq!(world.poll("t/0", 3).await.len(), 3);
    world.advance(PAST_LEASES);
    world.add(task("due", 0)).await;
    world.add(task("soon", 1_000)).await;
}

/// A tick without Redis fails, and is allowed to.
async fn tick(world: &World, service: &Arc<Service>, tick: impl AsyncFn(&Service, &World) -> bool) {
    fill(world).await;
    tick(service, world).await;
    fill_again(world).await;
    world.redis.run("FLUSHALL");
    tick(service, world).await;
}

async fn fill_again(world: &World) {
    let mut last = task("last", 0);
    last["maxAttempts"] = json!(1);
    world.add(last).await;
    world.drain("t/0").await;
    world.advance(PAST_LEASES);
}

#[tokio::test]
async fn add_may_do_what_it_does() {
    compare("add", async |_, service| {
        for _ in 0..2 {
            call(service, "POST", "/api/v1/task/add", task("a", 0)).await.data();
        }
        assert_eq!(call(service, "POST", "/api/v1/task/add", task("a", 1)).await.status, 409);
        call(service, "POST", "/api/v1/task/add", json!([task("b", 0), task("c", 1_000_000)])).await.data();
    })
    .await;
}

#[tokio::test]
async fn cancel_may_do_what_it_does() {
    compare("cancel", async |world, service| {
        world.add(task("a", 0)).await;
        for (method, id) in [("DELETE", "a"), ("POST", "a"), ("GET", "a"), ("POST", "unknown"), ("GET", "unknown")] {
            call(service, method, &format!("/api/v1/task/cancel/{id}"), Value::Null).await;
        }
    })
    .await;
}

#[tokio::test]
async fn poll_may_do_what_it_does() {
    compare("poll", async |world, service| {
        fill(world).await;
        call(service, "POST", "/api/v1/task/poll/t/0", json!({"max": 10})).await.data();
        assert_eq!(world.status("exhausted").await, "dead");
        world.add(task("another", 0)).await;
        call(service, "GET", "/api/v1/task/poll/t/0", Value::Null).await.data();
        call(service, "POST", "/api/v1/task/poll/t", json!({})).await.data();
        // Redis knows nothing, and the index knows more than is due.
        fill_again(world).await;
        world.redis.run("FLUSHALL");
        call(service, "POST", "/api/v1/task/poll/t/0", json!({"max": 10})).await.data();
        assert_eq!(world.status("last").await, "dead");
    })
    .await;
}

#[tokio::test]
async fn settle_may_do_what_it_does() {
    compare("settle", async |world, service| {
        let settle = async |verb: &str, task: &Value, mut body: Value| {
            body["leaseToken"] = task["leaseToken"].clone();
            let id = task["taskId"].as_str().expect("an id");
            call(service, "POST", &format!("/api/v1/task/{verb}/{id}"), body).await.data().clone()
        };
        world.add_many("a", 6, 0).await;
        let polled = world.poll("t/0", 6).await;
        settle("ack", &polled[0], json!({})).await;
        let ack = json!([{"taskId": polled[1]["taskId"], "leaseToken": polled[1]["leaseToken"]}]);
        call(service, "POST", "/api/v1/task/ack", ack).await.data();
        settle("nack", &polled[2], json!({})).await;
        settle("extend", &polled[3], json!({"leaseSeconds": 60})).await;
        for dead in &polled[4..] {
            settle("nack", dead, json!({"permanent": true})).await;
        }
        let id = polled[4]["taskId"].as_str().expect("an id");
        call(service, "POST", &format!("/api/v1/task/redrive/{id}"), json!({})).await.data();
        call(service, "POST", "/api/v1/task/redrive", json!({})).await.data();
        call(service, "POST", &format!("/api/v1/task/reschedule/{id}"), json!({"delay": 1_000})).await.data();
    })
    .await;
}

#[tokio::test]
async fn inspect_may_do_what_it_does() {
    compare("inspect", async |world, service| {
        fill(world).await;
        let paths = ["task/due", "task/unknown", "task", "task?status=leased", "task?status=dead&limit=1", "queues"];
        for path in paths.map(|path| format!("/api/v1/{path}")).iter().map(String::as_str).chain(["/health"]) {
            call(service, "GET", path, Value::Null).await;
        }
    })
    .await;
}

#[tokio::test]
async fn refresh_may_do_what_it_does() {
    compare("refresh", async |world, service| {
        tick(world, service, async |service, world| refresh::handle(service, &world.tick()).await.is_ok()).await;
    })
    .await;
}

#[tokio::test]
async fn recover_may_do_what_it_does() {
    compare("recover", async |world, service| {
        tick(world, service, async |service, world| recover::handle(service, &world.tick()).await.is_ok()).await;
    })
    .await;
}

/// Fails when it is told to.
struct Sample;

impl Handler for Sample {
    const NAME: &'static str = "sample";
    type Parameters = String;

    async fn handle(&self, act: String, _: &Context) -> Result<(), HandlerError> {
        if act == "succeed" { Ok(()) } else { Err(HandlerError::retry(act)) }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_may_do_what_it_does() {
    compare("dispatch", async |world, service| {
        let registry = Registry::default().with(Sample).expect("one handler");
        let pass = DispatchConfig { shift: Duration::ZERO, concurrency: 4 };
        for lost in ["PING", "FLUSHALL"] {
            for act in ["succeed", "fail"] {
                let id = format!("{act}-{lost}");
                let task = json!({"taskId": id, "taskType": "t", "delay": 0, "handler": "sample", "parameters": act,
                    "maxAttempts": 2});
                world.add(task).await;
            }
            world.redis.run(lost);
            let report = dispatch::handle(service, &registry, &pass).await.expect("a pass");
            assert_eq!((report.succeeded, report.failed), (1, 1));
        }
    })
    .await;
}

#[test]
fn each_action_is_allowed_where_it_is_used_only() {
    let mut all = BTreeSet::new();
    for function in FUNCTIONS {
        for (action, resource) in actions_of(function) {
            let wanted = match action.as_str() {
                // Only the index is queried.
                "dynamodb:Query" => "${TasksTable.Arn}/index/due",
                "lambda:InvokeFunction" => {
                    "arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:${LambdaPrefix}*"
                }
                "sqs:SendMessage" => "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:${SqsQueuePrefix}*",
                _ => "TasksTable.Arn",
            };
            assert_eq!(resource, wanted, "{function}: {action}");
            all.insert(action);
        }
    }
    all.retain(|action| action.starts_with("dynamodb:"));
    let endpoint: BTreeSet<String> = actions_of_endpoint().into_keys().collect();
    assert_eq!(all, endpoint, "used by the functions, and let through by the private way to DynamoDB");
}
