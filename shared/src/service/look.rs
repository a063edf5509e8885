//! Taking due tasks: Redis says which may be due, DynamoDB decides; without Redis, DynamoDB's index says it.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::claim::{ANSWER_BYTES, Haul, PROVISIONAL_LEASE_MS};
use super::poll::{PollRequest, Source};
use super::{Service, log_down};
use crate::due_index::{Down, Partition, Taken};
use crate::error::Error;
use crate::table::attributes::pending_bucket;
use crate::table::{Page, Row};
use crate::task::{Lane, Task};
use crate::time::Timestamp;

/// Rows that one look into DynamoDB's index reads from each shard at once.
const INDEX_ROWS: i32 = 100;
/// Rows that such a look reads strongly at once: twice what is wanted, within these bounds.
const LEAST_CHUNK: usize = 25;
/// See [`LEAST_CHUNK`]; as many as one BatchGetItem takes.
const MOST_CHUNK: usize = 100;

impl Service {
    /// Takes what is due now, whatever its size; also tells when the next task may be due.
    pub(super) async fn take_now(&self, request: &PollRequest) -> Result<(Vec<Task>, Option<Timestamp>), Error> {
        let haul = self.look(request, &|_| 0).await?;
        Ok((haul.tasks, haul.next))
    }

    /// One look: takes what is due now.
    pub(super) async fn look(&self, request: &PollRequest, size: &impl Fn(&Task) -> usize) -> Result<Haul, Error> {
        let mut haul =
            Haul { tasks: Vec::new(), room: ANSWER_BYTES, failure: None, next: None, started: Instant::now() };
        // Time enough for what ends by the same moment to say so.
        let end = haul.end() + Duration::from_millis(100);
        let work = async {
            let complete = match self.look_into_redis(request, size, &mut haul).await {
                // Having found something, there is no need to know.
                Ok(()) if !haul.tasks.is_empty() => Ok(true),
                Ok(()) => self.redis_knows_all_due(&mut haul).await,
                Err(error) => Err(error),
            };
            let complete = complete.unwrap_or_else(|error| {
                log_down(&error);
                false
            });
            if !complete && haul.tasks.is_empty() && haul.failure.is_none() {
                // What was taken before a failure is given out: it is leased.
                if let Err(error) = self.look_into_dynamodb(request, size, &mut haul).await {
                    haul.failure = Some(error);
                }
            }
        };
        if timeout_at(end, work).await.is_err() {
            haul.failure = Some(Error::TooSlow);
        }
        match haul.failure.take() {
            Some(failure) if haul.tasks.is_empty() => Err(failure),
            _ => Ok(haul),
        }
    }

    /// Whether a refresh has loaded all that is due by now. It has not when Redis was emptied since, or when no refresh
    /// ran for longer than the window: then an empty answer of Redis says nothing.
    async fn redis_knows_all_due(&self, haul: &mut Haul) -> Result<bool, Down> {
        let horizon = self.index.horizon().await?.filter(|horizon| *horizon > self.clock.now());
        haul.next = haul.next.into_iter().chain(horizon).min();
        Ok(horizon.is_some())
    }

    /// The lanes of a source in the order in which they are served.
    async fn lanes_of(&self, source: &Source, haul: &mut Haul) -> Result<Vec<Lane>, Down> {
        if let Source::Lane(lane) = source {
            return Ok(vec![lane.clone()]);
        }
        let (mut partitions, _) = self.index.partitions().await?;
        partitions.retain(|partition| source.has(&partition.lane));
        // Only lanes in which something is due: a type may have very many.
        let heads = self.index.heads(&partitions).await?;
        let now = self.clock.now();
        let mut due = Vec::new();
        for (partition, head) in partitions.into_iter().zip(heads) {
            match head {
                Some(head) if head <= now => due.push((head, partition.lane)),
                later => haul.next = haul.next.into_iter().chain(later).min(),
            }
        }
        match source {
            Source::Type(_) => due.sort_by_key(|(_, lane)| lane.priority),
            _ => due.sort(),
        }
        let mut lanes: Vec<Lane> = due.into_iter().map(|(_, lane)| lane).collect();
        let mut seen = HashSet::new();
        lanes.retain(|lane| seen.insert(lane.clone()));
        Ok(lanes)
    }

