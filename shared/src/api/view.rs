//! A task as the API shows it.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::backoff::Backoff;
use crate::task::{LastError, Status, Task, TaskType};
use crate::time::Timestamp;

/// A task in an answer. Fields that do not apply are left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskView<'a> {
    task_id: &'a str,
    task_type: &'a TaskType,
    priority: u8,
    execute_time: Timestamp,
    parameters: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    handler: Option<&'a str>,
    max_attempts: u32,
    backoff: &'a Backoff,
    retention: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<i64>,
    status: Status,
    attempts: u32,
    /// The current lease's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    version: u64,
    created_at: Timestamp,
    updated_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<&'a LastError>,
}

impl<'a> TaskView<'a> {
    /// The task as anyone may see it: without the lease's token.
    pub fn new(task: &'a Task) -> Self {
        let content = &task.content;
        let leased = task.status == Status::Leased;
        Self {
            task_id: &task.id,
            task_type: &content.task_type,
            priority: content.priority,
            execute_time: task.execute_time,
            parameters: content.parameters.as_deref().unwrap_or(RawValue::NULL),
            handler: content.handler.as_deref(),
            max_attempts: content.max_attempts,
            backoff: &content.backoff,
            retention: content.retention_ms,
            timeout: content.timeout_ms,
            status: task.status,
            attempts: task.attempts,
            attempt: leased.then_some(task.attempts),
            version: task.version,
            created_at: task.created_at,
            updated_at: task.updated_at,
            finished_at: task.finished_at,
            lease_until: task.lease_until,
            lease_token: None,
            last_error: task.last_error.as_ref(),
        }
    }

    /// The task as its new holder sees it: with the token.
    pub fn for_holder(task: &'a Task) -> Self {
        Self { lease_token: task.lease_token.as_deref(), ..Self::new(task) }
    }
}

/// How many bytes `json` has as part of a JSON text that is itself encoded as a JSON string, as Lambda counts it.
pub fn doubly_encoded_length(json: &str) -> usize {
    json.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
            0x00..=0x1f => 6,
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_length_is_what_serde_writes(text in ".*") {
            let written = serde_json::to_string(&text).expect("a string");
            prop_assert_eq!(doubly_encoded_length(&text) + 2, written.len());
        }
    }
}
