//! DynamoDB, the truth: every transition is one conditional write.

pub mod attributes;
mod client;
mod item;
mod update;

use std::collections::HashMap;

use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, KeysAndAttributes, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure,
    TransactWriteItem,
};
use tracing::warn;

pub use client::{Meter, Usage, connect, connect_to};
pub use item::{Item, Malformed, from_item, to_item};

use attributes::{
    ATTEMPTS, BUCKET, EXECUTE_TIME, EXPIRES_AT, FINISHED_AT, INDEX, LANE, LEASE_TOKEN, LEASE_UNTIL, MAX_ATTEMPTS,
    RETENTION_SECONDS, STATE, STATUS, TASK_ID, UPDATED_AT, VERSION, WAKE, WRITE_ID, last_wake_key, wake_key_after,
    wake_key_due,
};
use client::classify;
use item::{mutable_attributes, number, take_text, text};
use update::Update;

use crate::error::Error;
use crate::state::{Applied, Event, Refusal};
use crate::task::{Lane, Status, Task, random_token};
use crate::time::Timestamp;

/// How many items DynamoDB gives in one BatchGetItem.
const BATCH_GET_ITEMS: usize = 100;
/// An id that no caller's task has, for a sign of life: `~` is no character of an id.
const NO_TASK: &str = "~";
/// How often the rest of a BatchGetItem that DynamoDB did not serve is asked for again.
const BATCH_GET_ROUNDS: u32 = 5;

/// The table of tasks.
#[derive(Clone)]
pub struct TaskTable {
    client: aws_sdk_dynamodb::Client,
    name: String,
    shards: u16,
    meter: Meter,
}

/// What became of an insert.
#[derive(Debug)]
pub enum Inserted {
    /// The task is stored.
    Created,
    /// The id is taken by this task, which stays as it is.
    Exists(Box<Task>),
}

/// Why a conditional write changed nothing.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such task, or its retention has ended.
    Missing,
    /// The item is not a task as this version writes it.
    Malformed,
    /// The task's state does not allow it.
    State(Refusal),
    /// The same event was applied before.
    Already,
}

/// One row of the index.
#[derive(Clone, Debug)]
pub struct Row {
    /// The task's id.
    pub id: String,
    /// When it is due.
    pub due: Timestamp,
    /// Its lane.
    pub lane: Lane,
    /// Its sort key.
    pub wake: String,
}

/// A page of index rows, in due order. The index lags: what a row says is re-checked by every write.
#[derive(Debug, Default)]
pub struct Page {
    /// The readable rows.
    pub rows: Vec<Row>,
    /// How many rows were not readable and left out.
    pub malformed: u32,
    /// The sort key to go on after; `None` at the end. A page with no rows may have it.
    pub next: Option<String>,
}

enum Written {
    Applied(Item),
    Refused(Option<Item>),
}

impl TaskTable {
    /// The table `name`, whose index has `shards` shards.
    pub fn new(client: aws_sdk_dynamodb::Client, name: String, shards: u16) -> Self {
        Self { client, name, shards, meter: Meter::default() }
    }

    /// The number of index shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// What this table object has used so far.
    pub fn usage(&self) -> Usage {
        self.meter.usage()
    }

    /// The client and the table's name, for a handler's own transaction.
    pub fn client(&self) -> (&aws_sdk_dynamodb::Client, &str) {
        (&self.client, &self.name)
    }

