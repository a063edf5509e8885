//! An order is cancelled 30 minutes after it was placed, unless it was paid.
//!
//! The order's id is the task's id: a repeated order adds no second task, and payment knows what to call off.

use clap::Parser;
use examples::{Failure, Options, Punctual, run_name};
use reqwest::Method;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let options = Options::parse();
    let punctual = Punctual::at(&options.url);
    let run = run_name();
    let (paid, unpaid) = (format!("order-{run}-1"), format!("order-{run}-2"));

    for order in [&paid, &unpaid] {
        let task = json!({"taskId": order, "taskType": "order-auto-cancel", "delay": 30 * options.minute_ms,
            "parameters": {"order": order}});
        punctual.post("add", task).await?;
        println!("{order} placed");
    }

    // The customer pays: the task is called off. `false` would mean that it came too late.
    let called_off = punctual.post(&format!("cancel/{paid}"), json!({})).await?;
    println!("{paid} paid, its cancellation called off: {called_off}");

    // Elsewhere a worker cancels what is due. It waits in the call, so it need not guess when to look.
    loop {
        let due = punctual.post("poll/order-auto-cancel/0", json!({"max": 10, "waitSeconds": 5})).await?;
        let due = due.as_array().ok_or("an array was expected")?;
        if due.is_empty() {
            break;
        }
        for task in due {
            let id = task["taskId"].as_str().ok_or("a task has an id")?;
            println!("{id} not paid in time: cancelled");
            // After the work, not before it: a worker that dies in between is followed by another one.
            punctual.post(&format!("ack/{id}"), json!({"leaseToken": task["leaseToken"]})).await?;
        }
        let left = punctual.call(Method::GET, &unpaid, json!(null)).await?;
        if left["status"] == "succeeded" {
            break;
        }
    }
    Ok(())
}
