//! `POST /api/v1/task/ack nack extend reschedule redrive`.

use serde_json::{Value, json};
use tests::{START_MS, World};

use crate::api_common::{due, leased, one_of_each_state, refused, refused_json, stored, with};

fn path(verb: &str, id: &str) -> String {
    format!("/api/v1/task/{verb}/{id}")
}

/// A settle that must be refused and change nothing.
async fn refused_settle(world: &World, verb: &str, task: &Value, status: u16, word: &str) {
    let id = task["taskId"].as_str().expect("an id");
    let body = json!({"leaseToken": task["leaseToken"]});
    refused_json(world, &path(verb, id), &body, status, word).await;
}

#[tokio::test]
async fn an_ack_ends_the_task_and_the_same_ack_again_is_true() {
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    world.advance(5);
    assert_eq!(world.settle("ack", &task, json!({})).await.data(), true);
    let ended = stored(&world).await;
    world.advance(5);
    assert_eq!(world.settle("ack", &task, json!({})).await.data(), true);
    assert!(stored(&world).await == ended, "a repeat writes nothing");
    let task = world.task("a").await;
    assert_eq!((&task["status"], &task["finishedAt"]), (&json!("succeeded"), &json!(START_MS + 5)));
    assert_eq!(world.redis.places_of("a"), 0);
}

#[tokio::test]
async fn one_live_lease_any_other_token_is_refused_and_changes_nothing() {
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    let token = task["leaseToken"].as_str().expect("a token");
    for wrong in ["", "x", &token[1..], &format!("{token} "), &token.to_uppercase(), "null", "undefined"] {
        for verb in ["ack", "nack", "extend"] {
            let wrong = json!({"taskId": "a", "leaseToken": wrong});
            refused_settle(&world, verb, &wrong, 409, "lease_lost").await;
        }
    }
    for verb in ["ack", "nack", "extend"] {
        for body in [
            "",
            "{}",
            "[]",
            "{",
            "null",
            "{\"leaseToken\":null}",
            "{\"leaseToken\":7}",
            "{\"leaseToken\":\"\\ud800\"}",
            "{\"leasetoken\":\"x\"}",
            "{\"leaseToken\":\"x\",\"leaseToken\":\"x\"}",
            "{\"leaseToken\":\"x\",\"taskId\":\"a\"}",
        ] {
            refused(&world, "POST", &path(verb, "a"), body, 400, "invalid").await;
        }
        let unknown = json!({"taskId": "nobody", "leaseToken": token});
        refused_settle(&world, verb, &unknown, 404, "not_found").await;
        let impossible = json!({"taskId": "a%20b", "leaseToken": token});
        refused_settle(&world, verb, &impossible, 404, "not_found").await;
    }
    assert_eq!(world.settle("ack", &task, json!({})).await.data(), true);
}

#[tokio::test]
async fn a_late_token_is_good_while_nobody_took_the_task_since() {
    for verb in ["ack", "nack", "extend"] {
        let world = World::new().await;
        let task = leased(&world, due("a")).await;
        world.advance(3_600_000);
        world.refresh().await;
        world.recover().await;
        assert_eq!(world.settle(verb, &task, json!({})).await.data(), true, "{verb}");
        let status = world.status("a").await;
        assert_eq!(
            status,
            match verb {
                "ack" => "succeeded",
                "nack" => "scheduled",
                _ => "leased",
            }
        );
        assert!(world.poll("t/0", 10).await.is_empty(), "{verb}");
    }
}

#[tokio::test]
async fn one_live_lease_a_late_token_is_refused_once_another_took_the_task() {
    let world = World::new().await;
    let old = leased(&world, due("a")).await;
    world.advance(30_000);
    let new = world.poll("t/0", 1).await.remove(0);
    assert_eq!(new["attempt"], 2);
    for verb in ["ack", "nack", "extend"] {
        refused_settle(&world, verb, &old, 409, "lease_lost").await;
    }
    assert_eq!(world.task("a").await["leaseUntil"], new["leaseUntil"]);
    assert_eq!(world.settle("ack", &new, json!({})).await.data(), true);
    for verb in ["ack", "nack", "extend"] {
        refused_settle(&world, verb, &old, 409, "lease_lost").await;
    }
    for verb in ["nack", "extend"] {
        refused_settle(&world, verb, &new, 409, "lease_lost").await;
    }
}