    /// Stores a new task where its id is free: unknown, cancelled, or past its retention.
    pub async fn insert(&self, task: &Task, now: Timestamp) -> Result<Inserted, Error> {
        let answer = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(to_item(task, self.shards)))
            .condition_expression("attribute_not_exists(#taskId) OR #status = :cancelled OR #expiresAt <= :now")
            .expression_attribute_names("#taskId", TASK_ID)
            .expression_attribute_names("#status", STATUS)
            .expression_attribute_names("#expiresAt", EXPIRES_AT)
            .expression_attribute_values(":cancelled", text(Status::Cancelled.as_str()))
            .expression_attribute_values(":now", number(now.as_seconds_down()))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        self.meter.wrote(answer.as_ref().ok().and_then(|a| a.consumed_capacity()));
        let Err(error) = answer else {
            return Ok(Inserted::Created);
        };
        match error.as_service_error() {
            Some(aws_sdk_dynamodb::operation::put_item::PutItemError::ConditionalCheckFailedException(refused)) => {
                let item = refused.item.clone().unwrap_or_default();
                let stored = from_item(item).map_err(|malformed| Error::Internal(malformed.into()))?;
                // The SDK sends a write again when its answer was lost: then the task found is our own.
                if stored.write_id == task.write_id {
                    Ok(Inserted::Created)
                } else {
                    Ok(Inserted::Exists(Box::new(stored)))
                }
            }
            _ => Err(classify(error)),
        }
    }

    /// Reads a task, strongly consistent. `None` when it is unknown or past its retention.
    pub async fn get(&self, id: &str, now: Timestamp) -> Result<Option<Task>, Error> {
        let answer = self
            .client
            .get_item()
            .table_name(&self.name)
            .key(TASK_ID, text(id))
            .consistent_read(true)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(classify)?;
        self.meter.read(answer.consumed_capacity());
        let Some(item) = answer.item else {
            return Ok(None);
        };
        let task = from_item(item).map_err(|malformed| Error::Internal(malformed.into()))?;
        Ok(Some(task).filter(|task| !task.is_expired(now)))
    }

    /// Says whether DynamoDB answers.
    pub async fn ping(&self) -> Result<(), Error> {
        self.get(NO_TASK, Timestamp::from_ms(0)).await.map(drop)
    }

    /// Reads the states of many tasks, strongly consistent, without parameters. Unknown ones are left out, and so
    /// are malformed ones, which are logged.
    pub async fn states(&self, ids: &[String]) -> Result<HashMap<String, Task>, Error> {
        self.read_many(ids, &STATE).await
    }

    /// Reads many tasks whole; else as [`TaskTable::states`].
    pub async fn read(&self, ids: &[String]) -> Result<HashMap<String, Task>, Error> {
        self.read_many(ids, &[]).await
    }

    async fn read_many(&self, ids: &[String], attributes: &[&str]) -> Result<HashMap<String, Task>, Error> {
        let mut found = HashMap::new();
        for chunk in ids.chunks(BATCH_GET_ITEMS) {
            let mut keys = KeysAndAttributes::builder().consistent_read(true);
            if !attributes.is_empty() {
                let names: Vec<String> = attributes.iter().map(|name| format!("#{name}")).collect();
                keys = keys.projection_expression(names.join(","));
                for name in attributes {
                    keys = keys.expression_attribute_names(format!("#{name}"), *name);
                }
            }
            for id in chunk {
                keys = keys.keys(HashMap::from([(TASK_ID.to_owned(), text(id))]));
            }
            let keys = keys.build().map_err(|e| Error::Internal(e.into()))?;
            let mut open = Some(HashMap::from([(self.name.clone(), keys)]));
            for round in 0.. {
                let answer = self
                    .client
                    .batch_get_item()
                    .set_request_items(open.take())
                    .return_consumed_capacity(ReturnConsumedCapacity::Total)
                    .send()
                    .await
                    .map_err(classify)?;
                self.meter.read(answer.consumed_capacity().first());
                for item in answer.responses.into_iter().flatten().flat_map(|(_, items)| items) {
                    match from_item(item) {
                        Ok(task) => {
                            found.insert(task.id.clone(), task);
                        }
                        Err(malformed) => warn!(%malformed, "skipped an unreadable item"),
                    }
                }
                open = answer.unprocessed_keys.filter(|keys| !keys.is_empty());
                if open.is_none() {
                    break;
                }
                if round == BATCH_GET_ROUNDS {
                    return Err(Error::Throttled("BatchGetItem left keys unprocessed".into()));
                }
                tokio::time::sleep(std::time::Duration::from_millis(20 << round)).await;
            }
        }
        Ok(found)
    }

    /// Leases a task to a consumer of `lane`, and returns it whole.
    pub async fn lease(
        &self,
        id: &str,
        lane: &Lane,
        token: &str,
        until: Timestamp,
        now: Timestamp,
    ) -> Result<Result<Task, Refused>, Error> {
        let update = takeable(lane, now)
            .set(STATUS, text(Status::Leased.as_str()))
            .set_sum(ATTEMPTS, ATTEMPTS, number(1))
            .set(LEASE_TOKEN, text(token))
            .set(LEASE_UNTIL, number(until.as_ms()));
        let event = Event::Lease { lane: lane.clone(), token: token.to_owned(), until };
        self.write(id, update, ReturnValue::AllNew, &event, now)
            .await
            .map(|written| written.and_then(|item| from_item(item).map_err(|_| Refused::Malformed)))
    }

    /// Takes a task of `lane` and ends it in one step, and returns it whole.
    pub async fn take(&self, id: &str, lane: &Lane, now: Timestamp) -> Result<Result<Task, Refused>, Error> {
        let update = finish(takeable(lane, now), Status::Succeeded, now)
            .set_sum(ATTEMPTS, ATTEMPTS, number(1))
            .remove(LEASE_TOKEN);
        let event = Event::Take { lane: lane.clone() };
        self.write(id, update, ReturnValue::AllNew, &event, now)
            .await
            .map(|written| written.and_then(|item| from_item(item).map_err(|_| Refused::Malformed)))
    }

    /// Ends the task that `token` holds, and tells its lane.
    pub async fn acknowledge(&self, id: &str, token: &str, now: Timestamp) -> Result<Result<Lane, Refused>, Error> {
        let event = Event::Acknowledge { token: token.to_owned() };
        let written = self.write(id, acknowledgement(token, now), ReturnValue::UpdatedOld, &event, now).await?;
        Ok(written.and_then(lane_of))
    }

    /// The write of [`TaskTable::acknowledge`] as a part of another transaction.
    pub fn completion(&self, id: &str, token: &str, now: Timestamp) -> TransactWriteItem {
        let expressions = marked(acknowledgement(token, now), &random_token(), now).into_expressions();
        let update = aws_sdk_dynamodb::types::Update::builder()
            .table_name(&self.name)
            .key(TASK_ID, text(id))
            .update_expression(expressions.update)
            .condition_expression(expressions.condition)
            .set_expression_attribute_names(Some(expressions.names))
            .set_expression_attribute_values(Some(expressions.values))
            .build()
            .expect("table, key and update expression are given");
        TransactWriteItem::builder().update(update).build()
    }

    /// Calls a scheduled or leased task off, and tells its lane.
    pub async fn cancel(&self, id: &str, now: Timestamp) -> Result<Result<Lane, Refused>, Error> {
        let update = Update::only_if("#status IN (:scheduled, :leased)")
            .value("scheduled", text(Status::Scheduled.as_str()))
            .value("leased", text(Status::Leased.as_str()))
            .remove(LEASE_TOKEN);
        let update = finish(update, Status::Cancelled, now);
        let written = self.write(id, update, ReturnValue::UpdatedOld, &Event::Cancel, now).await?;
        Ok(written.and_then(lane_of))
    }

    /// Writes what an event made of `seen`, unless the task changed since it was read: then `false`.
    pub async fn replace(&self, seen: &Task, next: &mut Task, now: Timestamp) -> Result<bool, Error> {
        next.version = seen.version + 1;
        next.updated_at = now;
        next.write_id = random_token();
        let mut update = Update::only_if("#writeId = :seen").value("seen", text(&seen.write_id));
        for (name, value) in mutable_attributes(next, self.shards) {
            update = match value {
                Some(value) => update.set(name, value),
                None => update.remove(name),
            };
        }
        let written = self.send(&next.id, update, ReturnValue::None, &next.write_id).await?;
        Ok(matches!(written, Written::Applied(_)))
    }

    /// A page of at most `limit` rows of the index partition `bucket`, due up to `up_to`, after the sort key `after`.
    pub async fn page(&self, bucket: String, after: Option<&str>, up_to: Timestamp, limit: i32) -> Result<Page, Error> {
        let low = after.map_or_else(String::new, wake_key_after);
        let high = last_wake_key(up_to);
        // DynamoDB refuses a BETWEEN whose ends are the wrong way round.
        if low > high {
            return Ok(Page::default());
        }
        let low = if low.is_empty() { "0".to_owned() } else { low };
        let answer = self
            .client
            .query()
            .table_name(&self.name)
            .index_name(INDEX)
            .key_condition_expression("#bucket = :bucket AND #wake BETWEEN :low AND :high")
            .expression_attribute_names("#bucket", BUCKET)
            .expression_attribute_names("#wake", WAKE)
            .expression_attribute_values(":bucket", text(bucket))
            .expression_attribute_values(":low", text(low))
            .expression_attribute_values(":high", text(high))
            .limit(limit)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await
            .map_err(classify)?;
        self.meter.read(answer.consumed_capacity());
        let next = match answer.last_evaluated_key {
            Some(mut key) => take_text(&mut key, WAKE).map_err(|m| Error::Internal(m.into()))?,
            None => None,
        };
        let mut page = Page { next, ..Page::default() };
        for item in answer.items.unwrap_or_default() {
            match row_of(item) {
                Ok(row) => page.rows.push(row),
                Err(malformed) => {
                    warn!(%malformed, "skipped an unreadable index row");
                    page.malformed += 1;
                }
            }
        }
        Ok(page)
    }

    /// Sends an update and says, of a refused one, why the state machine refuses it.
    async fn write(
        &self,
        id: &str,
        update: Update,
        returns: ReturnValue,
        event: &Event,
        now: Timestamp,
    ) -> Result<Result<Item, Refused>, Error> {
        let write_id = random_token();
        let update = marked(update, &write_id, now);
        let item = match self.send(id, update, returns, &write_id).await? {
            Written::Applied(item) => return Ok(Ok(item)),
            Written::Refused(None) => return Ok(Err(Refused::Missing)),
            Written::Refused(Some(item)) => item,
        };
        let Ok(task) = from_item(item) else {
            return Ok(Err(Refused::Malformed));
        };
        if task.is_expired(now) {
            return Ok(Err(Refused::Missing));
        }
        match task.apply(event, now) {
            Err(refusal) => Ok(Err(Refused::State(refusal))),
            Ok(Applied::Already) => Ok(Err(Refused::Already)),
            Ok(Applied::Changed(_)) => {
                Err(Error::Internal(format!("DynamoDB refused what the state machine allows: task {id}").into()))
            }
        }
    }

    /// Sends an update. One that was applied though its answer was lost, so that the SDK sent it again, is known
    /// by its mark and is a success.
    async fn send(&self, id: &str, update: Update, returns: ReturnValue, write_id: &str) -> Result<Written, Error> {
        let expressions = update.into_expressions();
        let answer = self
            .client
            .update_item()
            .table_name(&self.name)
            .key(TASK_ID, text(id))
            .update_expression(expressions.update)
            .condition_expression(expressions.condition)
            .set_expression_attribute_names(Some(expressions.names))
            .set_expression_attribute_values(Some(expressions.values))
            .return_values(returns)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .return_consumed_capacity(ReturnConsumedCapacity::Total)
            .send()
            .await;
        self.meter.wrote(answer.as_ref().ok().and_then(|a| a.consumed_capacity()));
        let error = match answer {
            Ok(answer) => return Ok(Written::Applied(answer.attributes.unwrap_or_default())),
            Err(error) => error,
        };
        match error.as_service_error() {
            Some(UpdateItemError::ConditionalCheckFailedException(refused)) => {
                let item = refused.item.clone();
                let ours = item.as_ref().and_then(|i| i.get(WRITE_ID)).and_then(|w| w.as_s().ok());
                match (ours.map(String::as_str) == Some(write_id), item) {
                    (true, Some(item)) => Ok(Written::Applied(item)),
                    (_, item) => Ok(Written::Refused(item)),
                }
            }
            _ => Err(classify(error)),
        }
    }
}

