//! `GET POST /api/v1/task/poll/{type}/{priority}` and `POST /api/v1/task/poll/{type}`.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tests::{World, event};

use crate::api_common::{POLL, answer_of, due, leased, refused, stored, with};

#[tokio::test]
async fn the_documented_poll_takes_one_due_task_and_ends_it_in_the_same_step() {
    let world = World::new().await;
    let path = format!("{POLL}/t/3");
    assert_eq!(world.get(&path).await.body, json!({"code": 200, "errorMessage": null, "data": null}));
    for (id, delay) in [("b", 2), ("a", 1), ("c", 3)] {
        let task = json!({"taskId": id, "taskType": "t", "priority": 3, "delay": delay, "parameters": {"n": delay}});
        world.add(task).await;
    }
    assert_eq!(world.get(&path).await.data(), &Value::Null);
    world.advance(2);
    let reply = world.get(&path).await;
    let task = reply.data();
    assert_eq!((&task["taskId"], &task["status"], &task["attempts"]), (&json!("a"), &json!("succeeded"), &json!(1)));
    assert_eq!((&task["taskType"], &task["priority"]), (&json!("t"), &json!(3)));
    assert_eq!((&task["parameters"], &task["finishedAt"]), (&json!({"n": 1}), &json!(world.now())));
    assert!(task.get("leaseToken").is_none() && task.get("leaseUntil").is_none(), "{task}");
    assert_eq!(world.get(&path).await.data()["taskId"], "b");
    assert_eq!(world.get(&path).await.data(), &Value::Null);
    for id in ["a", "b"] {
        assert_eq!((world.status(id).await.as_str(), world.redis.places_of(id)), ("succeeded", 0), "{id}");
    }
    world.advance(3_600_000);
    world.recover().await;
    world.refresh().await;
    assert_eq!(world.get(&path).await.data()["taskId"], "c");
    assert_eq!(world.get(&path).await.data(), &Value::Null);
}

#[tokio::test]
async fn a_poll_leases_up_to_max_tasks_in_the_order_in_which_they_became_due() {
    let world = World::new().await;
    for (id, delay) in [("c", 30), ("a", 10), ("d", 40), ("b", 20), ("later", 41)] {
        world.add(json!({"taskId": id, "taskType": "t", "delay": delay})).await;
    }
    world.advance(40);
    let reply = world.call_raw("POST", &format!("{POLL}/t/0"), "").await;
    let first = reply.data().as_array().expect("an array").clone();
    assert_eq!(first.len(), 1, "max is 1 when it is left out");
    let task = &first[0];
    assert_eq!(task["taskId"], "a");
    assert_eq!((&task["status"], &task["attempt"], &task["attempts"]), (&json!("leased"), &json!(1), &json!(1)));
    assert_eq!(task["leaseUntil"], world.now() + 30_000, "30 seconds when it is left out");
    assert!(task["leaseToken"].as_str().expect("a token").len() >= 16);
    let reply = world.call("POST", &format!("{POLL}/t/0"), json!({"max": 2, "leaseSeconds": 43_200})).await;
    assert_eq!(tests::ids(reply.data().as_array().expect("an array")), ["b", "c"]);
    assert_eq!(reply.data()[0]["leaseUntil"], world.now() + 43_200_000);
    let nulls = json!({"max": null, "leaseSeconds": null, "waitSeconds": null});
    let reply = world.call("POST", &format!("{POLL}/t/0"), nulls).await;
    assert_eq!(tests::ids(reply.data().as_array().expect("an array")), ["d"]);
    assert_eq!(world.call("POST", &format!("{POLL}/t/0"), json!({})).await.data(), &json!([]));
}

#[tokio::test]
async fn a_polls_numbers_have_limits_and_are_not_clamped() {
    let world = World::new().await;
    world.add(due("a")).await;
    for path in [format!("{POLL}/t/0"), format!("{POLL}/t")] {
        for (field, bad) in [
            ("max", vec![json!(0), json!(101), json!(-1), json!(1.5), json!("1"), json!(true), json!([])]),
            ("leaseSeconds", vec![json!(0), json!(43_201), json!(-1), json!(0.5), json!("30")]),
            ("waitSeconds", vec![json!(-1), json!(21), json!(0.1), json!("0")]),
            ("leaseTime", vec![json!(1)]),
        ] {
            for value in bad {
                let message = refused(&world, "POST", &path, &json!({field: value}).to_string(), 400, "invalid").await;
                assert!(message.starts_with(&format!("{field}: ")), "{value}: {message}");
            }
        }
        for body in ["[]", "7", "{", "\"\""] {
            refused(&world, "POST", &path, body, 400, "invalid").await;
        }
    }
    for lane in ["t/256", "t/-1", "t/01", "t/+1", "t/a", "t/1.0", "a:b/0", "a%20b/0", "%7Bt%7D/0", "./0"] {
        refused(&world, "GET", &format!("{POLL}/{lane}"), "", 400, "invalid").await;
        refused(&world, "POST", &format!("{POLL}/{lane}"), "", 400, "invalid").await;
    }
    let most = json!({"max": 100, "leaseSeconds": 1, "waitSeconds": 20});
    assert_eq!(world.call("POST", &format!("{POLL}/t/0"), most).await.data()[0]["taskId"], "a");
}

