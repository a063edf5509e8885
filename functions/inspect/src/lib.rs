//! Looking: one task, lists of tasks, queues, health.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use punctual_core::api::{
    Answer, Envelope, Request, TaskView, doubly_encoded_length, note_queue, note_task, parse_whole_number, serve,
};
use punctual_core::error::Error;
use punctual_core::service::{ANSWER_BYTES, ListFilter, QueueCounts, Service};
use punctual_core::task::{ListedType, Status, TaskType, check_task_id};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

/// The most tasks of one listing.
pub const MAX_LIMIT: i64 = 100;
/// The tasks of a listing that names no limit.
pub const DEFAULT_LIMIT: i64 = 50;

/// Serves one API Gateway event.
pub async fn handle(service: &Service, event: &str) -> Answer {
    serve("inspect", event, Duration::ZERO, RawValue::NULL, async |request| inspect(service, request).await).await
}

async fn inspect(service: &Service, request: &Request) -> Result<Envelope, Error> {
    let route = request.route();
    if !matches!(route[..], ["health"] | ["queues"] | ["task"] | ["task", _]) {
        return Err(Error::NoSuchPath);
    }
    if request.method != "GET" {
        return Err(Error::MethodNotAllowed("GET"));
    }
    match route[..] {
        ["health"] => {
            let health = service.health().await;
            Ok(Envelope::ok(&health)?.with_status(if health.is_up() { 200 } else { 503 }))
        }
        ["queues"] => {
            let queues = service.queues(service.clock.now()).await?;
            Envelope::ok(&queues.iter().map(|(queue, counts)| QueueView::new(queue, counts)).collect::<Vec<_>>())
        }
        ["task", id] => {
            check_task_id(id).map_err(|_| Error::NotFound(id.chars().take(100).collect()))?;
            note_task(id);
            let task = service.get(id, service.clock.now()).await?;
            Envelope::ok(&TaskView::new(&task))
        }
        _ => list(service, request).await,
    }
}

async fn list(service: &Service, request: &Request) -> Result<Envelope, Error> {
    let mut filter = ListFilter { status: Status::Scheduled, task_type: None, priority: None };
    let (mut limit, mut cursor) = (DEFAULT_LIMIT, None);
    for (index, (name, value)) in request.query.iter().enumerate() {
        if request.query[..index].iter().any(|(earlier, _)| earlier == name) {
            return Err(Error::invalid(name.chars().take(100).collect::<String>(), "is given twice"));
        }
        match name.as_str() {
            "status" => {
                filter.status = match Status::parse(value) {
                    Some(status @ (Status::Scheduled | Status::Leased | Status::Dead)) => status,
                    _ => return Err(Error::invalid("status", "must be scheduled, leased or dead")),
                }
            }
            "taskType" => {
                let name = TaskType::from_name(value).map_err(|reason| Error::invalid("taskType", reason))?;
                note_queue(name.name());
                filter.task_type = Some(name.name().to_owned());
            }
            "priority" => filter.priority = u8::try_from(parse_whole_number("priority", value, 0, 255)?).ok(),
            "limit" => limit = parse_whole_number("limit", value, 1, MAX_LIMIT)?,
            "cursor" => cursor = Some(checked_cursor(value)?),
            _ => {
                let known = "is not a parameter here; they are status, taskType, priority, limit, cursor";
                return Err(Error::invalid(name.chars().take(100).collect::<String>(), known));
            }
        }
    }
    let mut room = ANSWER_BYTES;
    let fits = |task: &_| {
        let size = to_raw_value(&TaskView::new(task)).map_or(0, |json| doubly_encoded_length(json.get()) + 1);
        let fits = size <= room;
        room = room.saturating_sub(size);
        fits
    };
    let most = usize::try_from(limit).expect("checked to be at least 1");
    let listing = service.list(&filter, most, cursor, fits, service.clock.now()).await?;
    Envelope::ok(&ListingView {
        tasks: listing.tasks.iter().map(TaskView::new).collect(),
        cursor: listing.cursor.as_deref().map(cursor_of),
    })
}

/// A cursor is a sort key of the index, a due time, `#` and an id, in an encoding that a URL carries as it is.
fn cursor_of(wake: &str) -> String {
    URL_SAFE_NO_PAD.encode(wake)
}

fn checked_cursor(cursor: &str) -> Result<String, Error> {
    let decoded = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded
        .filter(|wake| {
            wake.split_once('#').is_some_and(|(due, id)| {
                due.len() == 15 && due.bytes().all(|b| b.is_ascii_digit()) && check_task_id(id).is_ok()
            })
        })
        .ok_or_else(|| Error::invalid("cursor", "must be one that a listing gave"))
}

#[derive(Serialize)]
struct ListingView<'a> {
    tasks: Vec<TaskView<'a>>,
    cursor: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueueView<'a> {
    task_type: ListedType<'a>,
    priority: u8,
    scheduled: u64,
    ready: u64,
    leased: u64,
    dead: u64,
    oldest_due_age_ms: i64,
}

impl<'a> QueueView<'a> {
    fn new((task_type, priority): &'a (String, u8), counts: &QueueCounts) -> Self {
        Self {
            task_type: ListedType(task_type),
            priority: *priority,
            scheduled: counts.scheduled,
            ready: counts.ready,
            leased: counts.leased,
            dead: counts.dead,
            oldest_due_age_ms: counts.oldest_due_age_ms,
        }
    }
}
