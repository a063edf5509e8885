//! The handlers `lambda` and `sqs` of the real binary: what they ask of AWS is what the role allows.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Uri};
use axum::response::IntoResponse;
use punctual_core::clock::Clock;
use punctual_core::config::{Config, Environment};
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::call;
use tests::lambda_runtime::{Function, Outcome, Stores};
use tests::role::actions_of;

/// One call of AWS: its action, the path or the body that says on what.
type Calls = Arc<Mutex<Vec<(String, String)>>>;

/// Stands in for Lambda and SQS: the function `shop-broken` fails, all else succeeds.
async fn aws(State(calls): State<Calls>, uri: Uri, headers: HeaderMap, body: String) -> impl IntoResponse {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok());
    let (call, answer) = match target {
        Some("AmazonSQS.SendMessage") => (("sqs:SendMessage", body), json!({"MessageId": "1"})),
        Some(other) => ((other, body), json!({})),
        None => (("lambda:InvokeFunction", uri.path().to_owned()), json!({"done": true})),
    };
    let failed = call.1.contains("shop-broken");
    calls.lock().expect("no panic").push((call.0.to_owned(), call.1));
    let mut told = HeaderMap::new();
    if failed {
        told.insert("x-amz-function-error", "Unhandled".parse().expect("a header"));
    }
    (told, answer.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn they_call_what_the_role_allows_and_only_names_with_the_prefix() {
    let calls = Calls::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let routes = Router::new().fallback(aws).with_state(calls.clone());
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let stores = Stores::new().await;
    let mut variables = stores.variables();
    for (name, value) in [
        ("AWS_ENDPOINT_URL_LAMBDA", endpoint.as_str()),
        ("AWS_ENDPOINT_URL_SQS", &endpoint),
        ("LAMBDA_PREFIX", "shop-"),
        ("SQS_QUEUE_PREFIX", "shop-"),
    ] {
        variables.insert(name.to_owned(), value.to_owned());
    }
    let config = Config::read(&Environment(&|name| variables.get(name).cloned())).expect("valid");
    let service = Service::new(connect_to(&stores.endpoint).await, Clock::System, config).expect("valid");
    let task = |id: &str, handler: &str, parameters: Value| json!({"taskId": id, "taskType": "t", "delay": 0, "handler": handler, "parameters": parameters});
    let queue = |name: &str| format!("{endpoint}/123456789012/{name}");
    let tasks = json!([
        task("invoked", "lambda", json!({"function": "shop-orders", "payload": {"order": 7}})),
        task("broken", "lambda", json!({"function": "shop-broken"})),
        task("foreign", "lambda", json!({"function": "bank-transfer"})),
        task("sent", "sqs", json!({"queueUrl": queue("shop-orders"), "body": {"order": 7}})),
        task("foreign-queue", "sqs", json!({"queueUrl": queue("bank"), "body": "x"})),
    ]);
    call(&service, "POST", "/api/v1/task/add", tasks).await.data();

    let function = Function::start("dispatch", env!("CARGO_BIN_EXE_dispatch"), &variables).await;
    let outcome = function.invoke("{}").await;
    let Outcome::Result(report) = outcome else { panic!("{outcome:?}") };
    assert_eq!((&report["succeeded"], &report["failed"]), (&json!(2), &json!(3)), "{report}");

    let calls = calls.lock().expect("no panic").clone();
    let called: BTreeSet<&str> = calls.iter().map(|(action, _)| action.as_str()).collect();
    let allowed = actions_of("dispatch");
    assert_eq!(called, allowed.keys().map(String::as_str).filter(|action| !action.starts_with("dynamodb:")).collect());
    let on: Vec<&String> = calls.iter().map(|(_, on)| on).collect();
    assert!(on.iter().any(|on| on.as_str() == "/2015-03-31/functions/shop-orders/invocations"), "{on:?}");
    assert!(on.iter().any(|on| on.contains(r#"{\"order\": 7}"#) || on.contains(r#"{\"order\":7}"#)), "{on:?}");
    assert!(!on.iter().any(|on| on.contains("bank")), "{on:?}");

    let status = async |id: &str| {
        let task = call(&service, "GET", &format!("/api/v1/task/{id}"), Value::Null).await.data().clone();
        (task["status"].as_str().unwrap_or_default().to_owned(), task["lastError"]["message"].clone())
    };
    assert_eq!(status("invoked").await.0, "succeeded");
    assert_eq!(status("sent").await.0, "succeeded");
    assert_eq!(status("broken").await, ("scheduled".to_owned(), json!("the function shop-broken failed: Unhandled")));
    for id in ["foreign", "foreign-queue"] {
        assert_eq!(status(id).await.0, "dead", "{id} is refused for good");
    }
}