#[tokio::test]
async fn only_a_leased_task_is_settled() {
    let world = World::new().await;
    let tasks = one_of_each_state(&world).await;
    for verb in ["ack", "nack", "extend"] {
        let scheduled = json!({"taskId": "scheduled", "leaseToken": "x"});
        refused_settle(&world, verb, &scheduled, 409, "lease_lost").await;
        refused_settle(&world, verb, &tasks["cancelled"], 409, "lease_lost").await;
        // The right token's repeat of what was done is a success; anything else is not.
        if verb != "ack" {
            refused_settle(&world, verb, &tasks["succeeded"], 409, "lease_lost").await;
        }
        if verb != "nack" {
            refused_settle(&world, verb, &tasks["dead"], 409, "lease_lost").await;
        }
    }
    assert_eq!(world.settle("ack", &tasks["leased"], json!({})).await.data(), true);
    world.advance(60_000);
    assert_eq!(world.poll_ids("t/0", 10).await, ["scheduled"], "what is scheduled still comes at its time");
}

#[tokio::test]
async fn a_nack_comes_back_after_its_delay_and_not_a_millisecond_sooner() {
    for (delay, ms) in
        [(json!(1_500), 1_500), (json!("PT2S"), 2_000), (json!("PT0.5S"), 500), (json!("P1D"), 86_400_000)]
    {
        let world = World::new().await;
        let task = leased(&world, due("a")).await;
        world.advance(10);
        let reply = world.settle("nack", &task, json!({"delay": delay, "error": "no line"})).await;
        assert_eq!(reply.data(), true);
        let shown = world.task("a").await;
        assert_eq!(
            (&shown["status"], &shown["executeTime"]),
            (&json!("scheduled"), &json!(world.now() + ms)),
            "{delay}"
        );
        assert_eq!(shown["lastError"], json!({"attempt": 1, "at": world.now(), "message": "no line"}));
        assert!(shown.get("leaseUntil").is_none() && shown.get("attempt").is_none(), "{shown}");
        world.advance(u32::try_from(ms).expect("small") - 1);
        world.refresh().await;
        assert!(world.poll("t/0", 10).await.is_empty(), "{delay}");
        world.advance(1);
        let polled = world.poll("t/0", 10).await;
        assert_eq!((polled.len(), &polled[0]["attempt"]), (1, &json!(2)), "{delay}");
    }
}

#[tokio::test]
async fn a_nack_without_delay_follows_the_tasks_backoff() {
    for (backoff, delays) in [
        (json!({"kind": "fixed", "delay": 700}), vec![700, 700, 700]),
        (json!({"kind": "list", "delays": [60_000, 120_000]}), vec![60_000, 120_000, 120_000]),
        (
            json!({"kind": "exponential", "initial": 1_000, "factor": 3, "max": 5_000, "jitter": 0}),
            vec![1_000, 3_000, 5_000],
        ),
        (json!({"kind": "fixed", "delay": 0}), vec![0, 0, 0]),
    ] {
        let world = World::new().await;
        let mut task = leased(&world, with(due("a"), &json!({"backoff": backoff}))).await;
        for delay in delays {
            assert_eq!(world.settle("nack", &task, json!({"delay": null, "error": null})).await.data(), true);
            assert_eq!(world.task("a").await["executeTime"], world.now() + i64::from(delay), "{backoff}");
            world.advance(delay);
            task = world.poll("t/0", 1).await.remove(0);
        }
    }
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    world.settle("nack", &task, json!({})).await.data();
    let delay = world.task("a").await["executeTime"].as_i64().expect("a time") - world.now();
    assert!((900..=1_100).contains(&delay), "1 second, plus or minus a tenth: {delay}");
}

