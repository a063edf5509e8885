//! Looking: one task, lists of tasks, queues, health.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use tracing::warn;

use super::Service;
use crate::due_index::Partition;
use crate::error::Error;
use crate::table::Row;
use crate::table::attributes::{dead_bucket, pending_bucket};
use crate::task::{Lane, Status, Task};
use crate::time::{LAST_TIMESTAMP, Timestamp};

/// Tasks that a listing reads at once with their parameters: 2.6 MB at most, so that no request is long, and little is
/// read that the answer then has no room for.
const WHOLE_TASKS_AT_ONCE: usize = 10;
/// Index rows that one listing looks through at most; it then gives what it has with a cursor to go on.
const ROWS_A_LISTING: usize = 5_000;
/// How long a listing looks for more; it then gives what it has with a cursor to go on.
const LISTING_TIME: Duration = Duration::from_millis(2_500);
/// Index rows that a listing checks together: as many as one BatchGetItem takes.
const ROWS_AT_ONCE: usize = 100;
/// Index rows that one request reads.
const ROWS: i32 = 100;
/// Index rows that one request reads where only their lanes are counted.
const ROWS_TO_COUNT: i32 = 1_000;

/// Which tasks are listed.
#[derive(Clone, Debug)]
pub struct ListFilter {
    /// Scheduled, leased or dead; others are not indexed.
    pub status: Status,
    /// Only this type.
    pub task_type: Option<String>,
    /// Only this priority.
    pub priority: Option<u8>,
}

impl ListFilter {
    fn has(&self, lane: &Lane) -> bool {
        self.task_type.as_ref().is_none_or(|t| *t == lane.task_type) && self.priority.is_none_or(|p| p == lane.priority)
    }
}

/// Listed tasks, in due order.
#[derive(Debug)]
pub struct Listing {
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Where to go on; `None` at the end.
    pub cursor: Option<String>,
}

/// What one queue holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// In the window, not due yet.
    pub scheduled: u64,
    /// Due and free.
    pub ready: u64,
    /// Leased.
    pub leased: u64,
    /// Dead.
    pub dead: u64,
    /// How long the oldest ready task has been due, in milliseconds; 0 when none is.
    pub oldest_due_age_ms: i64,
}

/// Whether the stores answer: `ok` or `not reached`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Health {
    /// The service's version.
    pub version: &'static str,
    /// DynamoDB.
    pub dynamodb: &'static str,
    /// Redis.
    pub redis: &'static str,
}

impl Service {
    /// Reads one task.
    pub async fn get(&self, id: &str, now: Timestamp) -> Result<Task, Error> {
        self.table.get(id, now).await?.ok_or_else(|| Error::NotFound(id.to_owned()))
    }

    /// Lists up to `most` tasks in due order, after `cursor`, while `fits` takes them.
    pub async fn list(
        &self,
        filter: &ListFilter,
        most: usize,
        cursor: Option<String>,
        mut fits: impl FnMut(&Task) -> bool,
        now: Timestamp,
    ) -> Result<Listing, Error> {
        let mut merge = Merge::new(self, filter, &cursor, now);
        let mut tasks = Vec::new();
        let mut looked_through = 0;
        let stop = Instant::now() + LISTING_TIME;
        let mut last_wake = cursor;
        loop {
            let rows = merge.next_rows(ROWS_AT_ONCE).await?;
            if rows.is_empty() {
                return Ok(Listing { tasks, cursor: None });
            }
            looked_through += rows.len();
            let ids = rows.iter().filter(|row| filter.has(&row.lane)).map(|row| row.id.clone()).collect::<Vec<_>>();
            // The index lags, and so does the TTL: what it says is checked by strong reads, of states first, since most
            // rows of a listing of leased tasks are of scheduled ones.
            let mut wanted = self.table.states(&ids).await?;
            wanted.retain(|_, task| task.status == filter.status && !task.is_expired(now) && filter.has(&task.lane()));
            let ids = rows.iter().filter(|row| wanted.contains_key(&row.id)).map(|row| row.id.clone());
            let ids: Vec<String> = ids.collect();
            let (mut found, mut passed) = (HashMap::new(), 0);
            for row in rows {
                if tasks.len() == most {
                    break;
                }
                if wanted.contains_key(&row.id) {
                    if passed % WHOLE_TASKS_AT_ONCE == 0 {
                        let end = ids.len().min(passed + WHOLE_TASKS_AT_ONCE);
                        found = self.table.read(&ids[passed..end]).await?;
                    }
                    passed += 1;
                }
                let task = found.remove(&row.id).filter(|task| task.status == filter.status);
                if let Some(task) = task {
                    if !fits(&task) {
                        let cursor = last_wake;
                        return Ok(Listing { tasks, cursor });
                    }
                    tasks.push(task);
                }
                last_wake = Some(row.wake);
            }
            if tasks.len() == most || looked_through >= ROWS_A_LISTING || Instant::now() >= stop {
                let cursor = last_wake;
                return Ok(Listing { tasks, cursor });
            }
        }
    }