#[tokio::test]
async fn a_poll_of_an_empty_or_unknown_queue_stores_nothing() {
    let world = World::new().await;
    for lane in ["t/0", "t", "t/255"] {
        assert_eq!(world.call("POST", &format!("{POLL}/{lane}"), json!({"max": 100})).await.data(), &json!([]));
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn a_poll_by_type_gives_the_most_urgent_first_and_a_retry_keeps_its_priority() {
    let world = World::new().await;
    for (id, priority) in [("c", 255), ("b", 2), ("a", 1), ("z", 0)] {
        world.add(json!({"taskId": id, "taskType": "t", "priority": priority, "delay": 2_000})).await;
    }
    world.add(json!({"taskId": "other", "taskType": "tt", "delay": 0})).await;
    world.add(json!({"taskId": "handled", "taskType": "t", "delay": 0, "handler": "webhook"})).await;
    world.advance(2_000);
    world.refresh().await;
    let polled = world.poll("t", 3).await;
    assert_eq!(tests::ids(&polled), ["z", "a", "b"]);
    for task in &polled {
        world.settle("nack", task, json!({"delay": 1_000})).await.data();
    }
    world.advance(1_000);
    let polled = world.poll("t", 100).await;
    assert_eq!(tests::ids(&polled), ["z", "a", "b", "c"]);
    let priorities: Vec<&Value> = polled.iter().map(|task| &task["priority"]).collect();
    assert_eq!(priorities, [&json!(0), &json!(1), &json!(2), &json!(255)]);
}

#[tokio::test]
async fn one_live_lease_every_token_is_another_one() {
    let world = World::new().await;
    world.add((0..100).map(|i| due(&i.to_string())).collect()).await;
    let tokens: BTreeSet<String> =
        world.poll("t/0", 100).await.iter().map(|t| t["leaseToken"].as_str().expect("a token").to_owned()).collect();
    assert_eq!(tokens.len(), 100);
    assert!(world.poll("t/0", 100).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_live_lease_ten_polls_at_once_share_out_the_tasks() {
    let world = World::new().await;
    world.add((0..100).map(|i| due(&i.to_string())).collect()).await;
    let polls = futures::future::join_all((0..10).map(|_| world.poll_ids("t/0", 15))).await;
    let mut ids: Vec<String> = polls.into_iter().flatten().collect();
    ids.sort();
    let all = ids.len();
    ids.dedup();
    assert_eq!((all, ids.len()), (100, 100));
}

#[tokio::test]
async fn crash_safe_a_task_whose_lease_ended_comes_again_with_the_next_poll_behind_the_others() {
    let world = World::new().await;
    let poison = leased(&world, with(due("poison"), &json!({"maxAttempts": 2}))).await;
    world.add(due("b")).await;
    world.advance(29_999);
    assert_eq!(world.poll_ids("t/0", 1).await, ["b"]);
    world.add(due("c")).await;
    world.advance(1);
    let polled = world.poll("t/0", 10).await;
    assert_eq!(tests::ids(&polled), ["c", "poison"]);
    assert_eq!(polled[1]["attempt"], 2);
    assert_eq!(world.settle("ack", &poison, json!({})).await.error(), (409, "lease_lost"));
    world.advance(30_000);
    assert!(!world.poll_ids("t/0", 10).await.contains(&"poison".to_owned()));
    let task = world.task("poison").await;
    assert_eq!(
        (&task["status"], &task["attempts"], &task["lastError"]["attempt"]),
        (&json!("dead"), &json!(2), &json!(2))
    );
}

/// Returns when a poll of type `t` listens for new tasks, so that it has looked and found nothing.
async fn until_a_poll_waits(world: &World) {
    let mut connection = world.redis.connection();
    loop {
        let (_, listeners): (String, u64) =
            redis::cmd("PUBSUB").arg("NUMSUB").arg("wake:t").query(&mut connection).expect("NUMSUB");
        if listeners > 0 {
            return;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn on_time_a_waiting_poll_takes_a_task_when_it_becomes_due_and_not_before() {
    for lane in ["t/0", "t"] {
        let world = World::new().await;
        world.add(json!({"taskId": "a", "taskType": "t", "delay": 1_000})).await;
        let path = format!("{POLL}/{lane}");
        let poll = world.call("POST", &path, json!({"waitSeconds": 20}));
        let time = async {
            until_a_poll_waits(&world).await;
            world.advance(999);
            assert_eq!(world.status("a").await, "scheduled");
            world.advance(1);
        };
        let (reply, ()) = tokio::join!(poll, time);
        assert_eq!(reply.data()[0]["taskId"], "a", "{lane}");
        assert_eq!(reply.data()[0]["leaseUntil"], world.now() + 30_000, "a lease counts from when it is given");
    }
}

#[tokio::test]
async fn on_time_a_waiting_poll_takes_a_task_that_is_added_meanwhile() {
    for lane in ["t/0", "t"] {
        let world = World::new().await;
        let path = format!("{POLL}/{lane}");
        let poll = world.call("POST", &path, json!({"waitSeconds": 20}));
        let add = async {
            until_a_poll_waits(&world).await;
            world.add(due("a")).await
        };
        let (reply, _) = tokio::join!(poll, add);
        assert_eq!(reply.data()[0]["taskId"], "a", "{lane}");
    }
}

#[tokio::test]
async fn an_answer_stays_under_6_mb_and_what_it_has_no_room_for_is_not_leased() {
    let world = World::new().await;
    let limit = 256 * 1024;
    let quotes = format!("\"{}\"", "\\\"".repeat(limit / 2 - 1));
    let backslashes = format!("\"{}\"", "\\\\".repeat(limit / 2 - 1));
    let ids: Vec<String> = (0..30).map(|i| format!("big{i:02}")).collect();
    for (number, id) in ids.iter().enumerate() {
        let raw = if number % 2 == 0 { &quotes } else { &backslashes };
        let task = format!(r#"{{"taskId":"{id}","taskType":"t","delay":{number},"parameters":{raw}}}"#);
        world.call_raw("POST", "/api/v1/task/add", &task).await.data();
    }
    world.advance(30);
    let mut seen: Vec<String> = Vec::new();
    while seen.len() < ids.len() {
        let body = json!({"max": 100}).to_string();
        let answer = answer_of("poll", &world, &event("POST", &format!("{POLL}/t/0"), &body)).await;
        let counted = serde_json::to_string(&answer).expect("an answer").len();
        assert!(counted < 6_000_000, "{counted} bytes");
        let reply: Value = serde_json::from_str(&answer.body).expect("the envelope");
        let polled = reply["data"].as_array().expect("an array");
        assert!(!polled.is_empty(), "tasks that are due are given out");
        if seen.is_empty() {
            assert!(counted > 5_000_000, "an answer with so much to say is well used: {counted} bytes");
        }
        assert!(polled.iter().all(|task| task["attempt"] == 1));
        seen.extend(tests::ids(polled));
        for (number, id) in ids.iter().enumerate() {
            let task = world.task(id).await;
            let (status, attempts) = if number < seen.len() { ("leased", 1) } else { ("scheduled", 0) };
            assert_eq!((&task["status"], &task["attempts"]), (&json!(status), &json!(attempts)), "{id}");
        }
    }
    assert_eq!(seen, ids, "all in due order, none twice");
}

#[tokio::test]
async fn a_poll_gives_a_task_of_the_largest_size_by_itself() {
    let world = World::new().await;
    let raw = format!("\"{}\"", "\\\"".repeat(128 * 1024 - 1));
    let task = format!(
        r#"{{"taskId":"{}","taskType":"{}","delay":0,"backoff":{{"kind":"list","delays":{:?}}},"parameters":{raw}}}"#,
        "x".repeat(128),
        "y".repeat(64),
        vec![31_000_000_000_i64; 100]
    );
    world.call_raw("POST", "/api/v1/task/add", &task).await.data();
    let lane = format!("{}/0", "y".repeat(64));
    let polled = world.poll(&lane, 1).await;
    let nack = json!({"error": "\u{1}".repeat(300 * 1024), "delay": 0});
    world.settle("nack", &polled[0], nack).await.data();
    assert_eq!(world.poll(&lane, 100).await.len(), 1);
}