#[tokio::test]
async fn the_same_nack_again_is_true_and_counts_once() {
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    assert_eq!(world.settle("nack", &task, json!({"delay": 1_000})).await.data(), true);
    let nacked = stored(&world).await;
    world.advance(1);
    assert_eq!(world.settle("nack", &task, json!({"delay": 1_000})).await.data(), true);
    assert!(stored(&world).await == nacked, "a repeat writes nothing");
    refused_settle(&world, "ack", &task, 409, "lease_lost").await;
    refused_settle(&world, "extend", &task, 409, "lease_lost").await;
    world.advance(999);
    assert_eq!(world.poll("t/0", 1).await[0]["attempt"], 2);
    refused_settle(&world, "nack", &task, 409, "lease_lost").await;
}

#[tokio::test]
async fn bad_fields_of_a_nack_are_refused_by_name() {
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    for (field, bad) in [
        ("delay", vec![json!(-5), json!(1.5), json!("P1M"), json!("-PT5S"), json!(253_402_300_799_999_i64), json!([])]),
        ("permanent", vec![json!("true"), json!(1)]),
        ("error", vec![json!(7), json!({"message": "x"})]),
        ("leaseSeconds", vec![json!(1)]),
    ] {
        for value in bad {
            let body = json!({"leaseToken": task["leaseToken"], field: value});
            let message = refused_json(&world, &path("nack", "a"), &body, 400, "invalid").await;
            assert!(message.starts_with(&format!("{field}: ")), "{value}: {message}");
        }
    }
}

#[tokio::test]
async fn a_permanent_nack_or_one_of_the_last_attempt_makes_the_task_dead() {
    let world = World::new().await;
    let task = leased(&world, due("permanent")).await;
    let body = json!({"permanent": true, "delay": 5, "error": "no such number"});
    assert_eq!(world.settle("nack", &task, body).await.data(), true);
    for attempt in 1..=3 {
        if attempt == 1 {
            world.add(with(due("used-up"), &json!({"maxAttempts": 3}))).await;
        }
        let polled = world.poll("t/0", 10).await;
        assert_eq!((polled.len(), &polled[0]["attempt"]), (1, &json!(attempt)));
        let nack = json!({"delay": 0, "permanent": false, "error": format!("busy {attempt}")});
        assert_eq!(world.settle("nack", &polled[0], nack).await.data(), true);
    }
    for (id, attempts, message) in [("permanent", 1, "no such number"), ("used-up", 3, "busy 3")] {
        let dead = world.task(id).await;
        assert_eq!((&dead["status"], &dead["attempts"]), (&json!("dead"), &json!(attempts)));
        assert_eq!(dead["lastError"]["message"], message);
        assert_eq!((&dead["finishedAt"], world.redis.places_of(id)), (&json!(world.now()), 0));
    }
    for days in [30, 30, 29] {
        world.advance(days * 24 * 60 * 60 * 1_000);
    }
    world.advance(24 * 60 * 60 * 1_000 - 1);
    world.refresh().await;
    world.recover().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.status("permanent").await, "dead", "kept for 90 days, whatever its retention");
    world.advance(1);
    assert_eq!(world.status("permanent").await, "unknown");
    let listed = world.get("/api/v1/task?status=dead").await;
    assert_eq!(listed.data()["tasks"], json!([]), "what get does not know is not listed");
    assert_eq!(world.call("POST", "/api/v1/task/redrive/permanent", json!({})).await.error(), (404, "not_found"));
}

#[tokio::test]
async fn a_long_error_text_is_cut_at_a_character_and_the_state_is_saved() {
    let world = World::new().await;
    let parameters = "x".repeat(256 * 1024 - 2);
    for (id, error) in [("a", "e".repeat(300 * 1024)), ("b", format!("x{}", "é".repeat(150 * 1024)))] {
        let task = leased(&world, with(due(id), &json!({"parameters": parameters}))).await;
        assert_eq!(world.settle("nack", &task, json!({"error": error, "delay": 1_000})).await.data(), true);
        let shown = world.task(id).await;
        let message = shown["lastError"]["message"].as_str().expect("a text");
        assert!(error.starts_with(message) && (1_900..=2_000).contains(&message.len()), "{}", message.len());
        assert_eq!(shown["status"], "scheduled");
    }
    let task = leased(&world, due("c")).await;
    world.settle("nack", &task, json!({"error": "\u{0} \"\\😀", "delay": 1_000})).await.data();
    assert_eq!(world.task("c").await["lastError"]["message"], "\u{0} \"\\😀");
    let task = leased(&world, due("d")).await;
    world.settle("nack", &task, json!({"error": "", "delay": 1_000})).await.data();
    assert_eq!(world.task("d").await["lastError"]["message"], "");
}