/// A task of `lane` that is due and free, or whose lease has ended, and that has attempts left.
fn takeable(lane: &Lane, now: Timestamp) -> Update {
    Update::only_if(
        "#lane = :lane AND #attempts < #maxAttempts AND #executeTime <= :now \
         AND (#status = :scheduled OR (#status = :wasLeased AND #leaseUntil <= :now))",
    )
    .name(LANE)
    .name(ATTEMPTS)
    .name(MAX_ATTEMPTS)
    .name(EXECUTE_TIME)
    .name(STATUS)
    .name(LEASE_UNTIL)
    .value("lane", text(lane.to_string()))
    .value("now", number(now.as_ms()))
    .value("scheduled", text(Status::Scheduled.as_str()))
    .value("wasLeased", text(Status::Leased.as_str()))
}

/// The end of the task that `token` holds.
fn acknowledgement(token: &str, now: Timestamp) -> Update {
    let update = Update::only_if("#status = :leased AND #leaseToken = :token")
        .name(LEASE_TOKEN)
        .value("leased", text(Status::Leased.as_str()))
        .value("token", text(token));
    finish(update, Status::Succeeded, now)
}

/// The update with the marks that every write leaves.
fn marked(update: Update, write_id: &str, now: Timestamp) -> Update {
    update.set(WRITE_ID, text(write_id)).set(UPDATED_AT, number(now.as_ms())).set_sum(VERSION, VERSION, number(1))
}

