//! A task and the words around it: identifiers, queues, lanes. No I/O, no clock.

mod task_type;

use std::fmt;

use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::backoff::Backoff;
use crate::time::Timestamp;

pub use task_type::{ListedType, TaskType};

/// The most bytes that `parameters` may have, as sent.
pub const MAX_PARAMETERS_BYTES: usize = 256 * 1024;
/// The most characters of a task id.
pub const MAX_ID_LENGTH: usize = 128;
/// The most characters of a task type or of a handler's name.
pub const MAX_NAME_LENGTH: usize = 64;
/// The most bytes of an error message that are kept.
pub const MAX_ERROR_BYTES: usize = 2_000;
/// Attempts when the caller does not say.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 5;
/// A handler's time limit when the caller does not say, in milliseconds.
pub const DEFAULT_TIMEOUT_MS: i64 = 60_000;
/// How long dead tasks are kept: 90 days, in seconds.
pub const DEAD_RETENTION_SECONDS: i64 = 90 * 24 * 60 * 60;

/// Where a task stands. Each variant says who moves it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Waits for its due time or, past it, for a consumer: poll or dispatch leases it, the caller may cancel it.
    Scheduled,
    /// One consumer has it: that one settles it, or its lease runs out and poll, dispatch or recover move it.
    Leased,
    /// Done. Nobody moves it; its retention ends it.
    Succeeded,
    /// Called off. Nobody moves it; adding its id again makes a new task.
    Cancelled,
    /// Its attempts are used up. A person redrives it, or its retention ends it.
    Dead,
}

impl Status {
    /// Every status, in the order of a task's life.
    pub const ALL: [Status; 5] =
        [Status::Scheduled, Status::Leased, Status::Succeeded, Status::Cancelled, Status::Dead];

    /// The word for this status in the API and in the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Scheduled => "scheduled",
            Status::Leased => "leased",
            Status::Succeeded => "succeeded",
            Status::Cancelled => "cancelled",
            Status::Dead => "dead",
        }
    }

    /// The status named `word`.
    pub fn parse(word: &str) -> Option<Status> {
        Status::ALL.into_iter().find(|s| s.as_str() == word)
    }

    /// Whether the task is over: it is never delivered again (a dead one only after a redrive).
    pub const fn is_final(self) -> bool {
        match self {
            Status::Scheduled | Status::Leased => false,
            Status::Succeeded | Status::Cancelled | Status::Dead => true,
        }
    }
}

/// Checks a task id: `[A-Za-z0-9_.:-]{1,128}`, and not `.` or `..`.
pub fn check_task_id(id: &str) -> Result<(), &'static str> {
    let fits = (1..=MAX_ID_LENGTH).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
        && id != "."
        && id != "..";
    if fits {
        Ok(())
    } else {
        Err("must be an integer or 1 to 128 of the characters A-Z a-z 0-9 _ . : -, and not . or ..")
    }
}

/// A task id of the service's choice: 16 digits that fit a Java `long` and a JavaScript number.
pub fn random_task_id() -> String {
    rand::random_range(1_000_000_000_000_000u64..(1 << 53)).to_string()
}

/// An unguessable word of 22 characters: a lease token, or the mark of one write.
pub fn random_token() -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>())
}

/// The tasks that one kind of consumer takes in order: a queue's polled ones, or those of a queue that
/// name one handler. Written `type_priority` or `type_priority@handler`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    /// The type's name.
    pub task_type: String,
    /// 0 to 255; a lower number is more urgent.
    pub priority: u8,
    /// The handler that runs these tasks, or none when they are polled.
    pub handler: Option<String>,
}

impl Lane {
    /// Reads what [`fmt::Display`] writes. `None` when it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (queue, handler) = match text.split_once('@') {
            Some((queue, handler)) => (queue, Some(handler.to_owned())),
            None => (text, None),
        };
        let (task_type, priority) = queue.rsplit_once('_')?;
        TaskType::from_name(task_type).ok()?;
        Some(Self { task_type: task_type.to_owned(), priority: priority.parse().ok()?, handler })
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.task_type, self.priority)?;
        match &self.handler {
            Some(handler) => write!(f, "@{handler}"),
            None => Ok(()),
        }
    }
}

/// A number spread evenly over `0..buckets`, always the same for one id. `salt` makes independent
/// spreads of the same ids.
pub fn spread(id: &str, salt: u8, buckets: u16) -> u16 {
    let digest = Sha256::new_with_prefix([salt]).chain_update(id).finalize();
    let number = u64::from_be_bytes(digest[..8].try_into().expect("a SHA-256 digest has 32 bytes"));
    u16::try_from(number % u64::from(buckets.max(1))).expect("the remainder is below a u16")
}

/// The last failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LastError {
    /// Which attempt failed, 1-based.
    pub attempt: u32,
    /// When.
    pub at: Timestamp,
    /// Why, at most [`MAX_ERROR_BYTES`].
    pub message: String,
}

/// `message` cut to [`MAX_ERROR_BYTES`], at a character.
pub fn bounded_message(message: &str) -> &str {
    &message[..message.floor_char_boundary(MAX_ERROR_BYTES)]
}

