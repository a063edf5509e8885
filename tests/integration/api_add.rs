//! `POST /api/v1/task/add`.

use futures::future::join_all;
use serde_json::{Value, json};
use tests::{START_MS, World};

use crate::api_common::{ADD, due, leased, refused, refused_json, stored, with};

#[tokio::test]
async fn a_single_add_answers_the_id_and_created_beside_it() {
    let world = World::new().await;
    let reply = world.call("POST", ADD, due("a:1")).await;
    assert_eq!(
        (reply.status, reply.body),
        (200, json!({"code": 200, "errorMessage": null, "data": "a:1", "created": true}))
    );
    let chosen = world.add(json!({"taskType": "t", "delay": 0})).await;
    let number: u64 = chosen.as_str().expect("a string").parse().expect("digits");
    assert!(number < 1 << 53, "{number} fits a Java long and a JavaScript number");
    assert_eq!(world.status(chosen.as_str().expect("a string")).await, "scheduled");
}

#[tokio::test]
async fn an_array_of_100_is_added_and_one_of_101_is_refused_whole() {
    let world = World::new().await;
    let tasks = |n: usize| Value::Array((0..n).map(|i| due(&format!("a{i}"))).collect());
    let message = refused_json(&world, ADD, &tasks(101), 400, "invalid").await;
    assert!(message.contains("100"), "{message}");
    assert!(stored(&world).await.is_empty());
    let added = world.add(tasks(100)).await;
    let wanted: Vec<Value> = (0..100).map(|i| json!({"taskId": format!("a{i}"), "created": true})).collect();
    assert_eq!(added, Value::Array(wanted));
    let mut polled = world.poll_ids("t/0", 100).await;
    polled.sort();
    polled.dedup();
    assert_eq!(polled.len(), 100);
}

