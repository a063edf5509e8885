//! What the functions do, in terms of the two stores and the clock.

mod add;
mod attempt;
mod batch_writes;
mod claim;
mod dispatch;
mod inspect;
mod load;
mod look;
mod poll;
mod recover;
mod refresh;
mod settle;

use std::collections::HashMap;

use tracing::warn;

pub use add::Addition;
pub use batch_writes::BatchWrites;
pub use claim::ANSWER_BYTES;
pub use dispatch::DispatchReport;
pub use inspect::{Health, ListFilter, Listing, QueueCounts};
pub use poll::{PollRequest, Source};
pub use recover::{BACKLOG_LOG, RecoverReport};
pub use refresh::RefreshReport;

use crate::clock::Clock;
use crate::config::{Config, WrongVariable};
use crate::due_index::{Down, DueIndex, Partition, Place};
use crate::state::Event;
use crate::table::TaskTable;
use crate::task::{Lane, Status, Task};
use crate::time::Timestamp;

/// The service: the table that is the truth, the index that makes it quick, and the clock.
pub struct Service {
    /// DynamoDB.
    pub table: TaskTable,
    /// Redis.
    pub index: DueIndex,
    /// The one source of now.
    pub clock: Clock,
    /// How it is configured.
    pub config: Config,
    /// What keeps batches out of the way of single tasks.
    pub batch_writes: BatchWrites,
}

impl Service {
    /// A service on the table that `client` reaches, with the Redis that `config` names.
    pub fn new(client: aws_sdk_dynamodb::Client, clock: Clock, config: Config) -> Result<Self, WrongVariable> {
        let index = DueIndex::new(&config.redis_urls, config.redis_cluster)
            .map_err(|error| WrongVariable { name: "REDIS_URL", reason: error.to_string() })?;
        let table = TaskTable::new(client, config.table_name.clone(), config.index_shards);
        Ok(Self { table, index, clock, config, batch_writes: BatchWrites::default() })
    }

    /// The partition of `lane` that holds `id`.
    fn partition(&self, lane: Lane, id: &str) -> Partition {
        Partition::of(lane, id, self.config.queue_partitions)
    }

    /// The partitions of `lane`.
    fn partitions_of(&self, lane: &Lane) -> impl Iterator<Item = Partition> {
        (0..self.config.queue_partitions).map(|number| Partition { lane: lane.clone(), number })
    }

    /// Where a task that is due at `due` belongs: beyond the window it costs Redis nothing.
    fn place_of_due(&self, due: Timestamp, now: Timestamp) -> Place {
        if due <= now.plus_ms(self.config.window_ms) { Place::Future(due) } else { Place::Nowhere }
    }

    /// Where a task belongs in Redis by its state in DynamoDB.
    fn place_of(&self, task: &Task, now: Timestamp) -> Place {
        match (task.status, task.lease_until) {
            (Status::Scheduled, _) => self.place_of_due(task.execute_time, now),
            (Status::Leased, Some(until)) if until > now => Place::Lease(until),
            // An ended lease goes to the end of what is ready, so that poison does not starve the rest.
            (Status::Leased, _) => Place::Future(now),
            (Status::Succeeded | Status::Cancelled | Status::Dead, _) => Place::Nowhere,
        }
    }

    /// Tells Redis where a task that DynamoDB has changed belongs now. A failure costs time, not the task: the next
    /// tick tells it again.
    async fn place(&self, ids: &[(Partition, &str, Place)]) {
        if let Err(error) = self.index.place(ids).await {
            log_down(&error);
        }
    }

    /// Makes a leased task dead whose attempts are used and whose lease has ended. `false` when that does not hold
    /// any more.
    async fn exhaust(&self, id: &str, now: Timestamp) -> Result<bool, crate::error::Error> {
        match self.transition(id, Event::Exhaust, now).await {
            Ok(_) => Ok(true),
            Err(
                crate::error::Error::WrongState(_)
                | crate::error::Error::NotFound(_)
                | crate::error::Error::TaskFinished(_),
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Logs that Redis was not used, once for each use: DynamoDB has the truth, so it is no error of the request.
fn log_down(error: &Down) {
    warn!(%error, "Redis could not be told; the next tick makes up for it");
}

/// Ids with the states that DynamoDB tells of them.
type States = HashMap<String, Task>;
