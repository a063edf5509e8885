//! Events of both kinds of API Gateway, paths, methods, bodies and the envelope.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use punctual_core::api::Answer;
use serde_json::{Value, json};
use tests::{World, event};

use crate::api_common::{ADD, answer_of, due, reply_of, stored};

const FUNCTIONS: [&str; 5] = ["add", "cancel", "poll", "settle", "inspect"];

/// A REST API event, with the fields that API Gateway sends.
fn v1(method: &str, path: &str, body: Value) -> Value {
    json!({
        "resource": "/{proxy+}", "path": path, "httpMethod": method,
        "headers": {"Accept": "*/*", "X-Odd": "\u{e9}\u{0}", "content-type": "text/plain;charset=utf-16"},
        "multiValueHeaders": {"Accept": ["*/*", "a"], "": []},
        "queryStringParameters": null, "multiValueQueryStringParameters": null,
        "pathParameters": {"proxy": path}, "stageVariables": null, "isBase64Encoded": false, "body": body,
        "requestContext": {"accountId": "1", "stage": "Prod", "path": format!("/Prod{path}"), "httpMethod": method,
            "identity": {"sourceIp": "127.0.0.1", "userAgent": null}},
    })
}

/// An HTTP API event, with the fields that API Gateway sends.
fn v2(method: &str, path: &str, body: Value) -> Value {
    json!({
        "version": "2.0", "routeKey": "$default", "rawPath": path, "rawQueryString": "", "cookies": ["a=b", "="],
        "headers": {"content-length": "-1", "x-forwarded-for": "::1, ,", "authorization": "Bearer undefined"},
        "queryStringParameters": {}, "body": body, "pathParameters": {}, "isBase64Encoded": false, "stageVariables": {},
        "requestContext": {"accountId": "1", "apiId": "x", "stage": "Prod", "timeEpoch": 1,
            "http": {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "::1", "userAgent": ""}},
    })
}

#[tokio::test]
async fn every_kind_of_event_stage_and_spelling_of_a_path_is_the_same_request() {
    let world = World::new().await;
    let prefixes = ["", "/Prod", "/v1", "/api", "/$default", "/Prod/Prod", "//", "/Prod/"];
    let paths =
        ["/api/v1/task/add", "/api/v1/task/add/", "/api/v1//task/add", "/api/v1/task/%61dd", "//api/v1/task/add//"];
    for kind in [v1, v2] {
        for prefix in prefixes {
            for path in paths {
                let path = format!("{prefix}{path}");
                let task = json!({"taskType": "t", "delay": 0}).to_string();
                for method in ["POST", "post"] {
                    let event = kind(method, &path, json!(task)).to_string();
                    let reply = reply_of("add", &world, &event).await;
                    assert_eq!(reply.status, 200, "{event}: {}", reply.body);
                }
            }
        }
    }
}

#[tokio::test]
async fn percent_encoded_ids_types_and_queries_are_decoded_once() {
    let world = World::new().await;
    world.add(json!({"taskId": "a:1", "taskType": "a-b", "delay": 60_000})).await;
    for path in ["/api/v1/task/a:1", "/api/v1/task/a%3A1", "/api/v1/task/a%3a1", "/api/v1/task/%61:1/"] {
        assert_eq!(reply_of("inspect", &world, &event("GET", path, "")).await.data()["taskId"], "a:1", "{path}");
    }
    for path in
        ["/api/v1/task/a%253A1", "/api/v1/task/a%2F1", "/api/v1/task/%2E%2E", "/api/v1/task/%00", "/api/v1/task/a+1"]
    {
        let reply = reply_of("inspect", &world, &event("GET", path, "")).await;
        assert_eq!(reply.error(), (404, "not_found"), "{path}");
    }
    let reply = reply_of("inspect", &world, &event("GET", "/api/v1/task/%FF%FE", "")).await;
    assert_eq!(reply.error(), (400, "invalid"));
    let mut listing = v1("GET", "/api/v1/task", Value::Null);
    listing["queryStringParameters"] = json!({"taskType": "a-b", "limit": "5"});
    let single = reply_of("inspect", &world, &listing.to_string()).await;
    listing["multiValueQueryStringParameters"] = json!({"taskType": ["a-b"], "limit": ["5"]});
    let many = reply_of("inspect", &world, &listing.to_string()).await;
    let encoded = reply_of("inspect", &world, &event("GET", "/api/v1/task?taskType=%61%2Db&limit=5", "")).await;
    for reply in [single, many, encoded] {
        assert_eq!(reply.data()["tasks"][0]["taskId"], "a:1");
    }
    let other = reply_of("inspect", &world, &event("GET", "/api/v1/task?taskType=a", "")).await;
    assert_eq!(other.data()["tasks"], json!([]));
}