/// What a caller asked for: the part of a task that its later life does not change.
#[derive(Clone, Debug)]
pub struct Content {
    /// The task's type.
    pub task_type: TaskType,
    /// 0 to 255; a lower number is more urgent.
    pub priority: u8,
    /// Any JSON, to the byte as it came; `None` gives `null`.
    pub parameters: Option<Box<RawValue>>,
    /// The handler that the service runs, or none: then it is polled.
    pub handler: Option<String>,
    /// Leases that may be given before the task is dead, 1 to 1000.
    pub max_attempts: u32,
    /// How long between attempts.
    pub backoff: Backoff,
    /// How long the finished task is kept, in milliseconds.
    pub retention_ms: i64,
    /// A handler's time limit in milliseconds.
    pub timeout_ms: Option<i64>,
}

impl Content {
    /// The lane that a task with this content belongs to.
    pub fn lane(&self) -> Lane {
        Lane { task_type: self.task_type.name().to_owned(), priority: self.priority, handler: self.handler.clone() }
    }
}

/// A task with its state, as the table keeps it.
#[derive(Clone, Debug)]
pub struct Task {
    /// The caller's id, or digits of the service's choice.
    pub id: String,
    /// What the caller asked for.
    pub content: Content,
    /// A digest of what the caller sent, due time included: equal for a repeated add.
    pub digest: String,
    /// The due time: as sent, or of the next attempt.
    pub execute_time: Timestamp,
    /// Where the task stands.
    pub status: Status,
    /// Leases given so far.
    pub attempts: u32,
    /// Counts writes, from 1.
    pub version: u64,
    /// The mark of the last write: what compare-and-set compares.
    pub write_id: String,
    /// When it was added.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it succeeded, was cancelled or died.
    pub finished_at: Option<Timestamp>,
    /// When the current lease ends.
    pub lease_until: Option<Timestamp>,
    /// The token of the current lease, or of the last one, so that a repeated settle is recognised.
    pub lease_token: Option<String>,
    /// The last failed attempt.
    pub last_error: Option<LastError>,
}

impl Task {
    /// A task that is added at `now`, with a write mark of its own.
    pub fn new(id: String, content: Content, digest: String, execute_time: Timestamp, now: Timestamp) -> Self {
        Self {
            id,
            content,
            digest,
            execute_time,
            status: Status::Scheduled,
            attempts: 0,
            version: 1,
            write_id: random_token(),
            created_at: now,
            updated_at: now,
            finished_at: None,
            lease_until: None,
            lease_token: None,
            last_error: None,
        }
    }

    /// The lane that this task belongs to.
    pub fn lane(&self) -> Lane {
        self.content.lane()
    }

    /// When the table may forget this task, epoch seconds; `None` while it is not over.
    pub fn expires_at_seconds(&self) -> Option<i64> {
        let kept_seconds = match self.status {
            Status::Dead => DEAD_RETENTION_SECONDS,
            _ => Timestamp::from_ms(self.content.retention_ms).as_seconds_up(),
        };
        Some(self.finished_at?.as_seconds_up() + kept_seconds)
    }

    /// Whether its retention has ended: it counts as unknown though DynamoDB, which is hours late at times, has it.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at_seconds().is_some_and(|at| at <= now.as_seconds_down())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_round_trip_and_do_not_mix() {
        for (task_type, priority, handler) in
            [("a_1", 2, None), ("a", 12, None), ("7", 0, Some("webhook")), ("future_x", 255, None), ("-_.", 0, None)]
        {
            let lane = Lane { task_type: task_type.to_owned(), priority, handler: handler.map(str::to_owned) };
            assert_eq!(Lane::parse(&lane.to_string()), Some(lane));
        }
        for text in ["", "a", "a_", "a_256", "a_-1", "_1", "a b_1", "{t}_1"] {
            assert_eq!(Lane::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_type_is_given_back_as_it_came() {
        let json = |t: TaskType| serde_json::to_string(&t).expect("serializes");
        assert_eq!(json(TaskType::from_number(-7)), "-7");
        assert_eq!(json(TaskType::from_name("7").expect("valid")), "\"7\"");
        for bad in ["", ".", "..", "a b", "a:b", "{t}", "*", "[ab]", "任务", &"x".repeat(65)] {
            assert!(TaskType::from_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_of_our_choice_fit_a_javascript_number() {
        for _ in 0..1_000 {
            let id: u64 = random_task_id().parse().expect("digits");
            assert!(id < 1 << 53);
        }
    }

    #[test]
    fn ids_spread_over_every_bucket() {
        let mut hits = [0u32; 16];
        for id in 0..1_600 {
            hits[usize::from(spread(&id.to_string(), 0, 16))] += 1;
        }
        assert!(hits.iter().all(|h| (50..200).contains(h)), "{hits:?}");
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let message = "é".repeat(MAX_ERROR_BYTES);
        let cut = bounded_message(&message);
        assert_eq!(cut.len(), MAX_ERROR_BYTES);
        assert!(bounded_message(&format!("x{message}")).len() == MAX_ERROR_BYTES - 1);
    }
}
