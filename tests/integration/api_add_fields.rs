//! The fields of a task that is added: every good and every bad form.

use serde_json::{Value, json};
use tests::{START_MS, World};

use crate::api_common::{ADD, due, refused, refused_json, stored, with};

async fn refused_task(world: &World, more: Value, field: &str) -> String {
    let mut task = with(json!({"taskId": "x", "taskType": "t", "delay": 0}), &more);
    if more.get("executeTime").is_some() && more.get("delay").is_none() {
        task.as_object_mut().expect("an object").remove("delay");
    }
    let message = refused_json(world, ADD, &task, 400, "invalid").await;
    assert!(message.starts_with(&format!("{field}: ")), "{task}: {message}");
    message
}

#[tokio::test]
async fn ids_of_every_good_form_are_given_back_as_strings() {
    let world = World::new().await;
    let long = "x".repeat(128);
    for (sent, id) in [
        (json!(300_000_000), "300000000"),
        (json!(0), "0"),
        (json!(-5), "-5"),
        (json!(9_223_372_036_854_775_807_i64), "9223372036854775807"),
        (json!("007"), "007"),
        (json!("Az09_.:-"), "Az09_.:-"),
        (json!("..."), "..."),
        (json!(":"), ":"),
        (json!(long), &long),
    ] {
        let task = with(due("x"), &json!({"taskId": sent}));
        assert_eq!(world.add(task).await, id);
        let polled = world.poll("t/0", 1).await;
        assert_eq!(polled[0]["taskId"], id);
        assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true, "{id}");
        assert_eq!(world.task(id).await["taskId"], id);
    }
    let beyond = r#"{"taskId":123456789012345678901234567890,"taskType":"t","delay":0}"#;
    assert_eq!(world.call_raw("POST", ADD, beyond).await.data(), "123456789012345678901234567890");
}

