//! Push on real stores: handlers, retries, shifts, isolation.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual_core::clock::Clock;
use punctual_core::config::DispatchConfig;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::DispatchReport;
use serde::Deserialize;
use serde_json::{Value, json};
use tests::{Settings, World, call, until};
use tokio::sync::Notify;

const PASS: DispatchConfig = DispatchConfig { shift: Duration::ZERO, concurrency: 16 };

/// Counts attempts by task and does what the parameters say.
#[derive(Clone, Default)]
struct Scripted {
    attempts: Arc<Mutex<HashMap<String, u32>>>,
    running: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    order: Arc<Mutex<Vec<String>>>,
    gate: Arc<Notify>,
}

#[derive(Deserialize)]
struct Script {
    #[serde(default)]
    act: String,
}

impl Handler for Scripted {
    const NAME: &'static str = "scripted";
    type Parameters = Script;

    async fn handle(&self, script: Script, context: &Context) -> Result<(), HandlerError> {
        *self.attempts.lock().expect("not poisoned").entry(context.task_id.clone()).or_default() += 1;
        self.order.lock().expect("not poisoned").push(context.task_id.clone());
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        match script.act.as_str() {
            "" => Ok(()),
            "panic" => panic!("out of cheese"),
            "hang" => std::future::pending().await,
            "gate" => {
                self.gate.notified().await;
                Ok(())
            }
            "permanent" => Err(HandlerError::permanent("never")),
            "later" => Err(HandlerError::Retry { after: Some(Duration::from_secs(90)), reason: "busy".to_owned() }),
            other => Err(HandlerError::retry(other)),
        }
    }
}

impl Scripted {
    fn attempts(&self, id: &str) -> u32 {
        self.attempts.lock().expect("not poisoned").get(id).copied().unwrap_or(0)
    }

    fn registry(&self) -> Registry {
        Registry::default().with(self.clone()).expect("one handler")
    }
}

fn pushed(id: &str, act: &str) -> Value {
    json!({"taskId": id, "taskType": "p", "delay": 0, "handler": "scripted", "parameters": {"act": act},
        "backoff": {"kind": "fixed", "delay": 1000}, "maxAttempts": 3})
}

