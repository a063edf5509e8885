//! Every Redis key and channel is built here.

use std::fmt;

use crate::task::{Lane, spread};

/// The salt of the spread of ids over queue partitions: independent of that over index shards.
const PARTITION_SALT: u8 = 1;

/// The set of all partitions that have been used, so that nothing needs KEYS or SCAN.
pub const REGISTRY: &str = "partitions";

/// Up to when all that becomes due has been loaded, epoch milliseconds.
pub const HORIZON: &str = "horizon";

/// One part of a lane, with its own three keys in one cluster slot. Written `type_priority.number` or
/// `type_priority.number@handler`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// The lane.
    pub lane: Lane,
    /// From 0 to the number of partitions, exclusive.
    pub number: u16,
}

impl Partition {
    /// The partition of `lane`, out of `partitions`, that holds `id`.
    pub fn of(lane: Lane, id: &str, partitions: u16) -> Self {
        Self { lane, number: spread(id, PARTITION_SALT, partitions) }
    }

    /// Reads what [`fmt::Display`] writes. `None` when it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let (numbered, handler) = match text.split_once('@') {
            Some((numbered, handler)) => (numbered, Some(handler)),
            None => (text, None),
        };
        let (queue, number) = numbered.rsplit_once('.')?;
        let lane = match handler {
            Some(handler) => format!("{queue}@{handler}"),
            None => queue.to_owned(),
        };
        Some(Self { lane: Lane::parse(&lane)?, number: number.parse().ok()? })
    }

    /// The sorted set of what is not due yet, or due and still waiting for room in the list; score = due time.
    pub fn future(&self) -> String {
        format!("future:{{{self}}}")
    }

    /// The list of ids that are due, first in line first.
    pub fn topic(&self) -> String {
        format!("topic:{{{self}}}")
    }

    /// The sorted set of leases; score = lease end.
    pub fn lease(&self) -> String {
        format!("lease:{{{self}}}")
    }

    /// All three keys, in the order in which the scripts take them.
    pub fn keys(&self) -> [String; 3] {
        [self.future(), self.topic(), self.lease()]
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}.{}", self.lane.task_type, self.lane.priority, self.number)?;
        match &self.lane.handler {
            Some(handler) => write!(f, "@{handler}"),
            None => Ok(()),
        }
    }
}

/// The channel on which consumers of a lane hear of new due times: one a type for polls, whatever the priority,
/// and one a handler for dispatch.
pub fn wake_channel(lane: &Lane) -> String {
    match &lane.handler {
        Some(handler) => handler_channel(handler),
        None => type_channel(&lane.task_type),
    }
}

/// The channel of a type's polled tasks.
pub fn type_channel(task_type: &str) -> String {
    format!("wake:{task_type}")
}

/// The channel of a handler's tasks.
pub fn handler_channel(handler: &str) -> String {
    format!("wake:@{handler}")
}

/// The lock of a tick.
pub fn lock(tick: &str) -> String {
    format!("lock:{tick}")
}

/// The hash of the sort keys after which a tick that was cut short goes on, by shard.
pub fn cursor(tick: &str) -> String {
    format!("cursor:{tick}")
}

/// The type of value that a key holds, as Redis names it; `None` for what is no key of ours.
pub fn kind(key: &str) -> Option<&'static str> {
    match key.split(':').next()? {
        "future" | "lease" => Some("zset"),
        "topic" => Some("list"),
        "lock" | HORIZON => Some("string"),
        "cursor" => Some("hash"),
        REGISTRY => Some("set"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_round_trip_and_their_keys_share_a_hash_tag() {
        for text in ["7_0.0", "a_1_2.3", "a.b_1.12@webhook", "a_0.1@my.handler-2"] {
            let partition = Partition::parse(text).expect(text);
            assert_eq!(partition.to_string(), text);
            assert_eq!(partition.future(), format!("future:{{{text}}}"));
        }
        for text in ["", "a_1", "a.1", "a_1.x", "a_1.-1", "a_300.1"] {
            assert_eq!(Partition::parse(text), None, "{text}");
        }
    }
}
