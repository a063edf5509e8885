//! The minute's recovery: leases that ran out, by Redis's account and by DynamoDB's own.

use serde::Serialize;
use tokio::time::Instant;
use tracing::info;

use super::Service;
use super::load::{Load, LoadReport, deadline};
use crate::config::TickConfig;
use crate::due_index::{Partition, Place};
use crate::error::Error;

/// The cursor of what is overdue.
const OVERDUE: &str = "recover-overdue";
/// Ended leases that are looked at together.
const LEASES: usize = 500;
/// Leases in Redis that end later than this from now are compared with DynamoDB: one whose end Redis was not told
/// would hold its task back for hours. Shorter ones end by themselves.
const DOUBT_AFTER_MS: i64 = 120_000;

/// The target of the log line that the backlog's metrics are read from.
pub const BACKLOG_LOG: &str = "backlog";

/// What a recovery did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoverReport {
    /// Leases that ran out.
    pub ended: u64,
    /// What became of those and of the tasks that Redis had forgotten.
    #[serde(flatten)]
    pub load: LoadReport,
    /// Empty partitions that were struck off.
    pub struck_off: u64,
    /// How long the oldest task that is due and free has been due, in milliseconds.
    pub oldest_due_age_ms: i64,
    /// Dead tasks that wait for a person.
    pub dead_tasks: u64,
}

impl Service {
    /// Makes tasks whose leases ran out ready again, or dead; finds those that Redis has forgotten.
    pub async fn recover(&self, tick: &TickConfig) -> Result<RecoverReport, Error> {
        let deadline = deadline(tick.budget);
        let mut report = RecoverReport::default();
        let (partitions, malformed) = self.index.partitions().await.map_err(Error::redis)?;
        report.load.malformed += malformed as u64;
        let (mut current, stale): (Vec<Partition>, Vec<Partition>) =
            partitions.into_iter().partition(|p| p.number < self.config.queue_partitions);
        // Each recovery begins elsewhere, so that none is always cut off.
        let first = rand::random_range(0..=current.len());
        current.rotate_left(first);
        // Left from a time of more partitions: no poll looks there, and DynamoDB has all of it.
        self.index.forget(&stale).await.map_err(Error::redis)?;
        let mut failure = None;
        for (n, partition) in current.iter().enumerate() {
            if n > 0 && Instant::now() >= deadline {
                report.load.more = true;
                break;
            }
            if let Err(error) = self.recover_leases(partition, deadline, &mut report).await {
                // It holds up no other partition.
                failure = Some(error);
            }
        }
        self.drop_finished(current.clone(), deadline).await?;
        let now = self.clock.now();
        let load = self
            .load(&Load {
                cursor: OVERDUE,
                lock: None,
                after: None,
                up_to: now,
                doubt_leases_after: Some(now.plus_ms(DOUBT_AFTER_MS)),
                in_parts: true,
                deadline,
            })
            .await?;
        report.load.add(load);
        for counts in self.queues(self.clock.now()).await?.values() {
            report.oldest_due_age_ms = report.oldest_due_age_ms.max(counts.oldest_due_age_ms);
            report.dead_tasks += counts.dead;
        }
        // The names of the metrics that template.yaml reads from the log, whatever the level of the others.
        info!(target: BACKLOG_LOG, oldestDueAgeMs = report.oldest_due_age_ms, deadTasks = report.dead_tasks, "backlog");
        report.struck_off = self.index.strike_off_empty(&current).await.map_err(Error::redis)?;
        failure.map_or(Ok(report), Err)
    }

    /// Removes ids from the heads of lists whose tasks are over: where nobody polls, nobody else would ever notice.
    async fn drop_finished(&self, mut partitions: Vec<Partition>, deadline: Instant) -> Result<(), Error> {
        while !partitions.is_empty() && Instant::now() < deadline {
            let counts = self.index.counts(&partitions, self.clock.now()).await.map_err(Error::redis)?;
            let heads = partitions.into_iter().zip(counts).filter_map(|(p, counts)| Some((p, counts.first_in_topic?)));
            let heads: Vec<(Partition, String)> = heads.collect();
            let ids: Vec<String> = heads.iter().map(|(_, id)| id.clone()).collect();
            let states = self.table.states(&ids).await?;
            let is_over = |id: &str| states.get(id).is_none_or(|task| task.status.is_final());
            let over: Vec<(Partition, String)> = heads.into_iter().filter(|(_, id)| is_over(id)).collect();
            let places: Vec<_> = over.iter().map(|(p, id)| (p.clone(), id.as_str(), Place::Nowhere)).collect();
            self.index.place(&places).await.map_err(Error::redis)?;
            partitions = over.into_iter().map(|(partition, _)| partition).collect();
        }
        Ok(())
    }

    async fn recover_leases(
        &self,
        partition: &Partition,
        deadline: Instant,
        report: &mut RecoverReport,
    ) -> Result<(), Error> {
        loop {
            let now = self.clock.now();
            let (ended, malformed) = self.index.ended_leases(partition, now, LEASES).await.map_err(Error::redis)?;
            report.load.malformed += malformed as u64;
            if ended.is_empty() && malformed == 0 {
                return Ok(());
            }
            report.ended += ended.len() as u64;
            let states = self.table.states(&ended).await?;
            let ids = ended.iter().map(|id| (partition.clone(), id.as_str())).collect();
            // Each of them leaves the ended leases by this, so the next round finds others.
            report.load.add(self.reconcile(ids, states, now).await?);
            if Instant::now() >= deadline {
                report.load.more = true;
                return Ok(());
            }
        }
    }
}
