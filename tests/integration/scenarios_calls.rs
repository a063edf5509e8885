//! The scenarios of faults seen elsewhere, by their number: what single calls answer and keep.

use base64::Engine;
use futures::future::join_all;
use serde_json::{Value, json};
use tests::{World, call_event, ids, task};

#[tokio::test]
async fn scenario_17_the_stage_and_odd_slashes_in_a_path_lead_to_the_same_function() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    for (stage, path) in [
        ("$default", "/api/v1/task/a"),
        ("Prod", "/Prod/api/v1/task/a"),
        ("v1", "/v1/api/v1/task/a"),
        ("$default", "/api/v1/task/%61"),
    ] {
        let v2 = json!({"version": "2.0", "rawPath": path, "rawQueryString": "",
            "requestContext": {"http": {"method": "GET", "path": path}, "stage": stage}});
        let v1 = json!({"version": "1.0", "path": path, "httpMethod": "GET", "body": null,
            "requestContext": {"stage": stage, "path": path}});
        for event in [v2, v1] {
            let reply = call_event(&world.service, "/api/v1/inspect", &event.to_string()).await;
            assert_eq!(reply.data()["taskId"], "a", "{event}");
        }
    }
    for path in ["/api/v1/task/a/", "//api/v1/task/a", "/api/v1//task/a", "/api/v1/task/%zz", "/api/v1/task/%00"] {
        let reply = world.get(path).await;
        assert!([200, 400, 404].contains(&reply.status), "{path}: {}", reply.body);
    }
}

#[tokio::test]
async fn scenario_18_a_base64_body_is_the_same_body() {
    let world = World::new().await;
    let event = |body: Value, flag: bool| {
        json!({"version": "2.0", "rawPath": "/api/v1/task/add", "rawQueryString": "", "body": body,
            "isBase64Encoded": flag,
            "requestContext": {"http": {"method": "POST", "path": "/api/v1/task/add"}, "stage": "$default"}})
        .to_string()
    };
    let add = async |body: Value, flag: bool| call_event(&world.service, "/api/v1/task/add", &event(body, flag)).await;
    let encoded = base64::engine::general_purpose::STANDARD.encode(task("a", 0).to_string());
    assert_eq!(add(json!(encoded), true).await.data(), "a");
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
    for (body, flag) in [(json!("%%%"), true), (Value::Null, false), (json!(""), false), (Value::Null, true)] {
        assert_eq!(add(body.clone(), flag).await.error(), (400, "invalid"), "{body} {flag}");
    }
}

#[tokio::test]
async fn scenario_29_a_duplicate_id_answers_what_is_stored() {
    let world = World::new().await;
    world.add(task("x", 60_000)).await;
    let mut other = task("x", 90_000);
    other["parameters"] = json!("b");
    assert_eq!(world.call("POST", "/api/v1/task/add", other).await.error(), (409, "task_exists"));
    let stored = world.task("x").await;
    assert_eq!((&stored["executeTime"], &stored["parameters"]), (&json!(world.now() + 60_000), &json!({"n": 1})));
    let again = world.call("POST", "/api/v1/task/add", task("x", 60_000)).await;
    assert_eq!((again.status, &again.body["created"]), (200, &json!(false)));
    let at_once = join_all((0..20).map(|_| world.call("POST", "/api/v1/task/add", task("y", 60_000)))).await;
    assert_eq!(at_once.iter().filter(|reply| reply.body["created"] == true).count(), 1);
}

#[tokio::test]
async fn scenario_30_what_is_not_leased_cannot_be_settled_and_what_is_over_not_cancelled() {
    let world = World::new().await;
    world.add(task("x", 1_000)).await;
    for verb in ["ack", "nack", "extend"] {
        let reply = world.settle(verb, &json!({"taskId": "x", "leaseToken": "made-up"}), json!({})).await;
        assert_eq!(reply.error(), (409, "lease_lost"), "{verb}");
    }
    world.advance(1_000);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(ids(&polled), ["x"]);
    world.settle("ack", &polled[0], json!({})).await.data();
    let cancel =
        async |method: &str, id: &str| world.call(method, &format!("/api/v1/task/cancel/{id}"), Value::Null).await;
    assert_eq!(cancel("DELETE", "x").await.error(), (409, "task_finished"));
    assert_eq!(cancel("DELETE", "unknown").await.error(), (404, "not_found"));
    assert_eq!(
        (cancel("GET", "x").await.data(), cancel("GET", "unknown").await.data()),
        (&json!(false), &json!(false))
    );
    world.add(task("y", 1_000)).await;
    for method in ["DELETE", "POST", "GET", "DELETE"] {
        assert_eq!(cancel(method, "y").await.data(), true);
    }
    assert_eq!(world.status("x").await, "succeeded");
}

#[tokio::test]
async fn scenario_31_a_negative_delay_is_refused_and_a_late_attempt_waits_no_longer_than_its_cap() {
    let world = World::new().await;
    let backoff = json!({"kind": "exponential", "initial": 1_000, "factor": 1_000, "max": 60_000, "jitter": 0});
    world.add(json!({"taskId": "x", "taskType": "t", "delay": 0, "maxAttempts": 1_000, "backoff": backoff})).await;
    for attempt in 1..=70 {
        let held = world.poll("t/0", 1).await.remove(0);
        assert_eq!(held["attempt"], attempt);
        if attempt == 1 {
            assert_eq!(world.settle("nack", &held, json!({"delay": -5})).await.error(), (400, "invalid"));
        }
        world.settle("nack", &held, json!({})).await.data();
        let delay = world.task("x").await["executeTime"].as_i64().expect("a time") - world.now();
        assert_eq!(delay, if attempt == 1 { 1_000 } else { 60_000 });
        world.advance(60_000);
    }
}

