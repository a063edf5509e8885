//! Reading tasks and the index.

use std::collections::{HashMap, HashSet};

use aws_sdk_dynamodb::types::{KeysAndAttributes, ReturnConsumedCapacity};
use tracing::warn;

use super::TaskTable;
use super::attributes::{BUCKET, INDEX, LANE, STATE, TASK_ID, WAKE, last_wake_key, wake_key_after, wake_key_due};
use super::client::classify;
use super::item::{Item, Malformed, from_item, take_text, text};
use crate::error::Error;
use crate::task::{Lane, Task};
use crate::time::Timestamp;

/// How many items DynamoDB gives in one BatchGetItem.
const BATCH_GET_ITEMS: usize = 100;
/// An id that no caller's task has, for a sign of life: `~` is no character of an id.
const NO_TASK: &str = "~";
/// How often the rest of a BatchGetItem that DynamoDB did not serve is asked for again.
const BATCH_GET_ROUNDS: u32 = 5;

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

impl TaskTable {
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
        // DynamoDB refuses a key that is named twice, and two pages of the index can name a task that moved in between.
        let ids: Vec<&String> = ids.iter().collect::<HashSet<_>>().into_iter().collect();
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
                keys = keys.keys(HashMap::from([(TASK_ID.to_owned(), text(id.as_str()))]));
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
