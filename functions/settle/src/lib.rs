//! What moves a task that exists: ack, nack, extend, reschedule, redrive.

use std::collections::HashMap;
use std::time::Duration;

use punctual_core::api::{
    Answer, Envelope, Fields, Request, TaskView, note_task, parse_execute_time, parse_task_type, serve,
};
use punctual_core::error::Error;
use punctual_core::service::Service;
use punctual_core::task::check_task_id;
use punctual_core::time::{LAST_TIMESTAMP, Timestamp};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The most acknowledgements in one array.
pub const MAX_BATCH: usize = 100;
/// The longest lease, in seconds: 12 hours.
const MAX_LEASE_SECONDS: i64 = 43_200;

/// Serves one API Gateway event.
pub async fn handle(service: &Service, event: &str) -> Answer {
    serve("settle", event, Duration::ZERO, RawValue::NULL, async |request| settle(service, request).await).await
}

async fn settle(service: &Service, request: &Request) -> Result<Envelope, Error> {
    let route = request.route();
    let (verb, id) = match route[..] {
        ["task", verb @ ("ack" | "redrive")] => (verb, None),
        ["task", verb @ ("ack" | "nack" | "extend" | "reschedule" | "redrive"), id] => (verb, Some(id)),
        _ => return Err(Error::NoSuchPath),
    };
    if request.method != "POST" {
        return Err(Error::MethodNotAllowed("POST"));
    }
    let now = service.clock.now();
    let Some(id) = id else {
        return match verb {
            "ack" => acknowledge_batch(service, &request.body, now).await,
            _ => redrive_batch(service, &request.body, now).await,
        };
    };
    note_task(id);
    let read = |known: &[&str]| Fields::read("body", &request.body, known);
    // The body is checked first: what is wrong with it is wrong for every task.
    match verb {
        "ack" => {
            let token = read(&["leaseToken"])?.required_text("leaseToken")?;
            let settled = [(known_id(id)?, token)];
            service.acknowledge(&settled, now).await.pop().expect("one result for one task")?;
        }
        "nack" => {
            let fields = read(&["leaseToken", "error", "delay", "permanent"])?;
            let token = fields.required_text("leaseToken")?;
            let message = fields.value("error", "must be a string")?;
            let permanent = fields.value("permanent", "must be true or false")?.unwrap_or(false);
            let delay_ms = fields.delay_ms("delay")?;
            check_due("delay", now.plus_ms(delay_ms.unwrap_or(0)))?;
            service.fail(&known_id(id)?, &token, message, delay_ms, permanent, now).await?;
        }
        "extend" => {
            let fields = read(&["leaseToken", "leaseSeconds"])?;
            let token = fields.required_text("leaseToken")?;
            let seconds = fields.integer("leaseSeconds", 1, MAX_LEASE_SECONDS)?;
            let lease_ms = seconds.map_or(service.config.lease_ms, |seconds| seconds * 1_000);
            service.extend(&known_id(id)?, &token, now.plus_ms(lease_ms), now).await?;
        }
        "reschedule" => {
            let execute_time = due_time(&read(&["executeTime", "delay"])?, now)?;
            let task = service.reschedule(&known_id(id)?, execute_time, now).await?;
            return Envelope::ok(&TaskView::new(&task));
        }
        _ => {
            read(&[])?;
            let task = service.redrive(&known_id(id)?, now).await?;
            return Envelope::ok(&TaskView::new(&task));
        }
    }
    Envelope::ok(&true)
}

async fn acknowledge_batch(service: &Service, body: &str, now: Timestamp) -> Result<Envelope, Error> {
    let items: Vec<&RawValue> = serde_json::from_str(body).map_err(|error| {
        Error::invalid("body", format!("must be an array of objects with taskId and leaseToken: {error}"))
    })?;
    if items.len() > MAX_BATCH {
        return Err(Error::invalid("body", format!("must hold at most {MAX_BATCH} acknowledgements")));
    }
    let parsed: Vec<Result<(String, String), Error>> = items.iter().map(|item| acknowledgement(item.get())).collect();
    let settled: Vec<(String, String)> = parsed.iter().filter_map(|item| item.as_ref().ok().cloned()).collect();
    let mut results = service.acknowledge(&settled, now).await.into_iter();
    let data: Vec<Value> = parsed
        .into_iter()
        .map(|item| {
            let (id, _) = item?;
            results.next().expect("one result for each acknowledgement")?;
            Ok(id)
        })
        .zip(&items)
        .map(|(result, item)| match result {
            Ok(id) => json!({"taskId": id, "ok": true}),
            Err(error) => {
                let error: Error = error;
                json!({"taskId": id_as_sent(item), "error": error.word(), "errorMessage": error.to_string()})
            }
        })
        .collect();
    Envelope::ok(&data)
}

/// Redrives the dead tasks of a queue, at most [`MAX_BATCH`] at once: `{redriven, more}`.
async fn redrive_batch(service: &Service, body: &str, now: Timestamp) -> Result<Envelope, Error> {
    let fields = Fields::read("body", body, &["taskType", "priority", "limit"])?;
    let task_type = fields.raw("taskType").map(parse_task_type).transpose()?.map(|t| t.name().to_owned());
    let priority = fields.integer("priority", 0, 255)?.and_then(|priority| u8::try_from(priority).ok());
    let limit = fields.integer("limit", 1, MAX_BATCH as i64)?.map_or(MAX_BATCH, |limit| limit as usize);
    let (redriven, more) = service.redrive_many(task_type, priority, limit, now).await?;
    Envelope::ok(&json!({"redriven": redriven, "more": more}))
}

fn acknowledgement(json: &str) -> Result<(String, String), Error> {
    let fields = Fields::read("acknowledgement", json, &["taskId", "leaseToken"])?;
    let id = fields
        .raw("taskId")
        .and_then(as_sent)
        .ok_or_else(|| Error::invalid("taskId", "is required: a string or an integer"))?;
    Ok((known_id(&id)?, fields.required_text("leaseToken")?))
}

/// A text or a number, digit by digit: ids may be integers of any length.
fn as_sent(id: &RawValue) -> Option<String> {
    match id.get().as_bytes() {
        [b'"', ..] => serde_json::from_str(id.get()).ok(),
        [b'-' | b'0'..=b'9', ..] => Some(id.get().to_owned()),
        _ => None,
    }
}

fn id_as_sent(item: &RawValue) -> Option<String> {
    let item: HashMap<String, &RawValue> = serde_json::from_str(item.get()).ok()?;
    as_sent(item.get("taskId")?)
}

/// An id that no task can have is unknown like any other.
fn known_id(id: &str) -> Result<String, Error> {
    check_task_id(id).map(|()| id.to_owned()).map_err(|_| Error::NotFound(id.chars().take(100).collect()))
}

fn due_time(fields: &Fields<'_>, now: Timestamp) -> Result<Timestamp, Error> {
    match (fields.raw("executeTime"), fields.delay_ms("delay")?) {
        (Some(raw), None) => parse_execute_time(raw),
        (None, Some(delay_ms)) => check_due("delay", now.plus_ms(delay_ms)),
        (Some(_), Some(_)) => Err(Error::invalid("delay", "must not be given together with executeTime")),
        (None, None) => Err(Error::invalid("executeTime", "or delay is required")),
    }
}

fn check_due(field: &str, due: Timestamp) -> Result<Timestamp, Error> {
    if due > LAST_TIMESTAMP {
        return Err(Error::invalid(field, "must not lead beyond the year 9999"));
    }
    Ok(due)
}