#[tokio::test]
async fn an_extended_lease_counts_from_now() {
    let world = World::new().await;
    let task = leased(&world, due("a")).await;
    world.advance(20_000);
    for (more, ms) in [
        (json!({}), 30_000),
        (json!({"leaseSeconds": null}), 30_000),
        (json!({"leaseSeconds": 43_200}), 43_200_000),
        (json!({"leaseSeconds": 1}), 1_000),
        (json!({"leaseSeconds": 60}), 60_000),
    ] {
        assert_eq!(world.settle("extend", &task, more).await.data(), true);
        assert_eq!(world.task("a").await["leaseUntil"], world.now() + ms);
    }
    for bad in [json!(0), json!(43_201), json!(-1), json!(1.5), json!("60")] {
        let body = json!({"leaseToken": task["leaseToken"], "leaseSeconds": bad});
        let message = refused_json(&world, &path("extend", "a"), &body, 400, "invalid").await;
        assert!(message.starts_with("leaseSeconds: "), "{message}");
    }
    world.advance(59_999);
    world.recover().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll("t/0", 10).await[0]["attempt"], 2);
}

#[tokio::test]
async fn a_scheduled_task_is_rescheduled_sooner_and_later() {
    let world = World::new().await;
    world.add(json!({"taskId": "a", "taskType": "t", "delay": 60_000, "parameters": [1]})).await;
    let reply = world.call("POST", &path("reschedule", "a"), json!({"delay": 20_000})).await;
    assert_eq!((&reply.data()["taskId"], &reply.data()["executeTime"]), (&json!("a"), &json!(START_MS + 20_000)));
    assert_eq!((&reply.data()["status"], &reply.data()["parameters"]), (&json!("scheduled"), &json!([1])));
    world.advance(20_000);
    world.refresh().await;
    // Due and moved into the list; then put off, and never given out early.
    let later = json!({"executeTime": "2027-01-15T08:01:00Z"});
    assert_eq!(world.call("POST", &path("reschedule", "a"), later).await.data()["executeTime"], START_MS + 60_000);
    assert_eq!(world.redis.places_of("a"), 1);
    world.advance(39_999);
    world.refresh().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
    // Beyond the window Redis forgets it; back within it is known at once, in the past due now.
    world.add(json!({"taskId": "b", "taskType": "t", "delay": 60_000})).await;
    world.call("POST", &path("reschedule", "b"), json!({"delay": "P300D"})).await.data();
    assert_eq!(world.redis.places_of("b"), 0);
    world.call("POST", &path("reschedule", "b"), json!({"executeTime": 100_000_000_000_i64})).await.data();
    assert_eq!(world.poll("t/0", 10).await[0]["executeTime"], 100_000_000_000_i64);
}

#[tokio::test]
async fn a_reschedule_of_another_state_or_with_a_bad_time_is_refused() {
    let world = World::new().await;
    one_of_each_state(&world).await;
    let good = json!({"delay": 5});
    for id in ["succeeded", "dead", "cancelled", "leased"] {
        refused_json(&world, &path("reschedule", id), &good, 409, "wrong_state").await;
    }
    refused_json(&world, &path("reschedule", "nobody"), &good, 404, "not_found").await;
    for (bad, field) in [
        (json!({}), "executeTime"),
        (json!({"delay": null, "executeTime": null}), "executeTime"),
        (json!({"delay": 5, "executeTime": START_MS}), "delay"),
        (json!({"delay": -1}), "delay"),
        (json!({"delay": "soon"}), "delay"),
        (json!({"delay": 253_402_300_799_999_i64}), "delay"),
        (json!({"executeTime": 1_700_000_000}), "executeTime"),
        (json!({"executeTime": "2030"}), "executeTime"),
        (json!({"executeTime": START_MS, "leaseToken": "x"}), "leaseToken"),
    ] {
        let message = refused_json(&world, &path("reschedule", "scheduled"), &bad, 400, "invalid").await;
        assert!(message.starts_with(&format!("{field}: ")), "{bad}: {message}");
    }
}