    /// Counts what every queue holds.
    pub async fn queues(&self, now: Timestamp) -> Result<BTreeMap<(String, u8), QueueCounts>, Error> {
        let mut queues: BTreeMap<(String, u8), QueueCounts> = BTreeMap::new();
        let (partitions, _) = self.index.partitions().await.map_err(Error::redis)?;
        let partitions: Vec<Partition> =
            partitions.into_iter().filter(|p| p.number < self.config.queue_partitions).collect();
        let counts = self.index.counts(&partitions, now).await.map_err(Error::redis)?;
        // A list's ids do not tell their due times.
        let heads: Vec<String> = counts.iter().filter_map(|c| c.first_in_topic.clone()).collect();
        let heads = self.table.states(&heads).await?;
        for (partition, counts) in partitions.into_iter().zip(counts) {
            let queue = queues.entry((partition.lane.task_type, partition.lane.priority)).or_default();
            queue.scheduled += counts.scheduled;
            queue.ready += counts.ready;
            queue.leased += counts.leased;
            let head = counts.first_in_topic.and_then(|id| heads.get(&id)).filter(|task| !task.status.is_final());
            let head = head.map(|task| task.execute_time);
            let oldest = head.into_iter().chain(counts.first_due).min();
            let age = oldest.map_or(0, |due| now.ms_since(due).max(0));
            queue.oldest_due_age_ms = queue.oldest_due_age_ms.max(age);
        }
        let shards = (0..self.table.shards()).map(|shard| self.dead_by_lane(shard));
        for (lane, dead) in futures::future::try_join_all(shards).await?.into_iter().flatten() {
            queues.entry((lane.task_type, lane.priority)).or_default().dead += dead;
        }
        queues.retain(|_, counts| counts.scheduled + counts.ready + counts.leased + counts.dead > 0);
        Ok(queues)
    }

    /// How many dead tasks of each lane a shard has.
    async fn dead_by_lane(&self, shard: u16) -> Result<HashMap<Lane, u64>, Error> {
        let mut lanes: HashMap<Lane, u64> = HashMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = self.table.page(dead_bucket(shard), after.as_deref(), LAST_TIMESTAMP, ROWS_TO_COUNT).await?;
            for row in page.rows {
                *lanes.entry(row.lane).or_default() += 1;
            }
            after = page.next;
            if after.is_none() {
                return Ok(lanes);
            }
        }
    }

    /// Asks both stores for a sign of life.
    pub async fn health(&self) -> Health {
        let (dynamodb, redis) = tokio::join!(self.table.ping(), self.index.ping());
        Health {
            version: env!("CARGO_PKG_VERSION"),
            dynamodb: sign_of_life("DynamoDB", dynamodb),
            redis: sign_of_life("Redis", redis),
        }
    }
}

/// Anybody may ask, so the reason of a failure is for the log alone.
fn sign_of_life<E: std::error::Error>(store: &str, answer: Result<(), E>) -> &'static str {
    match answer {
        Ok(()) => "ok",
        Err(error) => {
            warn!(store, %error, "no sign of life");
            "not reached"
        }
    }
}

impl Health {
    /// Whether DynamoDB answers; without Redis the service works on.
    pub fn is_up(&self) -> bool {
        self.dynamodb == "ok"
    }
}

/// The rows of all shards as one sequence in due order.
struct Merge<'a> {
    service: &'a Service,
    filter: &'a ListFilter,
    up_to: Timestamp,
    shards: Vec<MergedShard>,
}

struct MergedShard {
    number: u16,
    rows: VecDeque<Row>,
    after: Option<String>,
    ended: bool,
}

impl<'a> Merge<'a> {
    fn new(service: &'a Service, filter: &'a ListFilter, start: &Option<String>, now: Timestamp) -> Self {
        let shards = (0..service.table.shards()).map(|number| MergedShard {
            number,
            rows: VecDeque::new(),
            after: start.clone(),
            ended: false,
        });
        Self {
            service,
            filter,
            // What is leased has been due.
            up_to: if filter.status == Status::Leased { now } else { LAST_TIMESTAMP },
            shards: shards.collect(),
        }
    }

    /// The next rows, at most `most`, of whatever lane; none at the end.
    async fn next_rows(&mut self, most: usize) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        while rows.len() < most {
            let (service, filter, up_to) = (self.service, self.filter, self.up_to);
            let refills = self.shards.iter_mut().filter(|s| s.rows.is_empty() && !s.ended).map(|shard| async move {
                while shard.rows.is_empty() && !shard.ended {
                    let bucket = match filter.status {
                        Status::Dead => dead_bucket(shard.number),
                        _ => pending_bucket(shard.number),
                    };
                    let page = service.table.page(bucket, shard.after.as_deref(), up_to, ROWS).await?;
                    shard.ended = page.next.is_none();
                    shard.after = page.next;
                    shard.rows.extend(page.rows);
                }
                Ok::<(), Error>(())
            });
            futures::future::try_join_all(refills).await?;
            let first = self
                .shards
                .iter_mut()
                .filter(|shard| !shard.rows.is_empty())
                .min_by(|a, b| a.rows[0].wake.cmp(&b.rows[0].wake));
            let Some(row) = first.and_then(|shard| shard.rows.pop_front()) else {
                break;
            };
            rows.push(row);
        }
        Ok(rows)
    }
}
