//! `GET /api/v1/task/{taskId}`, `/api/v1/task`, `/api/v1/queues` and `/health`.

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::{START_MS, Settings, World, call_event, event, ids};

use crate::api_common::{due, leased, one_of_each_state, refused, reply_of, with};

const LIST: &str = "/api/v1/task";

#[tokio::test]
async fn a_task_is_shown_whole_in_every_state_and_never_with_its_token() {
    let world = World::new().await;
    world
        .add(json!({"taskId": "a", "taskType": "t", "priority": 2, "executeTime": START_MS + 5, "parameters": {"n": 1},
        "maxAttempts": 2, "backoff": {"kind": "fixed", "delay": 7}, "retention": 9_000, "timeout": 11}))
        .await;
    let common = json!({"taskId": "a", "taskType": "t", "priority": 2, "parameters": {"n": 1}, "maxAttempts": 2,
        "backoff": {"kind": "fixed", "delay": 7, "jitter": 0.0}, "retention": 9_000, "timeout": 11,
        "createdAt": START_MS});
    let shows = async |more: Value| assert_eq!(world.task("a").await, with(common.clone(), &more));
    shows(json!({"status": "scheduled", "executeTime": START_MS + 5, "attempts": 0, "version": 1,
        "updatedAt": START_MS}))
    .await;
    world.advance(5);
    let polled = world.poll("t/2", 1).await.remove(0);
    shows(json!({"status": "leased", "executeTime": START_MS + 5, "attempts": 1, "attempt": 1, "version": 2,
        "updatedAt": START_MS + 5, "leaseUntil": START_MS + 30_005}))
    .await;
    world.advance(1);
    world.settle("nack", &polled, json!({"error": "busy"})).await.data();
    let error = json!({"attempt": 1, "at": START_MS + 6, "message": "busy"});
    shows(json!({"status": "scheduled", "executeTime": START_MS + 13, "attempts": 1, "version": 3,
        "updatedAt": START_MS + 6, "lastError": error}))
    .await;
    world.advance(7);
    let polled = world.poll("t/2", 1).await.remove(0);
    world.settle("nack", &polled, json!({"error": "gone"})).await.data();
    let error = json!({"attempt": 2, "at": START_MS + 13, "message": "gone"});
    shows(json!({"status": "dead", "executeTime": START_MS + 13, "attempts": 2, "version": 5,
        "updatedAt": START_MS + 13, "finishedAt": START_MS + 13, "lastError": error}))
    .await;
}

#[tokio::test]
async fn an_unknown_task_is_404() {
    let world = World::new().await;
    for id in ["nobody", "..", "a%20b", "%7E", "~", &"x".repeat(129)] {
        refused(&world, "GET", &format!("{LIST}/{id}"), "", 404, "not_found").await;
    }
}

#[tokio::test]
async fn a_task_whose_id_is_a_word_of_the_paths_is_a_task_like_any_other() {
    let world = World::new().await;
    for id in ["add", "poll", "ack", "cancel", "health", "queues", "task", "api", "v1"] {
        leased(&world, due(id)).await;
        let event = event("GET", &format!("/Prod{LIST}/{id}"), "");
        assert_eq!(reply_of("inspect", &world, &event).await.data()["taskId"], id);
        assert_eq!(world.get(&format!("/api/v1/task/cancel/{id}")).await.data(), true, "{id}");
    }
}

