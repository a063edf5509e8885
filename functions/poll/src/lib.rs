//! Polls: the documented `GET`, which takes one task at most once, and `POST`, which leases.

use std::time::Duration;

use punctual_core::api::{
    Answer, Envelope, Fields, Request, TIME_LIMIT, TaskView, doubly_encoded_length, note_queue, serve,
};
use punctual_core::error::Error;
use punctual_core::service::{PollRequest, Service, Source};
use punctual_core::task::{Lane, Task, TaskType};
use serde_json::value::{RawValue, to_raw_value};

/// The most tasks of one poll.
pub const MAX_TASKS: i64 = 100;
/// The longest lease, in seconds: 12 hours.
pub const MAX_LEASE_SECONDS: i64 = 43_200;
/// The longest wait, in seconds: what API Gateway's limit of 29 seconds leaves room for.
pub const MAX_WAIT_SECONDS: i64 = 20;

/// Serves one API Gateway event.
pub async fn handle(service: &Service, event: &str) -> Answer {
    let extra_time = Duration::from_secs(MAX_WAIT_SECONDS as u64);
    serve("poll", event, extra_time, RawValue::NULL, async |request| poll(service, request).await).await
}

async fn poll(service: &Service, request: &Request) -> Result<Envelope, Error> {
    let (task_type, priority) = match request.route()[..] {
        ["task", "poll", task_type] => (task_type, None),
        ["task", "poll", task_type, priority] => (task_type, Some(priority)),
        _ => return Err(Error::NoSuchPath),
    };
    let documented = match (request.method.as_str(), priority) {
        ("GET", Some(_)) => true,
        ("POST", _) => false,
        (_, Some(_)) => return Err(Error::MethodNotAllowed("GET, POST")),
        (_, None) => return Err(Error::MethodNotAllowed("POST")),
    };
    let source = source(task_type, priority)?;
    if documented {
        let request = PollRequest { source, most: 1, lease_ms: None, wait: Duration::ZERO };
        let tasks = bounded(service, &request).await?;
        return Envelope::ok(&tasks.first().map(TaskView::new));
    }
    let fields = Fields::read("body", &request.body, &["max", "leaseSeconds", "waitSeconds"])?;
    let lease_ms = match fields.integer("leaseSeconds", 1, MAX_LEASE_SECONDS)? {
        Some(seconds) => seconds * 1_000,
        None => service.config.lease_ms,
    };
    let unsigned = |number: i64| u64::try_from(number).expect("checked not to be negative");
    let request = PollRequest {
        source,
        most: unsigned(fields.integer("max", 1, MAX_TASKS)?.unwrap_or(1)) as usize,
        lease_ms: Some(lease_ms),
        wait: Duration::from_secs(unsigned(fields.integer("waitSeconds", 0, MAX_WAIT_SECONDS)?.unwrap_or(0))),
    };
    let tasks = bounded(service, &request).await?;
    Envelope::ok(&tasks.iter().map(TaskView::for_holder).collect::<Vec<_>>())
}

/// Beyond what it is told to wait, a poll has no more time than any other call.
async fn bounded(service: &Service, request: &PollRequest) -> Result<Vec<Task>, Error> {
    let polled = tokio::time::timeout(TIME_LIMIT + request.wait, service.poll(request, size)).await;
    polled.unwrap_or(Err(Error::TooSlow))
}

fn source(task_type: &str, priority: Option<&str>) -> Result<Source, Error> {
    let name = TaskType::from_name(task_type).map_err(|reason| Error::invalid("type", reason))?.name().to_owned();
    let Some(priority) = priority else {
        note_queue(&name);
        return Ok(Source::Type(name));
    };
    let priority = priority
        .parse()
        .ok()
        .filter(|number: &u8| number.to_string() == priority)
        .ok_or_else(|| Error::invalid("priority", "must be an integer from 0 to 255"))?;
    let lane = Lane { task_type: name, priority, handler: None };
    note_queue(&lane);
    Ok(Source::Lane(lane))
}

fn size(task: &Task) -> usize {
    let view: Option<Box<RawValue>> = to_raw_value(&TaskView::for_holder(task)).ok();
    view.map_or(0, |json| doubly_encoded_length(json.get()) + 1)
}