#[tokio::test]
async fn a_body_flagged_as_base64_is_decoded_and_a_wrong_one_is_refused() {
    let world = World::new().await;
    for (number, kind) in [v1, v2].into_iter().enumerate() {
        let send = async |body: Value| {
            let mut event = kind("POST", ADD, body);
            event["isBase64Encoded"] = json!(true);
            reply_of("add", &world, &event.to_string()).await
        };
        let task = due(&format!("a{number}"));
        let task = json!({"taskId": task["taskId"], "taskType": "t", "delay": 0, "parameters": "é😀"}).to_string();
        assert_eq!(send(json!(STANDARD.encode(&task))).await.body["created"], true);
        for bad in
            [json!("%%%"), json!(task), json!("e30"), json!(STANDARD.encode([0xff, 0xfe])), json!(""), Value::Null]
        {
            let reply = send(bad.clone()).await;
            assert_eq!(reply.error(), (400, "invalid"), "{bad}");
        }
        let too_long = STANDARD.encode(format!("{task}{}", " ".repeat(6 * 1024 * 1024 + 1 - task.len())));
        assert_eq!(send(json!(too_long)).await.error(), (413, "too_large"));
    }
    assert_eq!(world.poll("t/0", 10).await.len(), 2);
}

#[tokio::test]
async fn a_body_that_is_missing_null_or_empty_is_an_empty_object_where_it_is_optional() {
    let world = World::new().await;
    for kind in [v1, v2] {
        for body in [Value::Null, json!(""), json!(" \n"), json!("{}")] {
            let id = world.add(json!({"taskType": "t", "delay": 0})).await;
            let path = "/api/v1/task/poll/t/0";
            let polled = reply_of("poll", &world, &kind("POST", path, body.clone()).to_string()).await;
            assert_eq!(polled.data()[0]["taskId"], id, "{body}");
            let path = format!("/api/v1/task/cancel/{}", id.as_str().expect("an id"));
            let cancelled = reply_of("cancel", &world, &kind("POST", &path, body.clone()).to_string()).await;
            assert_eq!(cancelled.data(), true, "{body}");
            for path in ["/api/v1/task/ack/x", "/api/v1/task/nack/x", "/api/v1/task/extend/x", "/api/v1/task/ack"] {
                let reply = reply_of("settle", &world, &kind("POST", path, body.clone()).to_string()).await;
                assert_eq!(reply.error(), (400, "invalid"), "{path} {body}");
            }
        }
        let mut without = kind("POST", ADD, Value::Null);
        without.as_object_mut().expect("an object").remove("body");
        assert_eq!(reply_of("add", &world, &without.to_string()).await.error(), (400, "invalid"));
    }
}

#[tokio::test]
async fn a_method_that_a_path_does_not_take_is_405_with_the_envelope_and_the_allowed_ones() {
    let world = World::new().await;
    world.add(due("a")).await;
    let before = stored(&world).await;
    for (function, path, allowed) in [
        ("add", "/api/v1/task/add", "POST"),
        ("cancel", "/api/v1/task/cancel/a", "GET, POST, DELETE"),
        ("poll", "/api/v1/task/poll/t/0", "GET, POST"),
        ("poll", "/api/v1/task/poll/t", "POST"),
        ("settle", "/api/v1/task/ack/a", "POST"),
        ("settle", "/api/v1/task/ack", "POST"),
        ("settle", "/api/v1/task/nack/a", "POST"),
        ("settle", "/api/v1/task/extend/a", "POST"),
        ("settle", "/api/v1/task/reschedule/a", "POST"),
        ("settle", "/api/v1/task/redrive/a", "POST"),
        ("inspect", "/api/v1/task/a", "GET"),
        ("inspect", "/api/v1/task", "GET"),
        ("inspect", "/api/v1/queues", "GET"),
        ("inspect", "/health", "GET"),
    ] {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "", "GET POST"] {
            if allowed.split(", ").any(|a| a == method) {
                continue;
            }
            for kind in [v1, v2] {
                let event = kind(method, path, json!("{}")).to_string();
                let answer: Answer = answer_of(function, &world, &event).await;
                assert_eq!(answer.status_code, 405, "{method} {path}: {}", answer.body);
                assert_eq!(answer.headers.get("allow").map(String::as_str), Some(allowed), "{method} {path}");
                assert_eq!(answer.headers.get("content-type").map(String::as_str), Some("application/json"));
                let body: Value = serde_json::from_str(&answer.body).expect("the envelope");
                assert_eq!((&body["code"], &body["error"]), (&json!(405), &json!("method_not_allowed")));
                assert!(body["errorMessage"].is_string() && body.get("data").is_some(), "{body}");
            }
        }
    }
    assert!(stored(&world).await == before);
}

