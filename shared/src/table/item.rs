//! Tasks as DynamoDB items, both ways.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::value::RawValue;
use thiserror::Error;

use super::attributes::{
    ATTEMPTS, BACKOFF, BUCKET, CREATED_AT, DIGEST, ERROR_AT, ERROR_ATTEMPT, ERROR_MESSAGE, EXECUTE_TIME, EXPIRES_AT,
    FINISHED_AT, HANDLER, LANE, LEASE_TOKEN, LEASE_UNTIL, MAX_ATTEMPTS, PARAMETERS, PRIORITY, RETENTION,
    RETENTION_SECONDS, STATUS, TASK_ID, TASK_TYPE, TIMEOUT, TYPE_IS_NUMBER, UPDATED_AT, VERSION, WAKE, WRITE_ID,
    dead_bucket, pending_bucket, wake_key,
};
use crate::backoff::Backoff;
use crate::task::{Content, LastError, Status, Task, TaskType, spread};
use crate::time::Timestamp;

/// An item by attribute name.
pub type Item = HashMap<String, AttributeValue>;

/// The salt of the spread of ids over index shards.
const SHARD_SALT: u8 = 0;

/// An item that is not a task as this version writes it.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the item's attribute {0} is missing or malformed")]
pub struct Malformed(pub &'static str);

/// An attribute value of a number.
pub fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// An attribute value of a text.
pub fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// The attributes that change in a task's life, each with its value or `None` when the item is not to have it.
pub fn mutable_attributes(task: &Task, shards: u16) -> Vec<(&'static str, Option<AttributeValue>)> {
    let shard = spread(&task.id, SHARD_SALT, shards);
    let bucket = match task.status {
        Status::Scheduled | Status::Leased => Some(pending_bucket(shard)),
        Status::Dead => Some(dead_bucket(shard)),
        Status::Succeeded | Status::Cancelled => None,
    };
    let error = task.last_error.as_ref();
    vec![
        (STATUS, Some(text(task.status.as_str()))),
        (EXECUTE_TIME, Some(number(task.execute_time.as_ms()))),
        (ATTEMPTS, Some(number(task.attempts))),
        (VERSION, Some(number(task.version))),
        (WRITE_ID, Some(text(&task.write_id))),
        (UPDATED_AT, Some(number(task.updated_at.as_ms()))),
        (FINISHED_AT, task.finished_at.map(|t| number(t.as_ms()))),
        (LEASE_UNTIL, task.lease_until.map(|t| number(t.as_ms()))),
        (LEASE_TOKEN, task.lease_token.as_ref().map(text)),
        (ERROR_ATTEMPT, error.map(|e| number(e.attempt))),
        (ERROR_AT, error.map(|e| number(e.at.as_ms()))),
        (ERROR_MESSAGE, error.map(|e| text(&e.message))),
        (EXPIRES_AT, task.expires_at_seconds().map(number)),
        (WAKE, bucket.as_ref().map(|_| text(wake_key(task.execute_time, &task.id)))),
        (LANE, bucket.as_ref().map(|_| text(task.lane().to_string()))),
        (BUCKET, bucket.map(text)),
    ]
}

/// The whole item of `task`.
pub fn to_item(task: &Task, shards: u16) -> Item {
    let content = &task.content;
    let backoff = (content.backoff != Backoff::default())
        .then(|| text(serde_json::to_string(&content.backoff).expect("a checked backoff has only finite numbers")));
    let fixed = [
        (TASK_ID, Some(text(&task.id))),
        (TASK_TYPE, Some(text(content.task_type.name()))),
        (TYPE_IS_NUMBER, content.task_type.sent_as_number().then_some(AttributeValue::Bool(true))),
        (PRIORITY, Some(number(content.priority))),
        (PARAMETERS, content.parameters.as_ref().map(|p| text(p.get()))),
        (HANDLER, content.handler.as_ref().map(text)),
        (MAX_ATTEMPTS, Some(number(content.max_attempts))),
        (BACKOFF, backoff),
        (RETENTION, Some(number(content.retention_ms))),
        (RETENTION_SECONDS, Some(number(Timestamp::from_ms(content.retention_ms).as_seconds_up()))),
        (TIMEOUT, content.timeout_ms.map(number)),
        (DIGEST, Some(text(&task.digest))),
        (CREATED_AT, Some(number(task.created_at.as_ms()))),
    ];
    fixed
        .into_iter()
        .chain(mutable_attributes(task, shards))
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

/// Reads the item that [`to_item`] writes; without `parameters` they are `None`.
pub fn from_item(mut item: Item) -> Result<Task, Malformed> {
    let parameters = match take_text(&mut item, PARAMETERS)? {
        Some(json) => Some(RawValue::from_string(json).map_err(|_| Malformed(PARAMETERS))?),
        None => None,
    };
    let backoff = match take_text(&mut item, BACKOFF)? {
        Some(json) => serde_json::from_str(&json).map_err(|_| Malformed(BACKOFF))?,
        None => Backoff::default(),
    };
    let last_error = match read_number(&item, ERROR_ATTEMPT)? {
        Some(attempt) => Some(LastError {
            attempt,
            at: Timestamp::from_ms(required(ERROR_AT, read_number(&item, ERROR_AT)?)?),
            message: required(ERROR_MESSAGE, take_text(&mut item, ERROR_MESSAGE)?)?,
        }),
        None => None,
    };
    let status = required(STATUS, take_text(&mut item, STATUS)?)?;
    let moment =
        |name| -> Result<Option<Timestamp>, Malformed> { Ok(read_number(&item, name)?.map(Timestamp::from_ms)) };
    let (finished_at, lease_until) = (moment(FINISHED_AT)?, moment(LEASE_UNTIL)?);
    let (created_at, updated_at) = (moment(CREATED_AT)?, moment(UPDATED_AT)?);
    let execute_time = moment(EXECUTE_TIME)?;
    let is_number = item.get(TYPE_IS_NUMBER).is_some_and(|v| v.as_bool() == Ok(&true));
    Ok(Task {
        content: Content {
            task_type: TaskType::from_stored(required(TASK_TYPE, take_text(&mut item, TASK_TYPE)?)?, is_number),
            priority: required(PRIORITY, read_number(&item, PRIORITY)?)?,
            parameters,
            handler: take_text(&mut item, HANDLER)?,
            max_attempts: required(MAX_ATTEMPTS, read_number(&item, MAX_ATTEMPTS)?)?,
            backoff,
            retention_ms: required(RETENTION, read_number(&item, RETENTION)?)?,
            timeout_ms: read_number(&item, TIMEOUT)?,
        },
        id: required(TASK_ID, take_text(&mut item, TASK_ID)?)?,
        digest: required(DIGEST, take_text(&mut item, DIGEST)?)?,
        execute_time: required(EXECUTE_TIME, execute_time)?,
        status: Status::parse(&status).ok_or(Malformed(STATUS))?,
        attempts: required(ATTEMPTS, read_number(&item, ATTEMPTS)?)?,
        version: required(VERSION, read_number(&item, VERSION)?)?,
        write_id: required(WRITE_ID, take_text(&mut item, WRITE_ID)?)?,
        created_at: required(CREATED_AT, created_at)?,
        updated_at: required(UPDATED_AT, updated_at)?,
        finished_at,
        lease_until,
        lease_token: take_text(&mut item, LEASE_TOKEN)?,
        last_error,
    })
}

fn required<T>(name: &'static str, value: Option<T>) -> Result<T, Malformed> {
    value.ok_or(Malformed(name))
}

/// The text `name` of an item, `None` when it is absent.
pub fn take_text(item: &mut Item, name: &'static str) -> Result<Option<String>, Malformed> {
    match item.remove(name) {
        None => Ok(None),
        Some(AttributeValue::S(value)) => Ok(Some(value)),
        Some(_) => Err(Malformed(name)),
    }
}

fn read_number<T: std::str::FromStr>(item: &Item, name: &'static str) -> Result<Option<T>, Malformed> {
    match item.get(name) {
        None => Ok(None),
        Some(AttributeValue::N(digits)) => digits.parse().map(Some).map_err(|_| Malformed(name)),
        Some(_) => Err(Malformed(name)),
    }
}
