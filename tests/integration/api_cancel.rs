//! `GET POST DELETE /api/v1/task/cancel/{taskId}`.

use serde_json::{Value, json};
use tests::World;

use crate::api_common::{due, leased, one_of_each_state, refused, stored};

fn path(id: &str) -> String {
    format!("/api/v1/task/cancel/{id}")
}

#[tokio::test]
async fn the_documented_cancel_always_answers_200() {
    let world = World::new().await;
    one_of_each_state(&world).await;
    world.add(due("ready")).await;
    world.add(json!({"taskId": "far", "taskType": "t", "delay": "P300D"})).await;
    for (id, answer, status) in [
        ("scheduled", true, "cancelled"),
        ("ready", true, "cancelled"),
        ("far", true, "cancelled"),
        ("leased", true, "cancelled"),
        ("cancelled", true, "cancelled"),
        ("succeeded", false, "succeeded"),
        ("dead", false, "dead"),
        ("nobody", false, "unknown"),
        ("a%20b", false, "unknown"),
        ("..", false, "unknown"),
        (&"x".repeat(1_000), false, "unknown"),
    ] {
        for _ in 0..2 {
            let reply = world.get(&path(id)).await;
            assert_eq!(reply.body, json!({"code": 200, "errorMessage": null, "data": answer}), "{id}");
            assert_eq!(world.redis.places_of(id), 0, "{id}");
            if status != "unknown" {
                assert_eq!(world.status(id).await, status, "{id}");
            }
        }
    }
}

#[tokio::test]
async fn post_and_delete_say_why_a_task_is_not_cancelled() {
    for method in ["POST", "DELETE"] {
        let world = World::new().await;
        one_of_each_state(&world).await;
        for id in ["scheduled", "leased", "cancelled"] {
            for _ in 0..2 {
                assert_eq!(world.call_raw(method, &path(id), "").await.data(), true, "{method} {id}");
                assert_eq!(world.status(id).await, "cancelled");
                assert_eq!(world.redis.places_of(id), 0);
            }
        }
        for (id, status, word) in [
            ("succeeded", 409, "task_finished"),
            ("dead", 409, "task_finished"),
            ("nobody", 404, "not_found"),
            ("a%20b", 404, "not_found"),
        ] {
            refused(&world, method, &path(id), "", status, word).await;
            assert_eq!(world.call_raw(method, &path(id), "").await.body["data"], false, "{method} {id}");
        }
    }
}

#[tokio::test]
async fn a_cancel_with_a_field_is_refused_and_cancels_nothing() {
    let world = World::new().await;
    world.add(due("a")).await;
    for body in ["{\"force\":true}", "[]", "{", "7"] {
        refused(&world, "POST", &path("a"), body, 400, "invalid").await;
        refused(&world, "DELETE", &path("a"), body, 400, "invalid").await;
    }
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn final_a_task_cancelled_while_it_runs_is_lost_to_its_holder_and_never_comes_again() {
    for method in ["GET", "POST", "DELETE"] {
        let world = World::new().await;
        let task = leased(&world, due("a")).await;
        assert_eq!(world.call_raw(method, &path("a"), "").await.data(), true);
        let before = stored(&world).await;
        for (verb, more) in [
            ("extend", json!({"leaseSeconds": 5})),
            ("nack", json!({"delay": 0})),
            ("nack", json!({"permanent": true})),
            ("ack", json!({})),
        ] {
            assert_eq!(world.settle(verb, &task, more).await.error(), (409, "lease_lost"), "{verb}");
        }
        assert!(stored(&world).await == before);
        world.advance(3_600_000);
        world.recover().await;
        world.refresh().await;
        assert!(world.poll("t/0", 10).await.is_empty());
        assert_eq!(world.status("a").await, "cancelled");
        assert_eq!(world.redis.places_of("a"), 0);
    }
}

#[tokio::test]
async fn final_a_due_task_is_cancelled_wherever_redis_has_it() {
    let world = World::new().await;
    for id in ["waiting", "moved", "ended"] {
        world.add(json!({"taskId": id, "taskType": id, "delay": 20_000})).await;
    }
    world.advance(30_000);
    assert_eq!(world.poll("ended/0", 1).await.len(), 1);
    assert_eq!(world.call("POST", &path("waiting"), json!({})).await.data(), true);
    world.refresh().await;
    assert_eq!(world.call("POST", &path("moved"), json!({})).await.data(), true);
    world.advance(30_000);
    assert_eq!(world.call("POST", &path("ended"), json!({})).await.data(), true);
    world.refresh().await;
    world.recover().await;
    for id in ["waiting", "moved", "ended"] {
        assert_eq!(world.redis.places_of(id), 0, "{id}");
        assert!(world.poll(id, 10).await.is_empty(), "{id}");
        assert_eq!(world.get(&format!("/api/v1/task/poll/{id}/0")).await.data(), &Value::Null);
        assert_eq!(world.status(id).await, "cancelled");
    }
}

#[tokio::test]
async fn a_cancelled_task_is_shown_with_the_time_of_its_end() {
    let world = World::new().await;
    world.add(json!({"taskId": "a", "taskType": "t", "delay": 60_000, "parameters": [1]})).await;
    world.advance(5);
    world.call("POST", &path("a"), json!({})).await.data();
    world.advance(5);
    world.call("POST", &path("a"), json!({})).await.data();
    let task = world.task("a").await;
    assert_eq!((&task["status"], &task["parameters"]), (&json!("cancelled"), &json!([1])));
    assert_eq!(task["finishedAt"], world.now() - 5);
}
