//! Writing tasks: each transition is one conditional write.

use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::update_item::UpdateItemError;
use aws_sdk_dynamodb::types::{
    AttributeValue, ReturnConsumedCapacity, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};

use super::TaskTable;
use super::attributes::{
    ADD_ID, ATTEMPTS, BUCKET, EXECUTE_TIME, EXPIRES_AT, FINISHED_AT, LANE, LEASE_TOKEN, LEASE_UNTIL, MAX_ATTEMPTS,
    RETENTION_SECONDS, STATUS, TASK_ID, UPDATED_AT, VERSION, WAKE, WRITE_ID,
};
use super::client::classify;
use super::item::{Item, from_item, mutable_attributes, number, text, to_item};
use super::update::Update;
use crate::error::Error;
use crate::state::{Applied, Event, Refusal};
use crate::task::{Lane, Status, Task, random_token};
use crate::time::Timestamp;

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

enum Written {
    Applied(Item),
    Refused(Option<Item>),
}

impl TaskTable {
    /// Stores a new task where its id is free: unknown, cancelled, or past its retention.
    pub async fn insert(&self, task: &Task, now: Timestamp) -> Result<Inserted, Error> {
        let answer = self
            .client
            .put_item()
            .table_name(&self.name)
            .set_item(Some(to_item(task, self.shards)))
            // The SDK sends a write again when its answer was lost. Whatever happened to the task in between, cancelled
            // perhaps, the repeat must not add it anew.
            .item(ADD_ID, text(&task.write_id))
            .condition_expression(
                "attribute_not_exists(#taskId) OR (NOT #addId = :addId AND (#status = :cancelled OR #expiresAt <= :now))",
            )
            .expression_attribute_names("#addId", ADD_ID)
            .expression_attribute_values(":addId", text(&task.write_id))
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
            Some(PutItemError::ConditionalCheckFailedException(refused)) => {
                let item = refused.item.clone().unwrap_or_default();
                if item.get(ADD_ID) == Some(&text(&task.write_id)) {
                    return Ok(Inserted::Created);
                }
                let stored = from_item(item).map_err(|malformed| Error::Internal(malformed.into()))?;
                Ok(Inserted::Exists(Box::new(stored)))
            }
            _ => Err(classify(error)),
        }
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