#[tokio::test]
async fn tasks_are_listed_by_status_type_and_priority_in_due_order() {
    let world = World::new().await;
    let tasks = one_of_each_state(&world).await;
    assert!(tasks["leased"]["leaseToken"].is_string());
    world.add(json!({"taskId": "overdue", "taskType": "t", "executeTime": START_MS - 5, "parameters": {"n": 1}})).await;
    world.add(json!({"taskId": "seven", "taskType": 7, "priority": 3, "delay": "P300D"})).await;
    world
        .add(json!({"taskId": "handled", "taskType": "u", "priority": 3, "delay": 70_000, "handler": "webhook"}))
        .await;
    for (query, wanted) in [
        ("", vec!["overdue", "scheduled", "handled", "seven"]),
        ("?", vec!["overdue", "scheduled", "handled", "seven"]),
        ("?status=scheduled", vec!["overdue", "scheduled", "handled", "seven"]),
        ("?status=scheduled&taskType=t", vec!["overdue", "scheduled"]),
        ("?taskType=7", vec!["seven"]),
        ("?taskType=7&priority=0", vec![]),
        ("?priority=3", vec!["handled", "seven"]),
        ("?priority=3&taskType=u", vec!["handled"]),
        ("?taskType=nobody", vec![]),
        ("?limit=100", vec!["overdue", "scheduled", "handled", "seven"]),
        ("?status=leased", vec!["leased"]),
        ("?status=leased&taskType=u", vec![]),
        ("?status=dead&taskType=t&priority=0", vec!["dead"]),
        ("?status=dead&priority=1", vec![]),
    ] {
        let reply = world.get(&format!("{LIST}{query}")).await;
        let tasks = reply.data()["tasks"].as_array().expect("an array");
        assert_eq!(ids(tasks), wanted, "{query}");
        assert_eq!(reply.data()["cursor"], Value::Null, "{query}");
        assert!(tasks.iter().all(|task| task.get("leaseToken").is_none()), "{query}");
        assert!(tasks.iter().all(|task| task.get("parameters").is_some()), "{query}");
    }
}

#[tokio::test]
async fn a_listing_is_paged_over_all_shards_in_due_order_with_none_lost_and_none_twice() {
    let world = World::with(Settings { index_shards: 16, ..Settings::default() }).await;
    for batch in 0..3 {
        let tasks = (0..100).map(|i| {
            let number = batch * 100 + i;
            // Many are due at the same moment.
            json!({"taskId": format!("a{number}"), "taskType": if number % 3 == 0 { "x" } else { "y" },
                "delay": 60_000 + (number * 7_919 % 300) / 10})
        });
        world.add(tasks.collect()).await;
    }
    for (filter, limit, wanted) in [("", 7, 300), ("", 100, 300), ("&taskType=x", 1, 100), ("&taskType=y", 33, 200)] {
        let mut seen: Vec<Value> = Vec::new();
        let mut cursor = String::new();
        loop {
            let reply = world.get(&format!("{LIST}?limit={limit}{filter}{cursor}")).await;
            let page = reply.data()["tasks"].as_array().expect("an array").clone();
            assert!(page.len() <= limit, "{filter}");
            seen.extend(page);
            match reply.data()["cursor"].as_str() {
                None => break,
                Some(next) => {
                    let encoded = next.replace('#', "%23").replace(':', "%3A");
                    cursor = format!("&cursor={encoded}");
                }
            }
        }
        assert!(seen.is_sorted_by_key(|task| task["executeTime"].as_i64()), "{filter}");
        let mut all = ids(&seen);
        all.sort();
        all.dedup();
        assert_eq!((seen.len(), all.len()), (wanted, wanted), "{filter}");
    }
    let first = world.get(LIST).await;
    assert_eq!(first.data()["tasks"].as_array().map(Vec::len), Some(50), "50 when no limit is given");
}