#[tokio::test]
async fn a_path_that_no_route_has_is_404_in_every_function() {
    let world = World::new().await;
    for path in [
        "/",
        "",
        "/api",
        "/api/v1",
        "/api/v2/task/add",
        "/api/v1/tasks",
        "/api/v1/task/add/a/b",
        "/api/v1/task/cancel/a/b",
        "/api/v1/task/poll/t/0/1",
        "/api/v1/task/ack/a/b",
        "/api/v1/task/redrive/a/b",
        "/api/v1/task/ACK/a",
        "/api/v1/queues/t",
        "/api/v1/TASK/add",
        "/favicon.ico",
        "/health/x",
        "/local/tick/refresh",
    ] {
        for function in FUNCTIONS {
            for method in ["GET", "POST", "DELETE"] {
                let reply = reply_of(function, &world, &event(method, path, "{}")).await;
                assert_eq!(reply.error(), (404, "not_found"), "{function} {method} {path}: {}", reply.body);
            }
        }
    }
    for verb in ["nack", "extend", "reschedule"] {
        let reply = reply_of("settle", &world, &event("POST", &format!("/api/v1/task/{verb}"), "{}")).await;
        assert_eq!(reply.error(), (404, "not_found"), "{verb}");
    }
    assert!(stored(&world).await.is_empty());
}

#[tokio::test]
async fn what_is_no_event_is_answered_with_400_and_the_envelope() {
    let world = World::new().await;
    for function in FUNCTIONS {
        for text in
            ["", "null", "[]", "{}", "7", "{\"path\":\"/\"}", "{\"rawPath\":7}", "{\"source\":\"aws.events\"}", "{"]
        {
            let reply = reply_of(function, &world, text).await;
            assert_eq!(reply.error(), (400, "invalid"), "{function} {text}");
            assert_eq!(reply.body["code"], 400);
        }
    }
}

#[tokio::test]
async fn every_answer_is_the_envelope_in_json() {
    let world = World::new().await;
    world.add(due("a")).await;
    for (function, method, path, status) in [
        ("inspect", "GET", "/api/v1/task/a", 200),
        ("inspect", "GET", "/api/v1/task/b", 404),
        ("inspect", "GET", "/api/v1/task", 200),
        ("inspect", "GET", "/api/v1/queues", 200),
        ("inspect", "GET", "/health", 200),
        ("cancel", "GET", "/api/v1/task/cancel/b", 200),
        ("cancel", "DELETE", "/api/v1/task/cancel/b", 404),
        ("poll", "GET", "/api/v1/task/poll/t/0", 200),
        ("poll", "GET", "/api/v1/task/poll/t/0", 200),
        ("cancel", "DELETE", "/api/v1/task/cancel/a", 409),
    ] {
        let answer = answer_of(function, &world, &event(method, path, "")).await;
        assert_eq!(answer.status_code, status, "{method} {path}");
        assert_eq!(answer.headers.get("content-type").map(String::as_str), Some("application/json"));
        let body: Value = serde_json::from_str(&answer.body).expect("the envelope");
        let mut fields: Vec<&str> = body.as_object().expect("an object").keys().map(String::as_str).collect();
        fields.sort_unstable();
        if status == 200 {
            assert_eq!(fields, ["code", "data", "errorMessage"], "{method} {path}");
            assert_eq!(body["errorMessage"], Value::Null);
        } else {
            assert_eq!(fields, ["code", "data", "error", "errorMessage"], "{method} {path}");
        }
        assert_eq!(body["code"], status);
        let lambda = serde_json::to_value(&answer).expect("an answer");
        assert_eq!((&lambda["statusCode"], &lambda["isBase64Encoded"]), (&json!(status), &json!(false)));
    }
}
