//! A call that fails is tried again after 1, 2 and 4 minutes, and then given up.

use std::time::Instant;

use clap::Parser;
use examples::{Failure, Options, Punctual, run_name};
use reqwest::Method;
use serde_json::json;

/// The call that this is all about. The other side is down for good.
fn call_the_bank() -> Result<(), &'static str> {
    Err("connection refused")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let punctual = Punctual::at(&options.url);
    let minute = options.minute_ms;
    let id = format!("transfer-{}", run_name());
    let task = json!({"taskId": id, "taskType": "call-retry", "delay": 0, "maxAttempts": 4,
        "backoff": {"kind": "list", "delays": [minute, 2 * minute, 4 * minute]}, "parameters": {"amount": 100}});
    punctual.post("add", task).await?;
    let started = Instant::now();

    loop {
        let due = punctual.post("poll/call-retry/0", json!({"waitSeconds": 10})).await?;
        let Some(task) = due.get(0) else { break };
        let (id, token) = (task["taskId"].as_str().ok_or("a task has an id")?, &task["leaseToken"]);
        let minutes = started.elapsed().as_millis() as f64 / minute as f64;
        match call_the_bank() {
            Ok(()) => {
                punctual.post(&format!("ack/{id}"), json!({"leaseToken": token})).await?;
                break;
            }
            Err(error) => {
                println!("attempt {} after about {minutes:.0} minutes: {error}", task["attempt"]);
                // The service knows the delays, and when to give up.
                punctual.post(&format!("nack/{id}"), json!({"leaseToken": token, "error": error})).await?;
            }
        }
        let status = punctual.call(Method::GET, id, json!(null)).await?;
        if status["status"] == "dead" {
            println!("given up; the last error was: {}", status["lastError"]["message"]);
            break;
        }
    }
    Ok(())
}
