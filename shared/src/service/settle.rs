//! What moves a task that exists: cancel, ack, nack, extend, reschedule, redrive.

use super::{ListFilter, Service};
use crate::due_index::{Partition, Place};
use crate::error::Error;
use crate::state::{Applied, Event};
use crate::table::Refused;
use crate::task::{Lane, Status, Task};
use crate::time::Timestamp;

/// How often a change is tried anew when another write came between reading and writing.
const CHANGE_TRIES: usize = 10;

impl Service {
    /// Calls a task off. `Ok` also when it was called off before.
    pub async fn cancel(&self, id: &str, now: Timestamp) -> Result<(), Error> {
        match self.table.cancel(id, now).await? {
            Ok(lane) => {
                self.place(&[(self.partition(lane, id), id, Place::Nowhere)]).await;
                Ok(())
            }
            Err(Refused::Already) => Ok(()),
            Err(refused) => Err(refused_to_error(id, refused)),
        }
    }

    /// Ends tasks that their holders are done with, each `(id, token)`. `Ok` also for a repeat.
    pub async fn acknowledge(&self, settled: &[(String, String)], now: Timestamp) -> Vec<Result<(), Error>> {
        let writes = settled.iter().map(|(id, token)| self.acknowledge_one(id, token, now)).collect();
        let writes: Vec<Result<Option<Lane>, Error>> = self.batch_writes.all(writes).await;
        let ended: Vec<(Partition, &str, Place)> = settled
            .iter()
            .zip(&writes)
            .filter_map(|((id, _), written)| {
                let lane = written.as_ref().ok()?.clone()?;
                Some((self.partition(lane, id), id.as_str(), Place::Nowhere))
            })
            .collect();
        self.place(&ended).await;
        writes.into_iter().map(|written| written.map(drop)).collect()
    }

    /// The lane of the task that was ended, `None` for a repeat.
    async fn acknowledge_one(&self, id: &str, token: &str, now: Timestamp) -> Result<Option<Lane>, Error> {
        match self.table.acknowledge(id, token, now).await? {
            Ok(lane) => Ok(Some(lane)),
            Err(Refused::Already) => Ok(None),
            Err(refused) => Err(refused_to_error(id, refused)),
        }
    }

    /// Notes a failed attempt of the holder of `token`: the task is tried again, or dead.
    pub async fn fail(
        &self,
        id: &str,
        token: &str,
        message: Option<String>,
        delay_ms: Option<i64>,
        permanent: bool,
        now: Timestamp,
    ) -> Result<(), Error> {
        let event = Event::Fail { token: token.to_owned(), message, delay_ms, permanent, chance: rand::random() };
        self.transition(id, event, now).await.map(drop)
    }

    /// Makes the lease of `token` end at `until`.
    pub async fn extend(&self, id: &str, token: &str, until: Timestamp, now: Timestamp) -> Result<(), Error> {
        let event = Event::Extend { token: token.to_owned(), until };
        self.transition(id, event, now).await.map(drop)
    }

    /// Gives a scheduled task another due time.
    pub async fn reschedule(&self, id: &str, execute_time: Timestamp, now: Timestamp) -> Result<Task, Error> {
        self.transition(id, Event::Reschedule { execute_time }, now).await
    }

    /// Sends a dead task round again, due now.
    pub async fn redrive(&self, id: &str, now: Timestamp) -> Result<Task, Error> {
        self.transition(id, Event::Redrive, now).await
    }

    /// Sends up to `most` dead tasks of a queue round again, the longest due first. Returns how many, and whether
    /// more are left.
    pub async fn redrive_many(
        &self,
        task_type: Option<String>,
        priority: Option<u8>,
        most: usize,
        now: Timestamp,
    ) -> Result<(usize, bool), Error> {
        let filter = ListFilter { status: Status::Dead, task_type, priority };
        let dead = self.list(&filter, most, None, |_| true, now).await?;
        let writes = dead.tasks.iter().map(|task| self.redrive(&task.id, now)).collect();
        let mut count = 0;
        for result in self.batch_writes.all(writes).await {
            match result {
                Ok(_) => count += 1,
                // Redriven by someone else, or past its retention, meanwhile.
                Err(Error::WrongState(_) | Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok((count, dead.cursor.is_some()))
    }

    /// Reads a task, applies an event to it and writes what came of it, anew when the task changed in between.
    pub(super) async fn transition(&self, id: &str, event: Event, now: Timestamp) -> Result<Task, Error> {
        for _ in 0..CHANGE_TRIES {
            let Some(seen) = self.table.get(id, now).await? else {
                return Err(Error::NotFound(id.to_owned()));
            };
            let written = match seen.apply(&event, now)? {
                // The first call may have died before it told Redis.
                Applied::Already => Some(seen),
                Applied::Changed(mut next) => self.table.replace(&seen, &mut next, now).await?.then_some(*next),
            };
            if let Some(task) = written {
                let place = self.place_of(&task, now);
                self.place(&[(self.partition(task.lane(), id), id, place)]).await;
                return Ok(task);
            }
        }
        Err(Error::Throttled(format!("task {id} changes faster than it can be written").into()))
    }
}

/// What a refused conditional write means to the caller.
fn refused_to_error(id: &str, refused: Refused) -> Error {
    match refused {
        Refused::Missing => Error::NotFound(id.to_owned()),
        Refused::Malformed => Error::Internal(format!("the item of task {id} is not readable").into()),
        Refused::State(refusal) => refusal.into(),
        Refused::Already => Error::Internal(format!("a repeat for task {id} was not expected").into()),
    }
}