    async fn look_into_redis(
        &self,
        request: &PollRequest,
        size: &impl Fn(&Task) -> usize,
        haul: &mut Haul,
    ) -> Result<(), Down> {
        let lanes = self.lanes_of(&request.source, haul).await?;
        for lane in lanes {
            // Each poll begins elsewhere, so that no partition is always last.
            let mut partitions: Vec<Partition> = self.partitions_of(&lane).collect();
            let first = rand::random_range(0..partitions.len());
            partitions.rotate_left(first);
            for partition in partitions {
                loop {
                    if haul.is_complete(request) {
                        return Ok(());
                    }
                    let wanted = request.source.wanted(&lane, request.most, &haul.tasks);
                    if wanted == 0 {
                        break;
                    }
                    let now = self.clock.now();
                    let lease_ms = request.lease_ms.unwrap_or(PROVISIONAL_LEASE_MS).min(PROVISIONAL_LEASE_MS);
                    let Taken { ids, malformed, next } =
                        self.index.lease_due(&partition, now, wanted, now.plus_ms(lease_ms)).await?;
                    haul.next = haul.next.into_iter().chain(next).min();
                    let exhausted = ids.len() + malformed < wanted;
                    let unused = self.claim(request, &partition.lane, Some(&partition), ids, size, haul).await;
                    if !unused.is_empty() {
                        // Those whose return takes too long come back when their provisional lease ends.
                        return timeout_at(haul.end(), self.index.give_back(&partition, &unused))
                            .await
                            .unwrap_or(Ok(()));
                    }
                    if exhausted {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes what DynamoDB's own index says is due: what a poll does while Redis is down. In due order, but for where it
    /// begins: among many polls each begins elsewhere, so that they do not all fight for the first task.
    async fn look_into_dynamodb(
        &self,
        request: &PollRequest,
        size: &impl Fn(&Task) -> usize,
        haul: &mut Haul,
    ) -> Result<(), Error> {
        let chunk = (2 * request.most).clamp(LEAST_CHUNK, MOST_CHUNK);
        let mut after: Vec<(u16, Option<String>)> = (0..self.table.shards()).map(|shard| (shard, None)).collect();
        // Small pages first: most polls need no more.
        let mut page_rows = i32::try_from(chunk / usize::from(self.table.shards())).unwrap_or(INDEX_ROWS).max(5);
        while !haul.is_complete(request) {
            let now = self.clock.now();
            let pages = after
                .iter()
                .map(|(shard, after)| self.table.page(pending_bucket(*shard), after.as_deref(), now, page_rows));
            let pages: Vec<Page> = futures::future::try_join_all(pages).await?;
            page_rows = INDEX_ROWS;
            let mut rows: Vec<Row> = Vec::new();
            let mut open = Vec::new();
            for ((shard, _), page) in after.into_iter().zip(pages) {
                rows.extend(page.rows.into_iter().filter(|row| request.source.has(&row.lane)));
                if page.next.is_some() {
                    open.push((shard, page.next));
                }
            }
            rows.sort_by(|a, b| (a.lane.priority, &a.wake).cmp(&(b.lane.priority, &b.wake)));
            let mut chunks: Vec<&[Row]> = rows.chunks(chunk).collect();
            if chunks.len() > 1 {
                let first = rand::random_range(0..chunks.len().min(4));
                chunks.rotate_left(first);
            }
            for rows in chunks {
                self.claim_free(request, rows, size, haul).await?;
                if haul.is_complete(request) {
                    return Ok(());
                }
            }
            if open.is_empty() {
                return Ok(());
            }
            after = open;
        }
        Ok(())
    }

    /// Claims those of `rows` that are free by a strong read: the index also has what is leased, and it lags.
    async fn claim_free(
        &self,
        request: &PollRequest,
        rows: &[Row],
        size: &impl Fn(&Task) -> usize,
        haul: &mut Haul,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let ids: Vec<String> = rows.iter().map(|row| row.id.clone()).collect();
        let states = self.table.states(&ids).await?;
        let is_free =
            |row: &&Row| states.get(&row.id).is_some_and(|task| task.lease_until.is_none_or(|until| until <= now));
        let mut rows = rows.iter().filter(is_free).peekable();
        while let Some(lane) = rows.peek().map(|row| row.lane.clone()) {
            if haul.is_complete(request) {
                return Ok(());
            }
            let wanted = request.source.wanted(&lane, request.most, &haul.tasks);
            if wanted == 0 {
                rows.next();
                continue;
            }
            let of_lane = std::iter::from_fn(|| rows.next_if(|row| row.lane == lane));
            let ids = of_lane.take(wanted).map(|row| row.id.clone()).collect();
            self.claim(request, &lane, None, ids, size, haul).await;
        }
        Ok(())
    }
}
