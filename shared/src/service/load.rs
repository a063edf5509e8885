//! Making Redis know what DynamoDB knows: what both ticks do, each in its own way.

use std::collections::HashMap;
use std::time::Duration;

use futures::StreamExt;
use serde::Serialize;
use tokio::time::Instant;

use super::{Service, States};
use crate::due_index::{Partition, Place};
use crate::error::Error;
use crate::state::{Applied, Event};
use crate::table::attributes::{last_wake_key, pending_bucket};
use crate::task::Task;
use crate::time::Timestamp;

/// Rows that one request reads from the index: few enough that nobody else waits long behind it, in Redis or where a small
/// DynamoDB runs beside it.
const ROWS: i32 = 100;
/// Pages of one shard that tell Redis nothing new before a backlog is left for the next tick: a long one that nobody
/// takes would otherwise be read whole, each minute.
const KNOWN_PAGES: u32 = 40;
/// Shards that are read side by side.
const SHARDS_AT_ONCE: usize = 4;

/// What is loaded, and for how long.
pub(super) struct Load<'a> {
    /// Under this name Redis keeps where to go on.
    pub cursor: &'a str,
    /// The lock under which it works, if any: its tick and its token.
    pub lock: Option<(&'a str, &'a str)>,
    /// Only tasks due later than this; `None`: all that are overdue too.
    pub after: Option<Timestamp>,
    /// The latest due time to load.
    pub up_to: Timestamp,
    /// Leases in Redis that end after this are compared with DynamoDB.
    pub doubt_leases_after: Option<Timestamp>,
    /// Whether it may stop where Redis knows all, and go on there next time.
    pub in_parts: bool,
    /// When to stop; each shard gets one page all the same.
    pub deadline: Instant,
}

/// What loading did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    /// Index rows read.
    pub read: u64,
    /// Tasks that Redis did not have and has now.
    pub loaded: u64,
    /// Tasks that used up their attempts and are dead now.
    pub dead: u64,
    /// Index rows or members that were not readable and were skipped.
    pub malformed: u64,
    /// Whether the work was cut short; the next tick goes on from there.
    pub more: bool,
}

impl LoadReport {
    /// Adds up two reports.
    pub fn add(&mut self, other: Self) {
        self.read += other.read;
        self.loaded += other.loaded;
        self.dead += other.dead;
        self.malformed += other.malformed;
        self.more |= other.more;
    }
}

impl Service {
    /// Loads every shard, oldest first; one that was cut short last time goes on from there.
    pub(super) async fn load(&self, load: &Load<'_>) -> Result<LoadReport, Error> {
        let cursor = self.index.cursor(load.cursor).await.map_err(Error::redis)?;
        let first = load.after.map(last_wake_key);
        let mut shards = futures::stream::iter(in_turn(self.table.shards(), &cursor))
            .map(|shard| {
                let after = cursor.get(&shard).cloned().max(first.clone());
                async move { (shard, self.load_shard(shard, after, load).await) }
            })
            .buffer_unordered(SHARDS_AT_ONCE);
        let mut report = LoadReport::default();
        let mut open = HashMap::new();
        let mut failure = None;
        while let Some((shard, loaded)) = shards.next().await {
            // A shard that fails, throttled or not reached, holds up no other one.
            match loaded {
                Ok((part, next)) => {
                    report.add(part);
                    open.extend(next.map(|wake| (shard, wake)));
                }
                Err(error) => failure = Some(error),
            }
        }
        // Where Redis was emptied meanwhile, what is before the cursor is not there any more.
        if let Some((tick, token)) = load.lock
            && !open.is_empty()
            && !self.index.holds(tick, token).await.map_err(Error::redis)?
        {
            open.clear();
        }
        if !cursor.is_empty() || !open.is_empty() {
            self.index.set_cursor(load.cursor, &open).await.map_err(Error::redis)?;
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(report),
        }
    }

