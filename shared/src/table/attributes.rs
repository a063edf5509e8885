//! Every name in the DynamoDB table stands here, and the shape of its index's keys.

use crate::time::Timestamp;

/// The table's key: the task's id.
pub const TASK_ID: &str = "taskId";
/// A [`crate::task::Status`] word.
pub const STATUS: &str = "status";
/// The type's name.
pub const TASK_TYPE: &str = "taskType";
/// Present and true when the type was sent as a number.
pub const TYPE_IS_NUMBER: &str = "typeIsNumber";
/// 0 to 255.
pub const PRIORITY: &str = "priority";
/// The due time, epoch milliseconds.
pub const EXECUTE_TIME: &str = "executeTime";
/// The parameters' JSON text, as sent.
pub const PARAMETERS: &str = "parameters";
/// The handler's name; absent for polled tasks.
pub const HANDLER: &str = "handler";
/// Leases that may be given.
pub const MAX_ATTEMPTS: &str = "maxAttempts";
/// The backoff's JSON text; absent for the default one.
pub const BACKOFF: &str = "backoff";
/// How long the finished task is kept, milliseconds.
pub const RETENTION: &str = "retention";
/// The same in seconds, so that an update can add it to the time in the table's own TTL unit.
pub const RETENTION_SECONDS: &str = "retentionSeconds";
/// A handler's time limit, milliseconds.
pub const TIMEOUT: &str = "timeout";
/// Leases given so far.
pub const ATTEMPTS: &str = "attempts";
/// Counts writes.
pub const VERSION: &str = "version";
/// The mark of the last write.
pub const WRITE_ID: &str = "writeId";
/// The mark of the write that added the task.
pub const ADD_ID: &str = "addId";
/// The digest of what was sent.
pub const DIGEST: &str = "digest";
/// Epoch milliseconds.
pub const CREATED_AT: &str = "createdAt";
/// Epoch milliseconds.
pub const UPDATED_AT: &str = "updatedAt";
/// Epoch milliseconds.
pub const FINISHED_AT: &str = "finishedAt";
/// The lease's end, epoch milliseconds.
pub const LEASE_UNTIL: &str = "leaseUntil";
/// The lease's token.
pub const LEASE_TOKEN: &str = "leaseToken";
/// The last failed attempt: its number.
pub const ERROR_ATTEMPT: &str = "errorAttempt";
/// The last failed attempt: when, epoch milliseconds.
pub const ERROR_AT: &str = "errorAt";
/// The last failed attempt: why.
pub const ERROR_MESSAGE: &str = "errorMessage";
/// TTL, epoch seconds; only finished tasks have it.
pub const EXPIRES_AT: &str = "expiresAt";

/// The index over tasks that are not over, and over dead ones. Sparse: other tasks lack its keys.
pub const INDEX: &str = "due";
/// The index's partition key: [`pending_bucket`] or [`dead_bucket`].
pub const BUCKET: &str = "bucket";
/// The index's sort key: [`wake_key`].
pub const WAKE: &str = "wake";
/// Projected into the index: the task's lane. Removed when a task leaves the index.
pub const LANE: &str = "lane";

/// All that a task's state needs: everything but the parameters, which may be large.
pub const STATE: [&str; 24] = [
    TASK_ID,
    STATUS,
    TASK_TYPE,
    TYPE_IS_NUMBER,
    PRIORITY,
    EXECUTE_TIME,
    HANDLER,
    MAX_ATTEMPTS,
    BACKOFF,
    RETENTION,
    TIMEOUT,
    ATTEMPTS,
    VERSION,
    WRITE_ID,
    DIGEST,
    CREATED_AT,
    UPDATED_AT,
    FINISHED_AT,
    LEASE_UNTIL,
    LEASE_TOKEN,
    ERROR_ATTEMPT,
    ERROR_AT,
    ERROR_MESSAGE,
    EXPIRES_AT,
];

/// The index partition of scheduled and leased tasks in `shard`.
pub fn pending_bucket(shard: u16) -> String {
    format!("pending#{shard}")
}

/// The index partition of dead tasks in `shard`.
pub fn dead_bucket(shard: u16) -> String {
    format!("dead#{shard}")
}

/// The index's sort key: due time, then id, so that it is unique and a page can go on from any row.
pub fn wake_key(due: Timestamp, id: &str) -> String {
    format!("{:015}#{id}", due.as_ms())
}

/// The greatest sort key of tasks due at `due`: `~` comes after every character of an id.
pub fn last_wake_key(due: Timestamp) -> String {
    format!("{:015}#~", due.as_ms())
}

/// The least sort key after `wake`: a space comes before every character of an id.
pub fn wake_key_after(wake: &str) -> String {
    format!("{wake} ")
}

/// The due time in a sort key. `None` when it is malformed.
pub fn wake_key_due(wake: &str) -> Option<Timestamp> {
    let (due, _) = wake.split_once('#')?;
    due.parse().ok().map(Timestamp::from_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sort_keys_are_in_due_order_and_pages_go_on_after_a_row() {
        let at = Timestamp::from_ms;
        let key = wake_key(at(999), "a");
        assert!(key < wake_key(at(1_000), "A"));
        assert!(wake_key(at(1_000), "zz:z") < last_wake_key(at(1_000)));
        assert!(last_wake_key(at(1_000)) < wake_key(at(1_001), "-"));
        assert!(key < wake_key_after(&key) && wake_key_after(&key) < wake_key(at(999), "a-"));
        assert_eq!(wake_key_due(&key), Some(at(999)));
        assert_eq!(wake_key_due("x"), None);
    }
}