/// The end of a task: it leaves the index, and its retention begins.
fn finish(update: Update, status: Status, now: Timestamp) -> Update {
    update
        .set(STATUS, text(status.as_str()))
        .set(FINISHED_AT, number(now.as_ms()))
        .set_sum(EXPIRES_AT, RETENTION_SECONDS, number(now.as_seconds_up()))
        .remove(LEASE_UNTIL)
        .remove(BUCKET)
        .remove(WAKE)
        .remove(LANE)
}

fn lane_of(mut item: Item) -> Result<Lane, Refused> {
    match item.remove(LANE) {
        Some(AttributeValue::S(lane)) => Lane::parse(&lane).ok_or(Refused::Malformed),
        // A repeat of our own write finds the item without its index attributes, but whole.
        _ => from_item(item).map(|task| task.lane()).map_err(|_| Refused::Malformed),
    }
}

fn row_of(mut item: Item) -> Result<Row, Malformed> {
    let required = |value: Option<String>, name| value.ok_or(Malformed(name));
    let wake = required(take_text(&mut item, WAKE)?, WAKE)?;
    let lane = required(take_text(&mut item, LANE)?, LANE)?;
    Ok(Row {
        id: required(take_text(&mut item, TASK_ID)?, TASK_ID)?,
        due: wake_key_due(&wake).ok_or(Malformed(WAKE))?,
        lane: Lane::parse(&lane).ok_or(Malformed(LANE))?,
        wake,
    })
}
