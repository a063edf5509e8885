//! Taking due tasks: Redis says which may be due, DynamoDB decides; without Redis, DynamoDB's index says it.

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::poll::{PollRequest, Source};
use super::{Service, log_down};
use crate::due_index::{Down, Partition, Place, Taken};
use crate::error::Error;
use crate::state::Refusal;
use crate::table::attributes::pending_bucket;
use crate::table::{Page, Refused, Row};
use crate::task::{Lane, MAX_PARAMETERS_BYTES, Task, random_token};
use crate::time::Timestamp;

/// The most bytes that an answer may have as Lambda counts it: the body's JSON text, encoded once more as a JSON
/// string. Lambda's limit is 6 MB; the rest is for the envelope.
pub const ANSWER_BYTES: usize = 6_000_000;
/// The most that one task can take of that: each byte of the parameters may have to be escaped; the other fields of
/// a task are bounded far below the remainder.
const TASK_BYTES: usize = 2 * MAX_PARAMETERS_BYTES + 32 * 1024;
/// Conditional writes of one poll that are under way at once.
const CLAIMS_AT_ONCE: usize = 32;
/// In Redis a lease is at first no longer than this, so that a poll that dies before DynamoDB has the lease delays
/// the task no longer, however long a lease it wanted.
const PROVISIONAL_LEASE_MS: i64 = 60_000;
/// Rows that one look into DynamoDB's index reads from each shard at once.
const INDEX_ROWS: i32 = 100;
/// A look begins nothing new after this: what it has taken has to reach the caller.
const LOOK_TIME: Duration = Duration::from_millis(3_000);
/// A look that still waits for a store after this goes without that: below a call's time limit, so that no time limit
/// throws away what is leased already.
const WAIT_TIME: Duration = Duration::from_millis(4_300);
/// Rows that such a look reads strongly at once: twice what is wanted, within these bounds.
const LEAST_CHUNK: usize = 25;
/// See [`LEAST_CHUNK`]; as many as one BatchGetItem takes.
const MOST_CHUNK: usize = 100;

/// What one look has found so far.
pub(super) struct Haul {
    pub tasks: Vec<Task>,
    /// Bytes of the answer that are still free.
    room: usize,
    /// The first failure of DynamoDB.
    failure: Option<Error>,
    /// When the next task may be due.
    pub next: Option<Timestamp>,
    started: Instant,
}

impl Haul {
    /// Whether nothing more is to be taken.
    fn is_complete(&self, request: &PollRequest) -> bool {
        self.tasks.len() == request.most || self.room < TASK_BYTES || self.is_over()
    }

    /// Whether nothing more is to be begun.
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.started.elapsed() >= LOOK_TIME
    }

    /// When it waits no longer.
    fn end(&self) -> Instant {
        self.started + WAIT_TIME
    }
}

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

    /// Claims `ids` in DynamoDB, in order, as long as the answer has room, and tells Redis of those that are not as
    /// it thought. Returns the ids that were not tried.
    async fn claim(
        &self,
        request: &PollRequest,
        lane: &Lane,
        taken_from: Option<&Partition>,
        ids: Vec<String>,
        size: &impl Fn(&Task) -> usize,
        haul: &mut Haul,
    ) -> Vec<String> {
        let end = haul.end();
        let mut waiting = ids.into_iter().enumerate();
        let mut under_way = FuturesUnordered::new();
        let mut claimed: Vec<(usize, Task)> = Vec::new();
        let mut corrections: Vec<(String, Place)> = Vec::new();
        loop {
            while under_way.len() < CLAIMS_AT_ONCE
                && haul.room >= TASK_BYTES * (under_way.len() + 1)
                && !haul.is_over()
                && let Some((place, id)) = waiting.next()
            {
                under_way.push(async move {
                    let result = timeout_at(end, self.claim_one(request, lane, &id)).await;
                    (place, id, result.unwrap_or(Err(Error::TooSlow)))
                });
            }
            let Some((place, id, result)) = under_way.next().await else {
                break;
            };
            match result {
                Ok(Ok(task)) => {
                    haul.room = haul.room.saturating_sub(size(&task));
                    let strayed = taken_from.is_some_and(|from| *from != self.partition(lane.clone(), &id));
                    // Taken for good, or leased for longer than Redis was told, or where it does not belong.
                    match task.lease_until {
                        None => corrections.push((id, Place::Nowhere)),
                        Some(until) if strayed || request.lease_ms > Some(PROVISIONAL_LEASE_MS) => {
                            corrections.push((id, Place::Lease(until)));
                        }
                        Some(_) => {}
                    }
                    claimed.push((place, task));
                }
                Ok(Err(place)) => corrections.push((id, place)),
                Err(error) => {
                    warn!(task_id = id, %error, "a claim failed; its lease in Redis ends by itself");
                    haul.failure = Some(error);
                }
            }
        }
        claimed.sort_by_key(|(place, _)| *place);
        haul.tasks.extend(claimed.into_iter().map(|(_, task)| task));
        let mut places: Vec<(Partition, &str, Place)> = Vec::with_capacity(corrections.len());
        for (id, place) in &corrections {
            let home = self.partition(lane.clone(), id);
            // From a time of fewer partitions: it leaves the one where it does not belong.
            if let Some(from) = taken_from.filter(|from| **from != home) {
                places.push((from.clone(), id, Place::Nowhere));
            }
            places.push((home, id, *place));
        }
        // Untold, Redis costs the next poll a claim in vain.
        let _ = timeout_at(end, self.place(&places)).await;
        waiting.map(|(_, id)| id).collect()
    }

    /// Claims one task, or says where Redis should have it instead.
    async fn claim_one(&self, request: &PollRequest, lane: &Lane, id: &str) -> Result<Result<Task, Place>, Error> {
        let now = self.clock.now();
        let claimed = match request.lease_ms {
            Some(lease_ms) => self.table.lease(id, lane, &random_token(), now.plus_ms(lease_ms), now).await?,
            None => self.table.take(id, lane, now).await?,
        };
        let refused = match claimed {
            Ok(task) => return Ok(Ok(task)),
            Err(refused) => refused,
        };
        Ok(Err(match refused {
            Refused::State(Refusal::NotDue(due)) => self.place_of_due(due, now),
            Refused::State(Refusal::Held(until)) => Place::Lease(until),
            Refused::State(Refusal::AttemptsUsed) => {
                self.exhaust(id, now).await?;
                Place::Nowhere
            }
            Refused::Malformed => {
                warn!(task_id = id, "dropped a task whose item is not readable");
                Place::Nowhere
            }
            Refused::State(Refusal::OtherLane | Refusal::Finished(_) | Refusal::LeaseLost | Refusal::WrongState(_))
            | Refused::Missing
            | Refused::Already => Place::Nowhere,
        }))
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
