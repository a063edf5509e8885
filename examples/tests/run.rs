//! Each example runs against the real runner and ends with what it tells.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use examples::Punctual;
use local::{Options, Running, start};
use serde_json::json;
use tempfile::TempDir;

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

async fn runner(data: &TempDir) -> Running {
    let variables = [
        ("WEBHOOK_SECRET", SECRET),
        ("WEBHOOK_ALLOWED_HOSTS", "127.0.0.1"),
        ("WEBHOOK_ALLOW_HTTP", "true"),
        ("WEBHOOK_ALLOW_PRIVATE", "true"),
    ];
    let options = Options {
        listen: "127.0.0.1:0".to_owned(),
        data_dir: data.path().to_owned(),
        redis_url: None,
        dynamodb_listen: None,
        manual_clock: None,
        ticks: true,
        variables: HashMap::from(variables.map(|(name, value)| (name.to_owned(), value.to_owned()))),
    };
    start(options).await.expect("the runner starts")
}

/// The output of an example that ends by itself.
fn output(program: &str, runner: &Running) -> String {
    let url = format!("http://{}", runner.address);
    let ran = Command::new(program).args(["--url", &url, "--minute-ms", "50"]).output();
    let ran = ran.expect("the example runs");
    assert!(ran.status.success(), "{program}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("UTF-8")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_order_is_cancelled_and_a_paid_one_is_not() {
    let data = TempDir::new().expect("a folder");
    let runner = runner(&data).await;
    let orders = output(env!("CARGO_BIN_EXE_order_auto_cancel"), &runner);
    assert!(orders.contains("its cancellation called off: true"), "{orders}");
    assert_eq!(orders.matches("not paid in time: cancelled").count(), 1, "{orders}");
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_retried_until_the_threshold_and_given_up() {
    let data = TempDir::new().expect("a folder");
    let runner = runner(&data).await;
    let retries = output(env!("CARGO_BIN_EXE_call_retry"), &runner);
    assert_eq!(retries.matches("minutes: connection refused").count(), 4, "{retries}");
    assert!(retries.contains("attempt 4") && retries.contains("given up"), "{retries}");
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn articles_are_published_in_their_order() {
    let data = TempDir::new().expect("a folder");
    let runner = runner(&data).await;
    let articles = output(env!("CARGO_BIN_EXE_article_publishing"), &runner);
    let published: Vec<&str> = articles.lines().skip(1).collect();
    assert_eq!(published, ["published: Rust 2027", "published: Sourdough at sea", "published: The quiet queue"]);
    runner.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_arrives_signed_as_the_readme_shows() {
    let data = TempDir::new().expect("a folder");
    let runner = runner(&data).await;
    let mut receiver = Command::new(env!("CARGO_BIN_EXE_webhook_receiver"))
        .args(["--listen", "127.0.0.1:0"])
        .env("WEBHOOK_SECRET", SECRET)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the receiver starts");
    let mut output = BufReader::new(receiver.stdout.take().expect("it is piped"));
    let mut first = String::new();
    output.read_line(&mut first).expect("the receiver says where it listens");
    let address = first.trim().strip_prefix("listening on ").expect("an address");
    let task = json!({"taskId": "mail-1", "taskType": "mail", "delay": 0, "handler": "webhook",
        "parameters": {"url": format!("http://{address}/hook"), "body": "BODY"}});
    // As text, since the body arrives as it was sent, white space too.
    let body = task.to_string().replace(r#""BODY""#, r#"{"to": "world"}"#);
    let added = Punctual::at(&format!("http://{}", runner.address)).send("add", body).await;
    assert_eq!(added.expect("an answer"), "mail-1");
    let mut rest = String::new();
    output.read_to_string(&mut rest).expect("UTF-8");
    assert!(receiver.wait().expect("it ends").success());
    assert_eq!(rest, "mail-1, attempt 1, signature verified: {\"to\": \"world\"}\n");
    let readme = include_str!("../../README.md");
    for shown in [rest.as_str(), SECRET] {
        assert!(readme.contains(shown), "README.md does not show {shown}");
    }
    runner.stop().await;
}