async fn pass(world: &World, registry: &Registry) -> DispatchReport {
    dispatch::handle(&world.service, registry, &PASS).await.expect("a pass")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_due_task_is_run_once_and_done() {
    let (world, handler) = (World::new().await, Scripted::default());
    world.add(json!({"taskId": "a", "taskType": "p", "delay": 1000, "handler": "scripted", "parameters": {}})).await;
    world.advance(999);
    assert_eq!(pass(&world, &handler.registry()).await.started, 0);
    world.advance(1);
    let report = pass(&world, &handler.registry()).await;
    assert_eq!((report.started, report.succeeded), (1, 1));
    assert_eq!(pass(&world, &handler.registry()).await.started, 0);
    assert_eq!(handler.attempts("a"), 1);
    assert_eq!(world.status("a").await, "succeeded");
    assert_eq!(world.redis.places_of("a"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn poll_never_gives_out_a_task_with_a_handler_and_dispatch_never_takes_one_without() {
    let (world, handler) = (World::new().await, Scripted::default());
    world.add(pushed("pushed", "")).await;
    world.add(json!({"taskId": "polled", "taskType": "p", "delay": 0})).await;
    assert_eq!(world.poll_ids("p/0", 10).await, ["polled"]);
    assert!(world.poll_ids("p", 10).await.is_empty());
    assert!(world.get("/api/v1/task/poll/p/0").await.data().is_null());
    world.add(json!({"taskId": "polled2", "taskType": "p", "delay": 0})).await;
    assert_eq!(pass(&world, &handler.registry()).await.started, 1);
    assert_eq!(handler.attempts("pushed"), 1);
    assert_eq!(world.status("polled2").await, "scheduled");
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_21_a_panic_is_a_failed_attempt_and_harms_no_other_task() {
    let (world, handler) = (World::new().await, Scripted::default());
    for (id, act) in [("bad", "panic"), ("ok1", ""), ("ok2", "")] {
        world.add(pushed(id, act)).await;
    }
    let report = pass(&world, &handler.registry()).await;
    assert_eq!((report.succeeded, report.failed), (2, 1));
    let bad = world.task("bad").await;
    assert_eq!(bad["status"], "scheduled");
    assert!(bad["lastError"]["message"].as_str().expect("a reason").contains("out of cheese"), "{bad}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_handler_times_out_and_is_tried_again() {
    let (world, handler) = (World::new().await, Scripted::default());
    let mut task = pushed("slow", "hang");
    task["timeout"] = json!(50);
    world.add(task).await;
    assert_eq!(pass(&world, &handler.registry()).await.failed, 1);
    let task = world.task("slow").await;
    assert_eq!(task["lastError"]["message"], "timed out after 50 ms");
    assert_eq!(task["executeTime"], world.now() + 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_parameters_are_a_failed_attempt_with_the_reason_kept() {
    let (world, handler) = (World::new().await, Scripted::default());
    world
        .add(json!({"taskId": "a", "taskType": "p", "delay": 0, "handler": "scripted", "parameters": {"act": 7}}))
        .await;
    assert_eq!(pass(&world, &handler.registry()).await.failed, 1);
    let message = world.task("a").await["lastError"]["message"].as_str().expect("a reason").to_owned();
    assert!(message.contains("not readable"), "{message}");
    assert_eq!(handler.attempts("a"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_follow_the_backoff_or_the_handler_and_end_dead() {
    let (world, handler) = (World::new().await, Scripted::default());
    let registry = handler.registry();
    world.add(pushed("fails", "no luck")).await;
    world.add(pushed("later", "later")).await;
    world.add(pushed("never", "permanent")).await;
    pass(&world, &registry).await;
    assert_eq!(world.status("never").await, "dead");
    assert_eq!(world.task("later").await["executeTime"], world.now() + 90_000);
    for _ in 0..2 {
        world.advance(1_000);
        pass(&world, &registry).await;
    }
    let task = world.task("fails").await;
    assert_eq!((task["status"].as_str(), &task["attempts"]), (Some("dead"), &json!(3)));
    assert_eq!((&task["lastError"]["message"], &task["lastError"]["attempt"]), (&json!("no luck"), &json!(3)));
    world.advance(1_000);
    assert_eq!(pass(&world, &registry).await.started, 0);
    assert_eq!(handler.attempts("fails"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_tasks_are_redriven_one_by_one_and_in_bulk() {
    let (world, handler) = (World::new().await, Scripted::default());
    for id in ["a", "b", "c"] {
        world.add(pushed(id, "permanent")).await;
    }
    pass(&world, &handler.registry()).await;
    let dead = world.get("/api/v1/task?status=dead&taskType=p").await;
    assert_eq!(dead.data()["tasks"].as_array().expect("tasks").len(), 3);
    assert_eq!(world.call("POST", "/api/v1/task/redrive/a", Value::Null).await.data()["status"], "scheduled");
    let body = json!({"taskType": "p", "priority": 0, "limit": 1});
    assert_eq!(world.call("POST", "/api/v1/task/redrive", body.clone()).await.data()["redriven"], 1);
    assert_eq!(world.call("POST", "/api/v1/task/redrive", json!({"taskType": "p"})).await.data()["redriven"], 1);
    assert_eq!(world.call("POST", "/api/v1/task/redrive", body).await.data(), &json!({"redriven": 0, "more": false}));
    assert_eq!(pass(&world, &handler.registry()).await.started, 3);
    assert_eq!(world.task("a").await["lastError"]["message"], "never");
    for bad in [json!({"limit": 0}), json!({"limit": 101}), json!({"priority": 256}), json!({"kind": 1})] {
        assert_eq!(world.call("POST", "/api/v1/task/redrive", bad).await.error(), (400, "invalid"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_22_an_unknown_handler_is_left_for_a_newer_deployment() {
    let (world, handler) = (World::new().await, Scripted::default());
    world.add(json!({"taskId": "new", "taskType": "p", "delay": 0, "handler": "newer"})).await;
    world.add(pushed("known", "")).await;
    let report = pass(&world, &handler.registry()).await;
    assert_eq!(report.started, 1);
    assert_eq!(report.unknown, [("newer".to_owned(), 1)].into());
    let task = world.task("new").await;
    assert_eq!((task["status"].as_str(), &task["attempts"]), (Some("scheduled"), &json!(0)));

    struct Newer;
    impl Handler for Newer {
        const NAME: &'static str = "newer";
        type Parameters = Value;
        async fn handle(&self, _: Value, _: &Context) -> Result<(), HandlerError> {
            Ok(())
        }
    }
    let both = handler.registry().with(Newer).expect("two names");
    assert_eq!(pass(&world, &both).await.succeeded, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_20_a_handler_that_kills_the_process_ends_dead_after_its_attempts() {
    let (world, handler) = (World::new().await, Scripted::default());
    world.add(pushed("killer", "hang")).await;
    for _ in 0..3 {
        // The dispatcher is dropped in the middle of the attempt, as when its process is killed.
        let registry = handler.registry();
        let before = handler.attempts("killer");
        let shift = pass(&world, &registry);
        tokio::select! {
            _ = shift => panic!("the handler hangs"),
            () = until("an attempt of the killer", async || handler.attempts("killer") > before) => {}
        }
        world.advance(30_000);
        world.recover().await;
    }
    world.recover().await;
    let task = world.task("killer").await;
    assert_eq!(task["status"], "dead", "{task}");
    assert!(task["lastError"]["message"].as_str().expect("a reason").contains("lease ran out"));
    assert_eq!(pass(&world, &handler.registry()).await.started, 0);
    assert_eq!(handler.attempts("killer"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn scenario_12_a_cancelled_task_is_never_run_though_redis_forgot_it() {
    let (world, handler) = (World::new().await, Scripted::default());
    let mut task = pushed("x", "");
    task["delay"] = json!(600_000);
    world.add(task).await;
    assert_eq!(world.call("POST", "/api/v1/task/cancel/x", Value::Null).await.data(), true);
    world.redis.run("FLUSHALL");
    world.advance(660_000);
    world.refresh().await;
    world.recover().await;
    assert_eq!(pass(&world, &handler.registry()).await.started, 0);
    assert_eq!((handler.attempts("x"), world.status("x").await.as_str()), (0, "cancelled"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_cancelled_while_it_runs_is_not_retried() {
    let (world, handler) = (World::new().await, Scripted::default());
    world.add(pushed("x", "gate")).await;
    let registry = handler.registry();
    let shift = pass(&world, &registry);
    let cancel = async {
        until("the attempt", async || handler.attempts("x") == 1).await;
        assert_eq!(world.call("POST", "/api/v1/task/cancel/x", Value::Null).await.data(), true);
        handler.gate.notify_one();
    };
    let (report, ()) = tokio::join!(shift, cancel);
    assert_eq!((report.lost, report.succeeded), (1, 0));
    assert_eq!(world.status("x").await, "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_dispatchers_at_once_run_each_task_once_and_keep_their_limit() {
    let (world, handler) = (World::new().await, Scripted::default());
    let tasks: Vec<Value> = (0..100).map(|n| pushed(&format!("t{n}"), "")).collect();
    world.add(Value::Array(tasks)).await;
    let registry = handler.registry();
    let config = DispatchConfig { shift: Duration::ZERO, concurrency: 4 };
    let (a, b) = tokio::join!(
        dispatch::handle(&world.service, &registry, &config),
        dispatch::handle(&world.service, &registry, &config)
    );
    assert_eq!(a.expect("a pass").succeeded + b.expect("a pass").succeeded, 100);
    assert!((0..100).all(|n| handler.attempts(&format!("t{n}")) == 1));
    // Two dispatchers, each with half of its four places for one handler.
    assert!(handler.most_at_once.load(Ordering::SeqCst) <= 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn late_work_is_served_by_due_time_across_queues() {
    let (world, handler) = (World::new().await, Scripted::default());
    for (id, task_type, delay) in [("c", "q1", 3_000), ("a", "q2", 1_000), ("b", "q3", 2_000), ("d", "q2", 4_000)] {
        let mut task = pushed(id, "");
        (task["taskType"], task["delay"]) = (json!(task_type), json!(delay));
        world.add(task).await;
    }
    world.advance(3_600_000);
    world.refresh().await;
    let config = DispatchConfig { shift: Duration::ZERO, concurrency: 1 };
    dispatch::handle(&world.service, &handler.registry(), &config).await.expect("a pass");
    assert_eq!(*handler.order.lock().expect("not poisoned"), ["a", "b", "c", "d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_handler_does_not_hold_up_another_one() {
    struct Quick(Arc<AtomicUsize>);
    impl Handler for Quick {
        const NAME: &'static str = "quick";
        type Parameters = Value;
        async fn handle(&self, _: Value, _: &Context) -> Result<(), HandlerError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    }
    let (world, slow, done) = (World::new().await, Scripted::default(), Arc::new(AtomicUsize::new(0)));
    let registry = slow.registry().with(Quick(done.clone())).expect("two names");
    let hanging: Vec<Value> = (0..50).map(|n| pushed(&format!("s{n}"), "hang")).collect();
    world.add(Value::Array(hanging)).await;
    world.advance(1);
    let quick: Vec<Value> =
        (0..50).map(|n| json!({"taskId": format!("q{n}"), "taskType": "p", "delay": 0, "handler": "quick"})).collect();
    world.add(Value::Array(quick)).await;
    let config = DispatchConfig { shift: Duration::ZERO, concurrency: 4 };
    tokio::select! {
        _ = dispatch::handle(&world.service, &registry, &config) => panic!("the slow ones hang"),
        () = until("all are done", async || done.load(Ordering::SeqCst) == 50) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shift_runs_what_is_added_while_it_works_and_ends_in_time() {
    let (world, handler) = (World::new().await, Scripted::default());
    let registry = handler.registry();
    let config = DispatchConfig { shift: Duration::from_secs(2), concurrency: 4 };
    let shift = dispatch::handle(&world.service, &registry, &config);
    let add = async {
        for n in 0..5 {
            let id = format!("t{n}");
            world.add(pushed(&id, "")).await;
            until("the attempt", async || handler.attempts(&id) == 1).await;
        }
        let mut later = pushed("later", "");
        later["delay"] = json!(60_000);
        world.add(later).await;
        world.advance(60_000);
        until("the later one's attempt", async || handler.attempts("later") == 1).await;
    };
    let (report, ()) = tokio::join!(shift, add);
    assert_eq!(report.expect("a shift").succeeded, 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_works_by_dynamodb_alone_while_redis_is_down() {
    let (mut world, handler) = (World::new().await, Scripted::default());
    world.add(pushed("a", "")).await;
    world.redis.stop();
    assert_eq!(pass(&world, &handler.registry()).await.succeeded, 1);
    assert_eq!(world.status("a").await, "succeeded");
    world.redis.launch();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_is_extended_while_a_handler_runs_so_nobody_else_starts_it() {
    let world = World::with(Settings { lease_ms: 300, ..Settings::default() }).await;
    let handler = Scripted::default();
    world.add(pushed("long", "gate")).await;
    let registry = handler.registry();
    let shift = pass(&world, &registry);
    let others = async {
        until("the long one's attempt", async || handler.attempts("long") == 1).await;
        // Three leases long; each step is less than what is left of the lease that was just extended.
        for _ in 0..5 {
            world.advance(200);
            while world.task("long").await["leaseUntil"] != world.now() + 300 {
                tokio::task::yield_now().await;
            }
            world.recover().await;
            assert_eq!(pass(&world, &registry).await.started, 0);
        }
        handler.gate.notify_one();
    };
    let (report, ()) = tokio::join!(shift, others);
    assert_eq!((report.started, report.succeeded), (1, 1));
    assert_eq!((handler.attempts("long"), world.status("long").await.as_str()), (1, "succeeded"));
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_that_fails_at_once_again_and_again_does_not_starve_healthy_tasks() {
    let (world, handler) = (World::new().await, Scripted::default());
    let service = world.another(Clock::System, &Settings::default()).await;
    let task = |id: String, act: &str| {
        let mut task = pushed(&id, act);
        (task["maxAttempts"], task["backoff"]) = (json!(1_000), json!({"kind": "fixed", "delay": 0}));
        task
    };
    for (name, act) in [("poison", "no luck"), ("well", "")] {
        let tasks: Vec<Value> = (0..20).map(|n| task(format!("{name}{n}"), act)).collect();
        call(&service, "POST", "/api/v1/task/add", Value::Array(tasks)).await.data();
    }
    let registry = handler.registry();
    // One place for the handler's tasks: whatever is served too often is served instead of another.
    let config = DispatchConfig { shift: Duration::ZERO, concurrency: 1 };
    tokio::select! {
        _ = dispatch::handle(&service, &registry, &config) => panic!("the poison has attempts left"),
        () = until("an attempt of each healthy task", async || (0..20).all(|n| handler.attempts(&format!("well{n}")) == 1)) => {}
    }
    let most = (0..20).map(|n| handler.attempts(&format!("poison{n}"))).max();
    assert!(most <= Some(3), "{most:?} attempts of one poison task came before a healthy one's first");
}
