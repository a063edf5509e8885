//! Each example runs against the real runner and ends with what it tells.

use std::process::Command;

use local::{Options, Running, start};
use tempfile::TempDir;

async fn runner(data: &TempDir) -> Running {
    let options = Options {
        listen: "127.0.0.1:0".to_owned(),
        data_dir: data.path().to_owned(),
        redis_url: None,
        dynamodb_listen: None,
        manual_clock: None,
        ticks: true,
        variables: std::collections::HashMap::new(),
    };
    start(options).await.expect("the runner starts")
}

/// The output of an example that ends by itself.
fn output(program: &str, runner: &Running) -> String {
    let url = format!("http://{}", runner.address);
    let ran = Command::new(program).args(["--url", &url, "--minute-ms", "200"]).output();
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
