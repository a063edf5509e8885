//! The minute's refresh: what will be due soon goes from DynamoDB into Redis.

use serde::Serialize;

use super::Service;
use super::load::{Load, LoadReport, deadline};
use crate::config::TickConfig;
use crate::due_index::Partition;
use crate::error::Error;
use crate::task::random_token;
use crate::time::Timestamp;

/// The lock's name.
const TICK: &str = "refresh";
/// The cursor of what becomes due.
const SOON: &str = "refresh-soon";
/// The cursor of what became due a moment ago.
const RECENT: &str = "refresh-recent";
/// The cursor of what is overdue for longer.
const OVERDUE: &str = "refresh-overdue";
/// How long ago that moment may be: longer than from one refresh to the next.
const RECENT_MS: i64 = 90_000;
/// How much longer than it may work a holder keeps the lock: time for the last page and the lists.
const LOCK_MARGIN: std::time::Duration = std::time::Duration::from_secs(10);

/// What a refresh did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefreshReport {
    /// Another refresh was at work: this one did nothing.
    pub locked: bool,
    /// What loading did.
    #[serde(flatten)]
    pub load: LoadReport,
    /// Due ids moved into the lists.
    pub promoted: u64,
    /// Partitions that Redis knows.
    pub partitions: usize,
}

impl Service {
    /// Loads what is due within the window from every shard, and moves what is due now into the lists.
    ///
    /// The lock only saves work: all writes are such that two refreshes at once, or one that outlived its lock, do no
    /// harm.
    pub async fn refresh(&self, tick: &TickConfig) -> Result<RefreshReport, Error> {
        let token = random_token();
        if !self.index.lock(TICK, &token, tick.budget + LOCK_MARGIN).await.map_err(Error::redis)? {
            return Ok(RefreshReport { locked: true, ..RefreshReport::default() });
        }
        let report = self.refresh_locked(tick, &token).await;
        // When this fails the lock ends by itself.
        let released = self.index.release(TICK, &token).await;
        let report = report?;
        released.map_err(Error::redis)?;
        Ok(report)
    }

    async fn refresh_locked(&self, tick: &TickConfig, token: &str) -> Result<RefreshReport, Error> {
        let now = self.clock.now();
        let deadline = deadline(tick.budget);
        let recent = Timestamp::from_ms((now.as_ms() - RECENT_MS).max(0));
        let load = |cursor, after, up_to| Load {
            cursor,
            lock: Some((TICK, token)),
            after,
            up_to,
            doubt_leases_after: None,
            in_parts: cursor == OVERDUE,
            deadline,
        };
        // First what becomes due: a backlog, however long, must not make that late. Then what became due since the last
        // refresh, which may have been added since: an older backlog must not make that late either.
        let soon = self.load(&load(SOON, Some(now), now.plus_ms(self.config.window_ms))).await;
        let due = self.load(&load(RECENT, Some(recent), now)).await;
        let overdue = self.load(&load(OVERDUE, None, recent)).await;
        // What Redis has is moved though a shard could not be read.
        let (partitions, malformed) = self.index.partitions().await.map_err(Error::redis)?;
        // A handler's tasks stay where their due times are: the dispatcher serves the longest due lane first.
        let polled: Vec<Partition> = partitions.iter().filter(|p| p.lane.handler.is_none()).cloned().collect();
        let promoted = self.index.promote(&polled, self.clock.now()).await.map_err(Error::redis)?;
        let mut load = soon?;
        let soon_is_loaded = !load.more;
        load.add(due?);
        load.add(overdue?);
        load.malformed += malformed as u64;
        // A backlog that is loaded over several ticks does not count: its oldest part is there, and polls that find
        // nothing would all search it.
        // Nor does what was loaded before Redis was emptied: the lock went with it.
        if soon_is_loaded && self.index.holds(TICK, token).await.map_err(Error::redis)? {
            self.index.set_horizon(now.plus_ms(self.config.window_ms)).await.map_err(Error::redis)?;
        }
        Ok(RefreshReport { locked: false, load, promoted, partitions: partitions.len() })
    }
}
