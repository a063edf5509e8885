//! Claiming in DynamoDB what Redis, or DynamoDB's index, says may be due.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::Service;
use super::batch_writes::WRITES_AT_ONCE;
use super::poll::PollRequest;
use crate::due_index::{Partition, Place};
use crate::error::Error;
use crate::state::Refusal;
use crate::table::Refused;
use crate::task::{Lane, MAX_PARAMETERS_BYTES, Task, random_token};
use crate::time::Timestamp;

/// The most bytes that an answer may have as Lambda counts it: the body's JSON text, encoded once more as a JSON
/// string. Lambda's limit is 6 MB; the rest is for the envelope.
pub const ANSWER_BYTES: usize = 6_000_000;
/// The most that one task can take of that: each byte of the parameters may have to be escaped; the other fields of
/// a task are bounded far below the remainder.
const TASK_BYTES: usize = 2 * MAX_PARAMETERS_BYTES + 32 * 1024;
/// A look begins nothing new after this: what it has taken has to reach the caller.
const LOOK_TIME: Duration = Duration::from_millis(3_000);
/// A look that still waits for a store after this goes without that: below a call's time limit, so that no time limit
/// throws away what is leased already.
const WAIT_TIME: Duration = Duration::from_millis(4_300);
/// In Redis a lease is at first no longer than this, so that a poll that dies before DynamoDB has the lease delays
/// the task no longer, however long a lease it wanted.
pub(super) const PROVISIONAL_LEASE_MS: i64 = 60_000;

/// What one look has found so far.
pub(super) struct Haul {
    pub tasks: Vec<Task>,
    /// Bytes of the answer that are still free.
    pub room: usize,
    /// The first failure of DynamoDB.
    pub failure: Option<Error>,
    /// When the next task may be due.
    pub next: Option<Timestamp>,
    pub started: Instant,
}

impl Haul {
    /// Whether nothing more is to be taken.
    pub fn is_complete(&self, request: &PollRequest) -> bool {
        self.tasks.len() == request.most || self.room < TASK_BYTES || self.is_over()
    }

    /// Whether nothing more is to be begun.
    fn is_over(&self) -> bool {
        self.failure.is_some() || self.started.elapsed() >= LOOK_TIME
    }

    /// When it waits no longer.
    pub fn end(&self) -> Instant {
        self.started + WAIT_TIME
    }
}

impl Service {
    /// Claims `ids` in DynamoDB, in order, as long as the answer has room, and tells Redis of those that are not as
    /// it thought. Returns the ids that were not tried.
    pub(super) async fn claim(
        &self,
        request: &PollRequest,
        lane: &Lane,
        taken_from: Option<&Partition>,
        ids: Vec<String>,
        size: &impl Fn(&Task) -> usize,
        haul: &mut Haul,
    ) -> Vec<String> {
        let end = haul.end();
        let batch = &self.batch_writes.leases(haul.tasks.len() + ids.len());
        let mut waiting = ids.into_iter().enumerate();
        let mut under_way = FuturesUnordered::new();
        let mut claimed: Vec<(usize, Task)> = Vec::new();
        let mut corrections: Vec<(String, Place)> = Vec::new();
        loop {
            while under_way.len() < WRITES_AT_ONCE
                && haul.room >= TASK_BYTES * (under_way.len() + 1)
                && !haul.is_over()
                && let Some((place, id)) = waiting.next()
            {
                under_way.push(async move {
                    let claim = batch.write(self.claim_one(request, lane, &id));
                    let result = timeout_at(end, claim).await;
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
}