#[tokio::test]
async fn an_empty_array_adds_nothing() {
    let world = World::new().await;
    assert_eq!(world.add(json!([])).await, json!([]));
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn bad_items_of_an_array_are_told_in_their_places_and_the_good_ones_are_added() {
    let world = World::new().await;
    let too_long = json!({"taskType": "t", "delay": 0, "parameters": "x".repeat(256 * 1024)});
    let items = json!([
        due("good-1"),
        {"taskType": "t", "delay": 0, "parametres": 1},
        7, null, "text", [], true, {},
        too_long,
        {"taskId": "..", "taskType": "t", "delay": 0},
        due("good-2"),
    ]);
    let added = world.add(items).await;
    let added = added.as_array().expect("an array");
    assert_eq!(added.len(), 11);
    assert_eq!(added[0], json!({"taskId": "good-1", "created": true}));
    assert_eq!(added[10], json!({"taskId": "good-2", "created": true}));
    for (place, item) in added.iter().enumerate().take(10).skip(1) {
        assert_eq!(item["error"], if place == 8 { "too_large" } else { "invalid" }, "{place}: {item}");
        assert!(item["errorMessage"].is_string() && item.get("created").is_none(), "{place}: {item}");
    }
    assert!(added[1]["errorMessage"].as_str().expect("a text").contains("parametres"));
    assert_eq!(world.poll_ids("t/0", 100).await.len(), 2);
}

#[tokio::test]
async fn equal_ids_in_one_array_are_added_one_after_the_other() {
    let world = World::new().await;
    let other = with(due("a"), &json!({"parameters": 2}));
    let added = world.add(json!([due("a"), due("a"), other, due("b"), due("a")])).await;
    assert_eq!(added[0], json!({"taskId": "a", "created": true}));
    assert_eq!(added[1], json!({"taskId": "a", "created": false}));
    assert_eq!(added[2]["error"], "task_exists");
    assert_eq!(added[3], json!({"taskId": "b", "created": true}));
    assert_eq!(added[4], json!({"taskId": "a", "created": false}));
    assert_eq!(world.task("a").await["parameters"], Value::Null);
}

#[tokio::test]
async fn a_body_that_is_no_task_is_refused() {
    let world = World::new().await;
    for body in [
        "",
        " ",
        "null",
        "true",
        "7",
        "\"text\"",
        "{",
        "{}",
        "[",
        "[1,]",
        "[{}",
        "{} {}",
        "{\"taskType\":\"t\",\"delay\":0}x",
        "{'taskType':'t','delay':0}",
        "{\"taskType\":\"t\",\"delay\":0,}",
        "{\"taskType\":\"t\",\"delay\":00}",
        "{\"taskType\":\"t\",\"delay\":0,\"delay\":0}",
        "{\"taskType\":\"t\",\"delay\":0,\"parameters\":}",
        "{\"taskType\":\"t\",\"delay\":0,\"parameters\":NaN}",
        "{\"taskType\":\"t\",\"delay\":0,\"parameters\":\"\n\"}",
        "{\"taskType\":\"t\",\"delay\":0,\"parameters\":\"\\x\"}",
        "{\"taskType\":\"t\",\"delay\":0,\"parameters\":\"\\u12\"}",
        "\u{feff}{\"taskType\":\"t\",\"delay\":0}",
    ] {
        refused(&world, "POST", ADD, body, 400, "invalid").await;
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn parameters_may_have_256_kib_of_raw_bytes_and_not_one_more() {
    let world = World::new().await;
    let limit = 256 * 1024;
    let text = |raw: &str| format!(r#"{{"taskId":"x","taskType":"t","delay":0,"parameters":{raw}}}"#);
    for too_long in [
        format!("\"{}\"", "x".repeat(limit - 1)),
        format!("[{}]", " ".repeat(limit - 1)),
        format!("\"{}\"", "é".repeat(limit / 2)),
        format!("\"{}\"", "\\u0061".repeat(limit / 6 + 1)),
    ] {
        let message = refused(&world, "POST", ADD, &text(&too_long), 413, "too_large").await;
        assert!(message.contains("parameters") && message.contains("262144"), "{message}");
    }
    assert!(stored(&world).await.is_empty());
    let most = format!("\"{}\"", "x".repeat(limit - 2));
    assert_eq!(world.call_raw("POST", ADD, &text(&most)).await.data(), "x");
    assert_eq!(world.poll("t/0", 1).await[0]["parameters"].as_str().map(str::len), Some(limit - 2));
}

#[tokio::test]
async fn a_body_may_have_6_mb_and_not_one_byte_more() {
    let world = World::new().await;
    let limit = 6 * 1024 * 1024;
    let task = due("x").to_string();
    let padded = |bytes: usize| format!("{task}{}", " ".repeat(bytes - task.len()));
    let message = refused(&world, "POST", ADD, &padded(limit + 1), 413, "too_large").await;
    assert!(message.contains(&limit.to_string()), "{message}");
    assert!(stored(&world).await.is_empty());
    assert_eq!(world.call_raw("POST", ADD, &padded(limit)).await.data(), "x");
}

#[tokio::test]
async fn idempotent_add_the_same_content_is_one_task_whatever_became_of_it() {
    let world = World::new().await;
    let task = with(due("a"), &json!({"parameters": {"n": 1}, "maxAttempts": 1}));
    let again = async || {
        let (places, task_before) = (world.redis.places_of("a"), world.task("a").await);
        let reply = world.call("POST", ADD, task.clone()).await;
        assert_eq!((reply.data(), &reply.body["created"]), (&json!("a"), &json!(false)));
        assert_eq!((world.redis.places_of("a"), world.task("a").await), (places, task_before));
    };
    world.add(task.clone()).await;
    again().await;
    world.advance(7_000);
    again().await;
    let polled = world.poll("t/0", 10).await;
    assert_eq!(polled.len(), 1);
    again().await;
    world.settle("nack", &polled[0], json!({"permanent": true})).await.data();
    again().await;
    assert_eq!(world.status("a").await, "dead");
    world.call("POST", "/api/v1/task/redrive/a", json!({})).await.data();
    let polled = world.poll("t/0", 10).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    again().await;
    assert_eq!(world.status("a").await, "succeeded");
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.redis.places_of("a"), 0);
}

#[tokio::test]
async fn idempotent_add_other_content_is_refused_and_the_stored_task_stays() {
    let world = World::new().await;
    let task = json!({"taskId": "a", "taskType": "t", "delay": 60_000, "parameters": {"n": 1}});
    world.add(task.clone()).await;
    for other in [
        json!({"taskType": "u"}),
        json!({"priority": 1}),
        json!({"delay": 60_001}),
        json!({"delay": null, "executeTime": START_MS + 60_000}),
        json!({"parameters": {"n": 2}}),
        json!({"parameters": null}),
        json!({"handler": "webhook"}),
        json!({"maxAttempts": 6}),
        json!({"backoff": {"kind": "fixed", "delay": 1}}),
        json!({"retention": 1}),
        json!({"timeout": 1}),
    ] {
        refused_json(&world, ADD, &with(task.clone(), &other), 409, "task_exists").await;
    }
    let spaced = r#"{"taskId":"a","taskType":"t","delay":60000,"parameters":{"n": 1}}"#;
    refused(&world, "POST", ADD, spaced, 409, "task_exists").await;
    let same = r#"{"parameters":{"n":1}, "delay":"PT1M", "taskType":"t", "taskId":"a", "priority":0}"#;
    assert_eq!(world.call_raw("POST", ADD, same).await.body["created"], false);
    world.advance(60_000);
    assert_eq!(world.poll("t/0", 1).await[0]["parameters"], json!({"n": 1}));
}

#[tokio::test]
async fn idempotent_add_after_a_cancel_makes_a_new_task() {
    let world = World::new().await;
    for (round, task) in [due("a"), due("a"), with(due("a"), &json!({"taskType": "u"}))].into_iter().enumerate() {
        let reply = world.call("POST", ADD, task).await;
        assert_eq!(reply.body["created"], true, "{round}");
        assert_eq!(world.redis.places_of("a"), 1);
        if round < 2 {
            world.call("POST", "/api/v1/task/cancel/a", json!({})).await.data();
        }
    }
    assert!(world.poll("t/0", 10).await.is_empty());
    let polled = world.poll("u/0", 10).await;
    assert_eq!((polled.len(), &polled[0]["attempt"]), (1, &json!(1)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idempotent_add_of_20_equal_tasks_at_once_creates_exactly_one() {
    let world = World::new().await;
    for id in 0..10 {
        let replies = join_all((0..20).map(|_| world.call("POST", ADD, due(&id.to_string())))).await;
        let created: Vec<&Value> = replies.iter().map(|reply| &reply.body["created"]).collect();
        assert!(replies.iter().all(|reply| reply.data() == &json!(id.to_string())));
        assert_eq!(created.iter().filter(|created| **created == true).count(), 1, "{created:?}");
    }
    assert_eq!(world.poll_ids("t/0", 100).await.len(), 10);
}

#[tokio::test]
async fn a_finished_task_is_kept_for_its_retention_and_then_its_id_is_free() {
    let world = World::new().await;
    let task = with(due("a"), &json!({"retention": 1_000}));
    let polled = leased(&world, task.clone()).await;
    world.settle("ack", &polled, json!({})).await.data();
    world.advance(999);
    assert_eq!(world.status("a").await, "succeeded");
    let reply = world.call("POST", ADD, task.clone()).await;
    assert_eq!(reply.body["created"], false, "its retention has not ended");
    world.advance(1);
    assert_eq!(world.get("/api/v1/task/a").await.error(), (404, "not_found"));
    assert_eq!(world.call("DELETE", "/api/v1/task/cancel/a", Value::Null).await.error(), (404, "not_found"));
    assert_eq!(world.get("/api/v1/task/cancel/a").await.data(), false);
    assert_eq!(world.settle("ack", &polled, json!({})).await.error(), (404, "not_found"));
    assert_eq!(world.call("POST", ADD, task).await.body["created"], true);
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn retention_counts_from_the_end_of_the_task_and_not_from_its_add() {
    let world = World::new().await;
    world.add(json!({"taskId": "a", "taskType": "t", "delay": "P30D", "retention": 1_000})).await;
    for _ in 0..3 {
        world.advance(10 * 24 * 60 * 60 * 1_000);
        assert_eq!(world.status("a").await, "scheduled");
    }
    world.refresh().await;
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn a_task_that_names_a_handler_is_never_polled() {
    let world = World::new().await;
    world.add(with(due("a"), &json!({"handler": "webhook"}))).await;
    assert!(world.poll("t/0", 10).await.is_empty());
    assert!(world.poll("t", 10).await.is_empty());
    assert_eq!(world.get("/api/v1/task/poll/t/0").await.data(), &Value::Null);
    assert_eq!(world.task("a").await["attempts"], 0);
}

#[tokio::test]
async fn null_fields_count_as_left_out() {
    let world = World::new().await;
    let task = json!({"taskId": null, "taskType": "t", "priority": null, "executeTime": null, "delay": 0,
        "parameters": null, "handler": null, "maxAttempts": null, "backoff": null, "retention": null, "timeout": null});
    let id = world.add(task).await;
    let task = world.task(id.as_str().expect("an id")).await;
    assert_eq!((&task["priority"], &task["maxAttempts"]), (&json!(0), &json!(5)));
    assert_eq!(task["retention"], 7 * 24 * 60 * 60 * 1_000);
    assert_eq!(task["parameters"], Value::Null);
    assert_eq!(
        task["backoff"],
        json!({"kind": "exponential", "initial": 1000, "factor": 2.0, "max": 3_600_000, "jitter": 0.1})
    );
    assert!(task.get("handler").is_none() && task.get("timeout").is_none());
    let plain = with(due("n"), &json!({"parameters": null, "backoff": null}));
    world.add(plain).await;
    assert_eq!(world.call("POST", ADD, due("n")).await.body["created"], false);
}