#[tokio::test]
async fn scenario_32_parameters_come_back_byte_for_byte_however_often() {
    let world = World::new().await;
    let parameters = r#"{"id":130775545883395173,"n":300000000,"a":[], "o":{},"f":1.0,"e":1e400,"u":"\u0000é😀"}"#;
    let body = format!(r#"{{"taskId":300000000,"taskType":"t","delay":5,"parameters":{parameters}}}"#);
    assert_eq!(world.call_raw("POST", "/api/v1/task/add", &body).await.data(), "300000000");
    world.advance(5);
    world.refresh().await;
    for _ in 0..2 {
        let event = tests::event("POST", "/api/v1/task/poll/t/0", "");
        let answer = poll::handle(&world.service, &event).await;
        assert!(answer.body.contains(&format!(r#""parameters":{parameters}"#)), "{}", answer.body);
        let envelope: Value = serde_json::from_str(&answer.body.replace("1e400", "1")).expect("JSON");
        let held = &envelope["data"][0];
        assert_eq!(held["taskId"], "300000000");
        world.settle("nack", held, json!({"delay": 0})).await.data();
    }
}

#[tokio::test]
async fn scenario_33_what_is_too_large_leaves_no_trace_and_a_long_error_is_cut() {
    let world = World::new().await;
    let limit = 256 * 1_024;
    let of = |id: &str, bytes: usize| json!({"taskId": id, "taskType": "t", "delay": 0, "parameters": "x".repeat(bytes - 2)});
    for bytes in [limit + 1, 390 * 1_024, 400 * 1_024 + 1] {
        let reply = world.call("POST", "/api/v1/task/add", of("large", bytes)).await;
        assert_eq!(reply.error(), (413, "too_large"));
        assert!(reply.body["errorMessage"].as_str().expect("a text").contains(&limit.to_string()));
    }
    assert!(world.redis.keys().is_empty());
    assert_eq!(world.status("large").await, "unknown");
    world.add(of("fits", limit)).await;
    let held = world.poll("t/0", 1).await.remove(0);
    let reply = world.settle("nack", &held, json!({"error": "é".repeat(100_000), "delay": 9})).await;
    assert_eq!(reply.data(), true);
    let task = world.task("fits").await;
    assert_eq!(task["status"], "scheduled");
    let message = task["lastError"]["message"].as_str().expect("a text");
    assert!(message.len() < 20_000 && message.chars().all(|c| c == 'é'), "{}", message.len());
}

#[tokio::test]
async fn scenario_34_retention_begins_at_the_end_and_an_expired_item_is_gone() {
    let world = World::new().await;
    let (day, retention) = (86_400_000_i64, 14 * 86_400_000_i64);
    let add = json!({"taskId": "x", "taskType": "t", "delay": 30 * day, "retention": retention});
    world.add(add.clone()).await;
    let expires_at = async || {
        let client = punctual_core::table::connect_to(&world.endpoint).await;
        let key = aws_sdk_dynamodb::types::AttributeValue::S("x".to_owned());
        let answer = client.get_item().table_name("tasks").key("taskId", key).send().await.expect("an item");
        let item = answer.item.expect("an item");
        item.get("expiresAt").map(|value| value.as_n().expect("a number").parse::<i64>().expect("seconds"))
    };
    assert_eq!(expires_at().await, None, "a task that is not over does not expire");
    world.call("POST", "/api/v1/task/reschedule/x", json!({"delay": 40 * day})).await.data();
    assert_eq!(expires_at().await, None);
    for _ in 0..40 {
        world.advance(u32::try_from(day).expect("small"));
    }
    world.refresh().await;
    let held = world.poll("t/0", 1).await.remove(0);
    world.settle("ack", &held, json!({})).await.data();
    assert_eq!(expires_at().await, Some((world.now() + retention) / 1_000));
    for _ in 0..14 {
        assert_eq!(world.status("x").await, "succeeded");
        world.advance(u32::try_from(day).expect("small"));
    }
    // DynamoDB has not deleted it yet; to everyone else it is gone, and its id is free.
    assert_eq!(world.get("/api/v1/task/x").await.error(), (404, "not_found"));
    world.refresh().await;
    world.recover().await;
    assert!(world.poll("t/0", 1).await.is_empty());
    assert_eq!(world.call("POST", "/api/v1/task/add", add).await.body["created"], true);
}

#[tokio::test]
async fn scenario_38_a_late_ack_has_one_answer_each_time() {
    let world = World::new().await;
    world.add(task("x", 0)).await;
    let first = world.poll("t/0", 1).await.remove(0);
    world.advance(30_000);
    let second = world.poll("t/0", 1).await.remove(0);
    let lost = async || assert_eq!(world.settle("ack", &first, json!({})).await.error(), (409, "lease_lost"));
    lost().await;
    world.advance(60_000);
    // The second lease has ended, too, but nobody took the task since.
    assert_eq!(world.settle("ack", &second, json!({})).await.data(), true);
    for _ in 0..2 {
        assert_eq!(world.settle("ack", &second, json!({})).await.data(), true);
        lost().await;
    }
}
