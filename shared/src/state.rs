//! The state machine: what each event does to a task, and why it may be refused. Pure.
//!
//! The table's conditional writes carry the same rules; `tests/state.rs` compares the two.

use thiserror::Error;

use crate::task::{Lane, LastError, Status, Task, bounded_message};
use crate::time::Timestamp;

/// Something that happens to a task.
#[derive(Clone, Debug)]
pub enum Event {
    /// A consumer of `lane` takes the task until `until`.
    Lease {
        /// The lane that the consumer serves.
        lane: Lane,
        /// The new lease's token.
        token: String,
        /// The new lease's end.
        until: Timestamp,
    },
    /// A documented poll of `lane` takes the task and ends it in one step.
    Take {
        /// The lane that is polled.
        lane: Lane,
    },
    /// The holder is done.
    Acknowledge {
        /// The holder's token.
        token: String,
    },
    /// The holder failed.
    Fail {
        /// The holder's token.
        token: String,
        /// Why; cut to the limit.
        message: Option<String>,
        /// How long until the next attempt, in milliseconds; `None`: by the task's backoff.
        delay_ms: Option<i64>,
        /// There is to be no next attempt.
        permanent: bool,
        /// A random number from 0 to 1 for the backoff's jitter.
        chance: f64,
    },
    /// The holder needs longer.
    Extend {
        /// The holder's token.
        token: String,
        /// The lease's new end.
        until: Timestamp,
    },
    /// The caller calls the task off.
    Cancel,
    /// The caller gives another due time.
    Reschedule {
        /// The new due time.
        execute_time: Timestamp,
    },
    /// A person sends a dead task round again, due now.
    Redrive,
    /// The last lease ran out with every attempt used.
    Exhaust,
}

/// Why an event does not apply to a task as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The task is in another lane.
    #[error("the task belongs to another queue or handler")]
    OtherLane,
    /// The task is not due before this moment.
    #[error("the task is not due yet")]
    NotDue(Timestamp),
    /// Another consumer holds it until this moment.
    #[error("another consumer holds the task")]
    Held(Timestamp),
    /// Every attempt is used; [`Event::Exhaust`] is what is left.
    #[error("the task has used all its attempts")]
    AttemptsUsed,
    /// The token is not that of the current lease.
    #[error("the lease is lost: the token is not that of the current lease")]
    LeaseLost,
    /// The task is over.
    #[error("the task is already {}", .0.as_str())]
    Finished(Status),
    /// The task is in a state that this call is not for.
    #[error("the task is {}", .0.as_str())]
    WrongState(Status),
}

/// What an event made of a task.
#[derive(Clone, Debug)]
pub enum Applied {
    /// The task changed; its `version`, `updated_at` and `write_id` are the writer's to set.
    Changed(Box<Task>),
    /// The same event was applied before: nothing is to be written.
    Already,
}

impl Task {
    /// Applies `event` at `now`.
    pub fn apply(&self, event: &Event, now: Timestamp) -> Result<Applied, Refusal> {
        let mut next = self.clone();
        match event {
            Event::Lease { lane, token, until } => {
                self.check_takeable(lane, now)?;
                next.status = Status::Leased;
                next.attempts = self.attempts.saturating_add(1);
                next.lease_token = Some(token.clone());
                next.lease_until = Some(*until);
            }
            Event::Take { lane } => {
                self.check_takeable(lane, now)?;
                next.attempts = self.attempts.saturating_add(1);
                next.lease_token = None;
                next.finish(Status::Succeeded, now);
            }
            Event::Acknowledge { token } => {
                if self.status == Status::Succeeded && self.lease_token.as_ref() == Some(token) {
                    return Ok(Applied::Already);
                }
                self.check_holder(token)?;
                next.finish(Status::Succeeded, now);
            }
            Event::Fail { token, message, delay_ms, permanent, chance } => {
                let failed_before = matches!(self.status, Status::Scheduled | Status::Dead);
                if failed_before && self.lease_token.as_ref() == Some(token) {
                    return Ok(Applied::Already);
                }
                self.check_holder(token)?;
                next.note_error(message.as_deref().unwrap_or("the consumer gave no reason"), now);
                if *permanent || self.attempts >= self.content.max_attempts {
                    next.finish(Status::Dead, now);
                } else {
                    let delay = delay_ms.unwrap_or_else(|| self.content.backoff.delay_ms(self.attempts, *chance));
                    next.status = Status::Scheduled;
                    next.execute_time = now.plus_ms(delay);
                    next.lease_until = None;
                }
            }
            Event::Extend { token, until } => {
                self.check_holder(token)?;
                next.lease_until = Some(*until);
            }
            Event::Cancel => match self.status {
                Status::Scheduled | Status::Leased => {
                    next.lease_token = None;
                    next.finish(Status::Cancelled, now);
                }
                Status::Cancelled => return Ok(Applied::Already),
                Status::Succeeded | Status::Dead => return Err(Refusal::Finished(self.status)),
            },
            Event::Reschedule { execute_time } => match self.status {
                Status::Scheduled => {
                    next.execute_time = *execute_time;
                    // A token that was handed back must not pass for a repeat of that after this.
                    next.lease_token = None;
                }
                other => return Err(Refusal::WrongState(other)),
            },
            Event::Redrive => match self.status {
                Status::Dead => {
                    next.status = Status::Scheduled;
                    next.execute_time = now;
                    next.attempts = 0;
                    next.finished_at = None;
                    next.lease_token = None;
                }
                other => return Err(Refusal::WrongState(other)),
            },
            Event::Exhaust => match (self.status, self.lease_until) {
                (Status::Leased, Some(until)) if until > now => return Err(Refusal::Held(until)),
                (Status::Leased, _) if self.attempts >= self.content.max_attempts => {
                    next.note_error("the lease ran out: the consumer died, hung or took too long", now);
                    next.lease_token = None;
                    next.finish(Status::Dead, now);
                }
                (other, _) => return Err(Refusal::WrongState(other)),
            },
        }
        Ok(Applied::Changed(Box::new(next)))
    }

    fn check_takeable(&self, lane: &Lane, now: Timestamp) -> Result<(), Refusal> {
        if self.status.is_final() {
            return Err(Refusal::Finished(self.status));
        }
        if self.lane() != *lane {
            return Err(Refusal::OtherLane);
        }
        match (self.status, self.lease_until) {
            (Status::Leased, Some(until)) if until > now => return Err(Refusal::Held(until)),
            _ if self.execute_time > now => return Err(Refusal::NotDue(self.execute_time)),
            _ => {}
        }
        if self.attempts >= self.content.max_attempts {
            return Err(Refusal::AttemptsUsed);
        }
        Ok(())
    }

    /// The right token is good after the lease's end too, while nobody took the task since.
    fn check_holder(&self, token: &str) -> Result<(), Refusal> {
        match self.status {
            Status::Leased if self.lease_token.as_deref() == Some(token) => Ok(()),
            _ => Err(Refusal::LeaseLost),
        }
    }

    fn note_error(&mut self, message: &str, now: Timestamp) {
        self.last_error =
            Some(LastError { attempt: self.attempts, at: now, message: bounded_message(message).to_owned() });
    }

    fn finish(&mut self, status: Status, now: Timestamp) {
        self.status = status;
        self.finished_at = Some(now);
        self.lease_until = None;
    }
}