    /// Loads one shard; returns where to go on when time is up.
    async fn load_shard(
        &self,
        shard: u16,
        mut after: Option<String>,
        load: &Load<'_>,
    ) -> Result<(LoadReport, Option<String>), Error> {
        let mut report = LoadReport::default();
        let mut known_pages = 0;
        loop {
            let before = report;
            let page = self.table.page(pending_bucket(shard), after.as_deref(), load.up_to, ROWS).await?;
            report.read += page.rows.len() as u64;
            report.malformed += u64::from(page.malformed);
            let rows: Vec<(Partition, &str, Timestamp)> = page
                .rows
                .iter()
                .map(|row| (self.partition(row.lane.clone(), &row.id), row.id.as_str(), row.due))
                .collect();
            let now = self.clock.now();
            let loaded = self.index.load(&rows, now, load.doubt_leases_after).await.map_err(Error::redis)?;
            report.loaded += loaded.placed as u64;
            if !loaded.unknown.is_empty() {
                let states = self.table.states(&loaded.unknown).await?;
                let lanes: HashMap<&str, &Partition> = rows.iter().map(|(p, id, _)| (*id, p)).collect();
                let unknown =
                    loaded.unknown.iter().filter_map(|id| Some(((*lanes.get(id.as_str())?).clone(), id.as_str())));
                report.add(self.reconcile(unknown.collect(), states, now).await?);
            }
            let is_news = (report.loaded, report.dead) != (before.loaded, before.dead);
            known_pages = if is_news { 0 } else { known_pages + 1 };
            let is_enough = load.in_parts && known_pages >= KNOWN_PAGES;
            match page.next {
                None => return Ok((report, None)),
                next if is_enough || Instant::now() >= load.deadline => {
                    report.more = true;
                    return Ok((report, next));
                }
                next => after = next,
            }
        }
    }

    /// Puts ids where their state in DynamoDB says that they belong; those without attempts left become dead.
    pub(super) async fn reconcile(
        &self,
        ids: Vec<(Partition, &str)>,
        states: States,
        now: Timestamp,
    ) -> Result<LoadReport, Error> {
        let mut report = LoadReport::default();
        // One that is gone, unreadable, or added anew to another lane meanwhile, has no place here.
        let state = |partition: &Partition, id: &str| states.get(id).filter(|task| task.lane() == partition.lane);
        let is_spent =
            |(partition, id): &&(Partition, &str)| state(partition, id).is_some_and(|t| is_exhausted(t, now));
        let spent: Vec<&str> = ids.iter().filter(is_spent).map(|(_, id)| *id).collect();
        let writes = spent.iter().map(|id| self.exhaust(id, now)).collect();
        let deaths: Vec<Result<bool, Error>> = self.batch_writes.all(writes).await;
        let mut deaths: HashMap<&str, Result<bool, Error>> = spent.into_iter().zip(deaths).collect();
        let (mut places, mut failure) = (Vec::new(), None);
        for (partition, id) in ids {
            let place = match deaths.remove(id) {
                Some(Ok(true)) => {
                    report.dead += 1;
                    Place::Nowhere
                }
                Some(Err(error)) => {
                    // It stays where it is, for the next tick.
                    failure = Some(error);
                    continue;
                }
                Some(Ok(false)) | None => state(&partition, id).map_or(Place::Nowhere, |task| self.place_of(task, now)),
            };
            report.loaded += u64::from(place != Place::Nowhere);
            places.push((partition, id, place));
        }
        self.index.place(&places).await.map_err(Error::redis)?;
        failure.map_or(Ok(report), Err)
    }
}

/// All shards, in the order in which they are loaded: first those that were cut short, or they might stand behind the
/// others each time.
fn in_turn(shards: u16, cursor: &HashMap<u16, String>) -> Vec<u16> {
    let mut order: Vec<u16> = (0..shards).collect();
    order.sort_by_key(|shard| !cursor.contains_key(shard));
    order
}

fn is_exhausted(task: &Task, now: Timestamp) -> bool {
    matches!(task.apply(&Event::Exhaust, now), Ok(Applied::Changed(_)))
}

/// The moment at which a tick that starts now with `budget` stops.
pub(super) fn deadline(budget: Duration) -> Instant {
    Instant::now() + budget
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_that_were_cut_short_come_first_and_none_is_left_out_or_made_up() {
        let cursor = [7, 2, 900].map(|shard| (shard, String::new())).into();
        assert_eq!(in_turn(8, &cursor), [2, 7, 0, 1, 3, 4, 5, 6]);
    }
}