#[tokio::test]
async fn ids_of_every_bad_form_are_refused() {
    let world = World::new().await;
    for bad in [
        json!(""),
        json!("."),
        json!(".."),
        json!("a b"),
        json!("a/b"),
        json!("a%2F"),
        json!("a\u{0}"),
        json!("任务"),
        json!("é"),
        json!("{a}"),
        json!("~"),
        json!("x".repeat(129)),
        json!(1.5),
        json!(true),
        json!([]),
        json!({}),
    ] {
        refused_task(&world, json!({"taskId": bad}), "taskId").await;
    }
    for bad in ["1e3", "1.0", "\"\\ud800\""] {
        let body = format!(r#"{{"taskId":{bad},"taskType":"t","delay":0}}"#);
        assert!(refused(&world, "POST", ADD, &body, 400, "invalid").await.starts_with("taskId: "), "{bad}");
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn seven_and_the_text_seven_are_one_queue_and_given_back_as_they_came() {
    let world = World::new().await;
    world.add(json!({"taskId": "number", "taskType": 7, "delay": 0})).await;
    world.advance(1);
    world.add(json!({"taskId": "text", "taskType": "7", "delay": 0})).await;
    let queues = world.get("/api/v1/queues").await;
    assert_eq!(queues.data().as_array().map(Vec::len), Some(1), "{}", queues.body);
    assert_eq!(queues.data()[0]["taskType"], json!(7));
    assert_eq!(queues.data()[0]["ready"], 2);
    let polled = world.poll("7/0", 10).await;
    assert_eq!((&polled[0]["taskType"], &polled[1]["taskType"]), (&json!(7), &json!("7")));
    assert_eq!(world.task("number").await["taskType"], json!(7));
    assert_eq!(world.task("text").await["taskType"], json!("7"));
    let listed = world.get("/api/v1/task?status=leased&taskType=7").await;
    assert_eq!(listed.data()["tasks"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn every_good_type_is_a_queue_of_its_own() {
    let world = World::new().await;
    let names = ["future_x", "a_1", "a", "A", "a.1", "a-1", "07", "_", "-", "...", "topic", "lease_0.0"];
    let (longest, priorities) = ("x".repeat(64), [0, 1, 2, 255]);
    for name in names.into_iter().chain([longest.as_str()]) {
        for priority in priorities {
            let id = format!("{name}:{priority}");
            world.add(json!({"taskId": id, "taskType": name, "priority": priority, "delay": 0})).await;
        }
    }
    for name in names.into_iter().chain([longest.as_str()]) {
        for priority in priorities {
            let ids = world.poll_ids(&format!("{name}/{priority}"), 100).await;
            assert_eq!(ids, [format!("{name}:{priority}")]);
        }
    }
    for number in [i64::MIN, -1, 0, i64::MAX] {
        world.add(json!({"taskType": number, "delay": 0})).await;
        assert_eq!(world.poll(&format!("{number}/0"), 1).await[0]["taskType"], json!(number));
    }
}

#[tokio::test]
async fn bad_types_are_refused() {
    let world = World::new().await;
    for bad in [
        json!(""),
        json!("."),
        json!(".."),
        json!("a:b"),
        json!("{t}"),
        json!("*"),
        json!("[ab]"),
        json!("任务"),
        json!("a b"),
        json!("a/b"),
        json!("a@b"),
        json!("x".repeat(65)),
        json!("x".repeat(300)),
        json!(1.5),
        json!(18_446_744_073_709_551_615_u64),
        json!(true),
        json!([]),
        json!({}),
        Value::Null,
    ] {
        refused_task(&world, json!({"taskType": bad}), "taskType").await;
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn numbers_have_limits_and_are_not_clamped() {
    let world = World::new().await;
    for (field, good, bad) in [
        ("priority", vec![json!(0), json!(255)], vec![json!(-1), json!(256), json!("1"), json!(1.0), json!([])]),
        ("maxAttempts", vec![json!(1), json!(1000)], vec![json!(0), json!(1001), json!(-1), json!("5"), json!(2.5)]),
        ("retention", vec![json!(0), json!(1), json!(1_209_600_000)], vec![json!(-1), json!("P1D"), json!(1e300)]),
        ("timeout", vec![json!(1), json!(600_000)], vec![json!(0), json!(-1), json!(600_001), json!(true)]),
        ("handler", vec![json!("webhook")], vec![json!(""), json!("a b"), json!(1), json!("x".repeat(65))]),
    ] {
        for value in bad {
            refused_task(&world, json!({field: value}), field).await;
        }
        for value in good {
            let id = world.add(json!({"taskType": "t", "delay": 0, field: value})).await;
            assert_eq!(world.task(id.as_str().expect("an id")).await[field], value, "{field}");
        }
    }
}

#[tokio::test]
async fn due_times_of_every_good_form_are_kept_to_the_millisecond() {
    let world = World::new().await;
    for (sent, due) in [
        (json!({"executeTime": START_MS + 1}), START_MS + 1),
        (json!({"executeTime": 100_000_000_000_i64}), 100_000_000_000),
        (json!({"executeTime": 253_402_300_799_999_i64}), 253_402_300_799_999),
        (json!({"executeTime": "1970-01-01T00:00:00Z"}), 0),
        (json!({"executeTime": "2027-01-15T10:00:00.25+02:00"}), START_MS + 250),
        (json!({"executeTime": "2030-01-31t18:00:00z"}), 1_896_112_800_000),
        (json!({"executeTime": "9999-12-31T23:59:59.999Z"}), 253_402_300_799_999),
        (json!({"delay": 0}), START_MS),
        (json!({"delay": 1_800_000}), START_MS + 1_800_000),
        (json!({"delay": "PT30M"}), START_MS + 1_800_000),
        (json!({"delay": "P1DT2H"}), START_MS + 93_600_000),
        (json!({"delay": "PT0S"}), START_MS),
        (json!({"delay": "PT1.5S"}), START_MS + 1_500),
        (json!({"delay": 253_402_300_799_999_i64 - START_MS}), 253_402_300_799_999),
        (json!({"executeTime": START_MS, "delay": null}), START_MS),
        (json!({"executeTime": null, "delay": 5}), START_MS + 5),
    ] {
        let id = world.add(with(json!({"taskType": "t"}), &sent)).await;
        let task = world.task(id.as_str().expect("an id")).await;
        assert_eq!(task["executeTime"], due, "{sent}");
    }
    // What was due before now is due now, the earliest first; the rest is not.
    let polled = world.poll("t/0", 100).await;
    let times: Vec<i64> = polled.iter().map(|task| task["executeTime"].as_i64().expect("a time")).collect();
    assert_eq!(times, [0, 100_000_000_000, START_MS, START_MS, START_MS]);
}

#[tokio::test]
async fn due_times_of_every_bad_form_are_refused() {
    let world = World::new().await;
    for (sent, field) in [
        (json!({"executeTime": START_MS, "delay": 0}), "delay"),
        (json!({"delay": null}), "executeTime"),
        (json!({"delay": -1}), "delay"),
        (json!({"delay": 1.5}), "delay"),
        (json!({"delay": "30"}), "delay"),
        (json!({"delay": ""}), "delay"),
        (json!({"delay": "P1M"}), "delay"),
        (json!({"delay": "P1Y"}), "delay"),
        (json!({"delay": "-PT5M"}), "delay"),
        (json!({"delay": "PT-5M"}), "delay"),
        (json!({"delay": "P99999999999D"}), "delay"),
        (json!({"delay": 253_402_300_800_000_i64 - START_MS}), "delay"),
        (json!({"delay": i64::MAX}), "delay"),
        (json!({"delay": true}), "delay"),
        (json!({"executeTime": START_MS as f64 + 0.5}), "executeTime"),
        (json!({"executeTime": START_MS.to_string()}), "executeTime"),
        (json!({"executeTime": 253_402_300_800_000_i64}), "executeTime"),
        (json!({"executeTime": i64::MAX}), "executeTime"),
        (json!({"executeTime": u64::MAX}), "executeTime"),
        (json!({"executeTime": 1e300}), "executeTime"),
        (json!({"executeTime": ""}), "executeTime"),
        (json!({"executeTime": "2030-01-31"}), "executeTime"),
        (json!({"executeTime": "2030-01-31T18:00:00"}), "executeTime"),
        (json!({"executeTime": "1969-12-31T23:59:59Z"}), "executeTime"),
        (json!({"executeTime": "10000-01-01T00:00:00Z"}), "executeTime"),
        (json!({"executeTime": {}}), "executeTime"),
    ] {
        refused_task(&world, sent, field).await;
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn seconds_sent_by_mistake_are_refused_with_the_unit_named() {
    let world = World::new().await;
    for seconds in [1_700_000_000, 0, -1, i64::MIN, 99_999_999_999] {
        let message = refused_task(&world, json!({"executeTime": seconds}), "executeTime").await;
        assert!(message.contains("milliseconds") && message.contains("seconds"), "{message}");
    }
}

#[tokio::test]
async fn backoffs_of_every_good_form_are_given_back() {
    let world = World::new().await;
    for (sent, kept) in [
        (
            json!({"kind": "exponential"}),
            json!({"kind": "exponential", "initial": 1000, "factor": 2.0, "max": 3_600_000, "jitter": 0.1}),
        ),
        (
            json!({"kind": "exponential", "initial": 0, "factor": 1, "max": 0, "jitter": 0}),
            json!({"kind": "exponential", "initial": 0, "factor": 1.0, "max": 0, "jitter": 0.0}),
        ),
        (json!({"kind": "fixed", "delay": 5}), json!({"kind": "fixed", "delay": 5, "jitter": 0.0})),
        (
            json!({"kind": "list", "delays": [60_000, 120_000], "jitter": 1}),
            json!({"kind": "list", "delays": [60_000, 120_000], "jitter": 1.0}),
        ),
    ] {
        let id = world.add(json!({"taskType": "t", "delay": 0, "backoff": sent})).await;
        assert_eq!(world.task(id.as_str().expect("an id")).await["backoff"], kept);
    }
}

#[tokio::test]
async fn backoffs_of_every_bad_form_are_refused() {
    let world = World::new().await;
    for bad in [
        json!({}),
        json!("fixed"),
        json!([]),
        json!({"kind": "never"}),
        json!({"kind": "fixed"}),
        json!({"kind": "fixed", "delay": -1}),
        json!({"kind": "fixed", "delay": 1.5}),
        json!({"kind": "fixed", "delay": 366_i64 * 86_400_000 + 1}),
        json!({"kind": "fixed", "delay": 1, "delays": [1]}),
        json!({"kind": "list"}),
        json!({"kind": "list", "delays": []}),
        json!({"kind": "list", "delays": [1, -1]}),
        json!({"kind": "list", "delays": vec![1; 101]}),
        json!({"kind": "exponential", "factor": 0.5}),
        json!({"kind": "exponential", "factor": 1e300}),
        json!({"kind": "exponential", "initial": -1}),
        json!({"kind": "exponential", "max": -1}),
        json!({"kind": "exponential", "jitter": 1.1}),
        json!({"kind": "exponential", "jitter": -0.1}),
        json!({"kind": "exponential", "speed": 1}),
    ] {
        refused_task(&world, json!({"backoff": bad}), "backoff").await;
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn an_unknown_field_is_named() {
    let world = World::new().await;
    for field in ["excuteTime", "Delay", "params", "task_id", "", "任务", "status"] {
        let message = refused_task(&world, json!({field: 1}), field).await;
        assert!(message.contains("taskType"), "the known fields are told: {message}");
    }
    // One that is null is a typo all the same.
    refused_task(&world, json!({"excuteTime": null}), "excuteTime").await;
}
