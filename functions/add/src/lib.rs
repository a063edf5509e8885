//! `POST /api/v1/task/add`: one task object, or an array of them.

use std::time::Duration;

use punctual_core::api::{Answer, Envelope, NewTask, Request, note_task, parse_addition, serve};
use punctual_core::error::Error;
use punctual_core::service::{Addition, Service};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The most tasks in one array.
pub const MAX_BATCH: usize = 100;

/// Serves one API Gateway event.
pub async fn handle(service: &Service, event: &str) -> Answer {
    serve("add", event, Duration::ZERO, RawValue::NULL, async |request| add(service, request).await).await
}

async fn add(service: &Service, request: &Request) -> Result<Envelope, Error> {
    if request.route() != ["task", "add"] {
        return Err(Error::NoSuchPath);
    }
    if request.method != "POST" {
        return Err(Error::MethodNotAllowed("POST"));
    }
    let new = NewTask { now: service.clock.now(), retention_ms: service.config.retention_ms };
    if request.body.trim_start().starts_with('[') {
        return add_batch(service, &request.body, new).await;
    }
    let addition = parse_addition(&request.body, new)?;
    let (id, created) = service.add(vec![addition], new.now).await.pop().expect("one result for one task")?;
    note_task(&id);
    Ok(Envelope::ok(&id)?.with_created(created))
}

async fn add_batch(service: &Service, body: &str, new: NewTask) -> Result<Envelope, Error> {
    let tasks: Vec<&RawValue> = serde_json::from_str(body)
        .map_err(|error| Error::invalid("body", format!("must be a task object or an array of them: {error}")))?;
    if tasks.len() > MAX_BATCH {
        return Err(Error::invalid("body", format!("must hold at most {MAX_BATCH} tasks")));
    }
    let parsed: Vec<Result<Addition, Error>> = tasks.iter().map(|task| parse_addition(task.get(), new)).collect();
    let (mut additions, mut results) = (Vec::new(), Vec::new());
    for addition in parsed {
        match addition {
            Ok(addition) => {
                additions.push(addition);
                results.push(None);
            }
            Err(error) => results.push(Some(error)),
        }
    }
    let mut added = service.add(additions, new.now).await.into_iter();
    let data: Vec<Value> = results
        .into_iter()
        .map(|refused| match refused {
            Some(error) => Err(error),
            None => added.next().expect("one result for each task that was added"),
        })
        .map(|result| match result {
            Ok((id, created)) => json!({"taskId": id, "created": created}),
            Err(error) => json!({"error": error.word(), "errorMessage": error.to_string()}),
        })
        .collect();
    Envelope::ok(&data)
}