#[tokio::test]
async fn a_listing_of_large_tasks_stays_under_6_mb_and_goes_on_where_it_ended() {
    let world = World::new().await;
    let raw = format!("\"{}\"", "\\\"".repeat(128 * 1024 - 1));
    for i in 0..25 {
        let task = format!(r#"{{"taskId":"a{i:02}","taskType":"t","delay":{},"parameters":{raw}}}"#, 60_000 + i);
        world.call_raw("POST", "/api/v1/task/add", &task).await.data();
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let path = format!("{LIST}?limit=100{cursor}");
        let answer = inspect::handle(&world.service, &event("GET", &path, "")).await;
        let counted = serde_json::to_string(&answer).expect("an answer").len();
        assert!(counted < 6_291_556, "{counted}");
        let reply: Value = serde_json::from_str(&answer.body).expect("the envelope");
        assert_eq!(answer.status_code, 200, "{reply}");
        seen.extend(ids(reply["data"]["tasks"].as_array().expect("an array")));
        match reply["data"]["cursor"].as_str() {
            None => break,
            Some(next) => cursor = format!("&cursor={}", next.replace('#', "%23")),
        }
    }
    assert_eq!(seen, (0..25).map(|i| format!("a{i:02}")).collect::<Vec<_>>());
}

/// Two pages of the index can, for a task that moved in between; DynamoDB refuses a key that is named twice.
#[tokio::test]
async fn a_task_that_is_asked_for_twice_is_read_once() {
    let world = World::new().await;
    world.add(json!({"taskId": "a", "taskType": "t", "delay": 60_000})).await;
    let read = world.service.table.states(&["a".to_owned(), "a".to_owned()]).await.expect("an answer");
    assert_eq!(read.keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_bad_or_unknown_parameter_of_a_listing_is_refused_by_name() {
    let world = World::new().await;
    for (name, values) in [
        ("status", vec!["", "succeeded", "cancelled", "Scheduled", "ready", "null"]),
        ("taskType", vec!["", "a%20b", ".", "a:b", "%7Bt%7D"]),
        ("priority", vec!["", "-1", "256", "1.0", "+1", "a"]),
        ("limit", vec!["", "0", "-1", "101", "1e1", "all"]),
        ("cursor", vec!["", "x", "0%23a", "00000000000000x%23a", "001800000000000%23", "001800000000000%23a%20b"]),
        ("offset", vec!["1"]),
        ("Status", vec!["dead"]),
    ] {
        for value in values {
            let message = refused(&world, "GET", &format!("{LIST}?{name}={value}"), "", 400, "invalid").await;
            assert!(message.starts_with(&format!("{name}: ")), "{name}={value}: {message}");
        }
    }
}

#[tokio::test]
async fn queues_tell_what_each_holds() {
    let world = World::new().await;
    assert_eq!(world.get("/api/v1/queues").await.data(), &json!([]));
    one_of_each_state(&world).await;
    world.add(json!({"taskId": "far", "taskType": "t", "delay": "P300D"})).await;
    for (id, delay) in [("r1", 1_000), ("r2", 2_000), ("s1", 10_000)] {
        world.add(json!({"taskId": id, "taskType": 7, "priority": 9, "delay": delay})).await;
    }
    world.advance(5_000);
    let wanted = json!([
        {"taskType": 7, "priority": 9, "scheduled": 1, "ready": 2, "leased": 0, "dead": 0, "oldestDueAgeMs": 4_000},
        {"taskType": "t", "priority": 0, "scheduled": 1, "ready": 0, "leased": 1, "dead": 1, "oldestDueAgeMs": 0},
    ]);
    assert_eq!(world.get("/api/v1/queues").await.data(), &wanted);
    world.refresh().await;
    assert_eq!(world.get("/api/v1/queues").await.data(), &wanted, "the same after they are moved");
    world.redis.run("FLUSHALL");
    world.refresh().await;
    let after = world.get("/api/v1/queues").await;
    assert_eq!(after.data()[0], wanted[0], "the same after Redis lost everything");
    refused(&world, "GET", "/api/v1/queues/t", "", 404, "not_found").await;
}

#[tokio::test]
async fn queues_count_over_all_partitions_of_a_queue() {
    let world = World::with(Settings { queue_partitions: 4, ..Settings::default() }).await;
    world.add((0..50).map(|i| due(&i.to_string())).collect()).await;
    leased(&world, with(due("first"), &json!({"taskType": "u"}))).await;
    world.advance(3_000);
    let reply = world.get("/api/v1/queues").await;
    assert_eq!(
        reply.data()[0],
        json!({"taskType": "t", "priority": 0, "scheduled": 0, "ready": 50, "leased": 0,
        "dead": 0, "oldestDueAgeMs": 3_000})
    );
    assert_eq!(reply.data()[1]["leased"], 1);
}

#[tokio::test]
async fn health_is_503_without_dynamodb_and_200_without_redis() {
    let mut world = World::new().await;
    let reply = world.get("/health").await;
    assert_eq!(reply.data()["dynamodb"], "ok");
    assert_eq!(reply.data()["redis"], "ok");
    assert!(reply.data()["version"].as_str().is_some_and(|version| !version.is_empty()));
    world.redis.stop();
    let reply = world.get("/health").await;
    assert_eq!(reply.data()["dynamodb"], "ok");
    // Anybody may ask, so no reason is told.
    assert_eq!(reply.data()["redis"], "not reached");
    let closed = connect_to("http://127.0.0.1:9").await;
    let clock = Clock::Manual(world.clock.clone());
    let service = Service::new(closed, clock, world.service.config.clone()).expect("valid");
    let reply = call_event(&service, "/health", &event("GET", "/health", "")).await;
    assert_eq!((reply.status, &reply.body["code"]), (503, &json!(503)));
    assert_eq!(reply.body["data"]["dynamodb"], "not reached");
    assert!(reply.body["data"]["version"].is_string() && reply.body["data"]["redis"].is_string());
}