#[tokio::test]
async fn a_redriven_task_is_due_now_with_its_attempts_reset_and_its_last_error_kept() {
    let world = World::new().await;
    let task = leased(&world, with(due("a"), &json!({"maxAttempts": 1}))).await;
    world.settle("nack", &task, json!({"error": "busy"})).await.data();
    world.advance(5_000);
    let reply = world.call_raw("POST", &path("redrive", "a"), "").await;
    let shown = reply.data();
    assert_eq!((&shown["status"], &shown["attempts"]), (&json!("scheduled"), &json!(0)));
    assert_eq!((&shown["executeTime"], &shown["lastError"]["message"]), (&json!(START_MS + 5_000), &json!("busy")));
    assert!(shown.get("finishedAt").is_none(), "{shown}");
    refused_settle(&world, "nack", &task, 409, "lease_lost").await;
    let again = world.poll("t/0", 10).await;
    assert_eq!((again.len(), &again[0]["attempt"]), (1, &json!(1)));
    assert_eq!(again[0]["lastError"]["message"], "busy");
    assert_eq!(world.settle("ack", &again[0], json!({})).await.data(), true);
}

#[tokio::test]
async fn a_redrive_of_another_state_is_refused() {
    let world = World::new().await;
    one_of_each_state(&world).await;
    for id in ["succeeded", "cancelled", "leased", "scheduled"] {
        refused(&world, "POST", &path("redrive", id), "", 409, "wrong_state").await;
    }
    refused(&world, "POST", &path("redrive", "nobody"), "", 404, "not_found").await;
    refused(&world, "POST", &path("redrive", "dead"), "{\"delay\":1}", 400, "invalid").await;
    assert_eq!(world.call_raw("POST", &path("redrive", "dead"), "").await.status, 200);
    refused(&world, "POST", &path("redrive", "dead"), "", 409, "wrong_state").await;
}

#[tokio::test]
async fn the_dead_tasks_of_a_queue_are_redriven_together() {
    let world = World::new().await;
    for (id, task_type, priority) in [("a", "t", 0), ("b", "t", 0), ("c", "t", 0), ("d", "t", 1), ("e", "u", 0)] {
        let task = leased(&world, json!({"taskId": id, "taskType": task_type, "priority": priority, "delay": 0})).await;
        world.settle("nack", &task, json!({"permanent": true})).await.data();
        world.advance(1);
    }
    let redrive = async |body: Value| world.call("POST", "/api/v1/task/redrive", body).await.data().clone();
    assert_eq!(redrive(json!({"taskType": "nobody"})).await, json!({"redriven": 0, "more": false}));
    assert_eq!(
        redrive(json!({"taskType": "t", "priority": 0, "limit": 2})).await,
        json!({"redriven": 2, "more": true})
    );
    assert_eq!(world.poll_ids("t", 10).await, ["a", "b"], "the longest due first");
    assert_eq!(redrive(json!({"taskType": "t"})).await["redriven"], 2);
    assert_eq!(world.poll_ids("t", 10).await, ["c", "d"]);
    assert_eq!(redrive(json!({"taskType": null, "priority": null})).await["redriven"], 1);
    assert_eq!(world.poll_ids("u", 10).await, ["e"]);
    for (field, bad) in [
        ("taskType", vec![json!("a b"), json!(1.5)]),
        ("priority", vec![json!(256), json!(-1), json!("0")]),
        ("limit", vec![json!(0), json!(101)]),
        ("type", vec![json!("t")]),
    ] {
        for value in bad {
            let body = json!({field: value});
            let message = refused_json(&world, "/api/v1/task/redrive", &body, 400, "invalid").await;
            assert!(message.starts_with(&format!("{field}: ")), "{value}: {message}");
        }
    }
}

