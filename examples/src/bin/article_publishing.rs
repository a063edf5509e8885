//! Articles are published at their times by a consumer that polls each second, as clients of the documented service
//! do: GET poll takes a task and ends it in one step. Simple, and at most once: should the answer be lost, so is the
//! publication. A consumer that must not lose one leases with POST poll instead.

use std::time::Duration;

use clap::Parser;
use examples::{Failure, Options, Punctual};
use reqwest::Method;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let punctual = Punctual::at(&options.url);
    let articles = ["Rust 2027", "Sourdough at sea", "The quiet queue"];
    let tasks: Vec<_> = articles
        .iter()
        .zip(1..)
        .map(|(title, minutes)| {
            json!({"taskType": "article-publishing", "delay": 10 * minutes * options.minute_ms, "parameters": {"title": title}})
        })
        .collect();
    punctual.post("add", json!(tasks)).await?;
    println!("{} articles scheduled", articles.len());

    let mut published = 0;
    while published < articles.len() {
        let task = punctual.call(Method::GET, "poll/article-publishing/0", json!(null)).await?;
        if task.is_null() {
            tokio::time::sleep(Duration::from_millis(options.minute_ms.min(1_000))).await;
            continue;
        }
        println!("published: {}", task["parameters"]["title"].as_str().ok_or("an article has a title")?);
        published += 1;
    }
    Ok(())
}