#[tokio::test]
async fn an_array_of_acks_is_answered_item_by_item() {
    let world = World::new().await;
    let tasks = one_of_each_state(&world).await;
    world.add(json!({"taskId": 77, "taskType": "t", "delay": 0})).await;
    let numbered = world.poll("t/0", 1).await.remove(0);
    let item = |task: &Value| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]});
    let body = json!([
        item(&tasks["leased"]),
        item(&tasks["leased"]),
        item(&tasks["succeeded"]),
        item(&tasks["cancelled"]),
        {"taskId": "nobody", "leaseToken": "x"},
        {"taskId": "scheduled", "leaseToken": "x"},
        {"taskId": 77, "leaseToken": numbered["leaseToken"]},
        {"taskId": "scheduled"},
        {"leaseToken": "x"},
        {"taskId": "scheduled", "leaseToken": "x", "extra": 1},
        7,
        null,
        {"taskId": "a b", "leaseToken": "x"},
    ]);
    let reply = world.call("POST", "/api/v1/task/ack", body).await;
    let results = reply.data().as_array().expect("an array");
    assert_eq!(results.len(), 13);
    for (place, id) in [(0, "leased"), (1, "leased"), (2, "succeeded"), (6, "77")] {
        assert_eq!(results[place], json!({"taskId": id, "ok": true}));
    }
    for (place, id, word) in [
        (3, json!("cancelled"), "lease_lost"),
        (4, json!("nobody"), "not_found"),
        (5, json!("scheduled"), "lease_lost"),
        (7, json!("scheduled"), "invalid"),
        (8, Value::Null, "invalid"),
        (9, json!("scheduled"), "invalid"),
        (10, Value::Null, "invalid"),
        (11, Value::Null, "invalid"),
        (12, json!("a b"), "not_found"),
    ] {
        assert_eq!((&results[place]["taskId"], &results[place]["error"]), (&id, &json!(word)), "{place}");
        assert!(results[place]["errorMessage"].is_string() && results[place].get("ok").is_none(), "{place}");
    }
    for id in ["leased", "77"] {
        assert_eq!((world.status(id).await.as_str(), world.redis.places_of(id)), ("succeeded", 0));
    }
    assert_eq!(world.status("scheduled").await, "scheduled");
}

#[tokio::test]
async fn an_array_of_100_acks_is_taken_and_one_of_101_is_refused_whole() {
    let world = World::new().await;
    world.add((0..100).map(|i| due(&i.to_string())).collect()).await;
    let polled = world.poll("t/0", 100).await;
    let mut acks: Vec<Value> =
        polled.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]})).collect();
    acks.push(acks[0].clone());
    let message = refused_json(&world, "/api/v1/task/ack", &json!(acks), 400, "invalid").await;
    assert!(message.contains("100"), "{message}");
    acks.pop();
    let reply = world.call("POST", "/api/v1/task/ack", json!(acks)).await;
    let wanted: Vec<Value> = polled.iter().map(|task| json!({"taskId": task["taskId"], "ok": true})).collect();
    assert_eq!(reply.data(), &json!(wanted));
    assert_eq!(world.get("/api/v1/queues").await.data(), &json!([]));
    assert_eq!(world.call("POST", "/api/v1/task/ack", json!([])).await.data(), &json!([]));
    for body in ["", "{}", "7", "[", "{\"leaseToken\":\"x\"}"] {
        refused(&world, "POST", "/api/v1/task/ack", body, 400, "invalid").await;
    }
}

#[tokio::test]
async fn a_body_over_6_mb_is_refused_by_every_settle() {
    let world = World::new().await;
    let body = format!("{{\"leaseToken\":\"x\"}}{}", " ".repeat(6 * 1024 * 1024));
    for verb in ["ack", "nack", "extend", "reschedule", "redrive"] {
        refused(&world, "POST", &path(verb, "a"), &body, 413, "too_large").await;
    }
}
