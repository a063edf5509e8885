//! Redis, the index of what is due soon. It may be empty, stale or gone: DynamoDB decides, Redis makes it quick.

pub mod keys;
mod link;
mod registry;
mod scripts;
mod tick_state;
mod wake_ups;

use std::collections::HashMap;

use redis::{RedisError, RedisResult, Value, cmd};
use tracing::warn;

pub use keys::Partition;
pub use link::{Call, Down, Link};
pub use registry::Counts;
pub use wake_ups::{Subscription, WakeUps};

use keys::{REGISTRY, wake_channel};
use scripts::{LEASE_DUE, LOAD_IDS, PLACE_IDS, PROMOTE_DUE, RETURN_IDS};

use crate::task::check_task_id;
use crate::time::Timestamp;

/// The most ids in a partition's list; the rest of what is due waits, in due order, in the sorted set. The bound
/// keeps the cost of finding an id in the list constant.
pub const TOPIC_LIMIT: usize = 1_000;
/// The most ids that one call of a script takes.
const IDS_A_CALL: usize = 500;

/// Where an id belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Due at this moment.
    Future(Timestamp),
    /// Leased until this moment.
    Lease(Timestamp),
    /// Not in Redis.
    Nowhere,
}

/// What a poll took from one partition.
#[derive(Debug, Default)]
pub struct Taken {
    /// The ids, now leases, in order.
    pub ids: Vec<String>,
    /// How many members beside them were no ids and were dropped.
    pub malformed: usize,
    /// When the next one is due or the next lease ends; `None` when nothing is known or more is due now.
    pub next: Option<Timestamp>,
}

/// What loading made of some rows.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Ids put into the sorted set.
    pub placed: usize,
    /// Ids whose state must be read from DynamoDB.
    pub unknown: Vec<String>,
}

/// The index in Redis.
pub struct DueIndex {
    link: Link,
    /// Tells waiting polls of new due times.
    pub wake_ups: WakeUps,
}

impl DueIndex {
    /// An index in the Redis at `urls`; see [`Link::new`]. Connects to nothing yet.
    pub fn new(urls: &[String], cluster: bool) -> RedisResult<Self> {
        Ok(Self { link: Link::new(urls, cluster)?, wake_ups: WakeUps::new(urls)? })
    }

    /// Says whether Redis answers.
    pub async fn ping(&self) -> Result<(), Down> {
        self.send(&[Call::Plain(cmd("PING"))]).await.map(drop)
    }

    /// Notes tasks that were just stored, each with its due time. One round trip.
    pub async fn add(&self, tasks: &[(Partition, &str, Timestamp)]) -> Result<(), Down> {
        let mut calls = Vec::new();
        let mut registry = cmd("SADD");
        registry.arg(REGISTRY);
        let mut wakes: HashMap<String, Timestamp> = HashMap::new();
        for (partition, members) in grouped(tasks.iter().map(|(p, id, due)| (p, (id, due)))) {
            let mut add = cmd("ZADD");
            add.arg(partition.future());
            for (id, due) in members {
                add.arg(due.as_ms()).arg(id);
                note_earliest(&mut wakes, wake_channel(&partition.lane), *due);
            }
            calls.push(Call::Plain(add));
            registry.arg(partition.to_string());
        }
        if calls.is_empty() {
            return Ok(());
        }
        // After the ids: whoever strikes a partition off looks for ids after it, so one of the two sees the other.
        calls.push(Call::Plain(registry));
        calls.extend(wakes.into_iter().map(publish));
        self.send(&calls).await.map(drop)
    }

    /// Puts ids where they belong and wakes those who wait for them. One round trip.
    pub async fn place(&self, ids: &[(Partition, &str, Place)]) -> Result<(), Down> {
        let mut calls = Vec::new();
        let mut wakes: HashMap<String, Timestamp> = HashMap::new();
        for (partition, places) in grouped(ids.iter().map(|(p, id, place)| (p, (id, place)))) {
            let mut arguments = Vec::with_capacity(places.len() * 3);
            for (id, place) in places {
                let (word, score) = match place {
                    Place::Future(due) => {
                        note_earliest(&mut wakes, wake_channel(&partition.lane), *due);
                        ("future", due.as_ms())
                    }
                    Place::Lease(until) => ("lease", until.as_ms()),
                    Place::Nowhere => ("nowhere", 0),
                };
                arguments.extend([(*id).to_owned(), word.to_owned(), score.to_string()]);
            }
            calls.push(PLACE_IDS.call(partition.keys(), arguments));
        }
        if !wakes.is_empty() {
            let mut registry = cmd("SADD");
            registry.arg(REGISTRY);
            for (partition, _, place) in ids {
                if matches!(place, Place::Future(_)) {
                    registry.arg(partition.to_string());
                }
            }
            calls.push(Call::Plain(registry));
            calls.extend(wakes.into_iter().map(publish));
        }
        if calls.is_empty() {
            return Ok(());
        }
        self.send(&calls).await.map(drop)
    }

    /// Takes up to `most` due ids of a partition and leases them until `until`. One round trip.
    pub async fn lease_due(
        &self,
        partition: &Partition,
        now: Timestamp,
        most: usize,
        until: Timestamp,
    ) -> Result<Taken, Down> {
        let arguments = vec![now.as_ms().to_string(), most.to_string(), until.as_ms().to_string()];
        let answer = self.one(LEASE_DUE.call(partition.keys(), arguments)).await?;
        let mut members: Vec<Vec<u8>> =
            redis::from_redis_value(answer).map_err(|_| Down::Unexpected(LEASE_DUE.name))?;
        if members.is_empty() {
            return Err(Down::Unexpected(LEASE_DUE.name));
        }
        let next = String::from_utf8(members.remove(0)).ok().and_then(|score| score.parse::<f64>().ok());
        let (ids, malformed) = sort_out(members);
        self.drop_leases(partition, &malformed).await?;
        Ok(Taken { ids, malformed: malformed.len(), next: next.map(|ms| Timestamp::from_ms(ms as i64)) })
    }

    /// Gives ids back that [`DueIndex::lease_due`] took and nobody used: they are first in line again.
    pub async fn give_back(&self, partition: &Partition, ids: &[String]) -> Result<(), Down> {
        let keys = [partition.topic(), partition.lease()];
        self.one(RETURN_IDS.call(keys, ids.to_vec())).await.map(drop)
    }

    /// Makes Redis know pending tasks; `doubt_leases_after` as in `load_ids.lua`.
    pub async fn load(
        &self,
        rows: &[(Partition, &str, Timestamp)],
        now: Timestamp,
        doubt_leases_after: Option<Timestamp>,
    ) -> Result<Loaded, Down> {
        let doubt = doubt_leases_after.map_or_else(String::new, |at| at.as_ms().to_string());
        let mut calls = Vec::new();
        let mut registry = cmd("SADD");
        registry.arg(REGISTRY);
        let mut wakes: HashMap<String, Timestamp> = HashMap::new();
        for (partition, members) in grouped(rows.iter().map(|(p, id, due)| (p, (id, due)))) {
            for chunk in members.chunks(IDS_A_CALL) {
                let mut arguments = vec![now.as_ms().to_string(), doubt.clone()];
                for (id, due) in chunk {
                    arguments.extend([(**id).to_owned(), due.as_ms().to_string()]);
                    note_earliest(&mut wakes, wake_channel(&partition.lane), **due);
                }
                calls.push(LOAD_IDS.call(partition.keys(), arguments));
            }
            registry.arg(partition.to_string());
        }
        if calls.is_empty() {
            return Ok(Loaded::default());
        }
        let scripts = calls.len();
        calls.push(Call::Plain(registry));
        calls.extend(wakes.into_iter().map(publish));
        let mut loaded = Loaded::default();
        for answer in self.send(&calls).await?.into_iter().take(scripts) {
            let (placed, unknown) = split_first(answer, LOAD_IDS.name)?;
            loaded.placed += placed.parse::<usize>().map_err(|_| Down::Unexpected(LOAD_IDS.name))?;
            loaded.unknown.extend(unknown);
        }
        Ok(loaded)
    }

    /// Moves what is due into the lists of `partitions`; returns how many ids moved.
    pub async fn promote(&self, partitions: &[Partition], now: Timestamp) -> Result<u64, Down> {
        if partitions.is_empty() {
            return Ok(0);
        }
        let arguments = [now.as_ms().to_string(), TOPIC_LIMIT.to_string()];
        let calls: Vec<Call> =
            partitions.iter().map(|p| PROMOTE_DUE.call([p.future(), p.topic()], arguments.to_vec())).collect();
        let answers = self.send(&calls).await?;
        answers.into_iter().map(|answer| integer(answer, PROMOTE_DUE.name)).sum()
    }

    /// Up to `most` ids of a partition whose leases have ended at `now`, the longest ended first, and how many members
    /// among them were no ids and were dropped.
    pub async fn ended_leases(
        &self,
        partition: &Partition,
        now: Timestamp,
        most: usize,
    ) -> Result<(Vec<String>, usize), Down> {
        let mut range = cmd("ZRANGE");
        range.arg(partition.lease()).arg("-inf").arg(now.as_ms()).arg("BYSCORE").arg("LIMIT").arg(0).arg(most);
        let answer = self.one(Call::Plain(range)).await?;
        let members = redis::from_redis_value(answer).map_err(|_| Down::Unexpected("ZRANGE"))?;
        let (ids, malformed) = sort_out(members);
        self.drop_leases(partition, &malformed).await?;
        Ok((ids, malformed.len()))
    }

    /// Drops members that are no ids.
    async fn drop_leases(&self, partition: &Partition, malformed: &[Vec<u8>]) -> Result<(), Down> {
        if malformed.is_empty() {
            return Ok(());
        }
        warn!(%partition, count = malformed.len(), "dropped members that are no task ids");
        let mut remove = cmd("ZREM");
        remove.arg(partition.lease()).arg(malformed);
        self.one(Call::Plain(remove)).await.map(drop)
    }

    /// Sends `calls` in one round trip. A key of a type that we never write holds nothing of ours: it is deleted, since
    /// DynamoDB has all that belongs there, and the calls are sent once more.
    async fn send(&self, calls: &[Call]) -> Result<Vec<Value>, Down> {
        match self.link.send(calls).await {
            Err(Down::Failed(error)) if is_wrong_type(&error) => {}
            answer => return answer,
        }
        let mut keys: Vec<String> = calls.iter().flat_map(Call::keys).collect();
        keys.retain(|key| keys::kind(key).is_some());
        let plain = |name, key: &String| {
            let mut command = cmd(name);
            command.arg(key);
            Call::Plain(command)
        };
        let kinds: Vec<Call> = keys.iter().map(|key| plain("TYPE", key)).collect();
        let mut deletions = Vec::new();
        for (key, answer) in keys.iter().zip(self.link.send(&kinds).await?) {
            let kind: String = redis::from_redis_value(answer).map_err(|_| Down::Unexpected("TYPE"))?;
            if kind != "none" && keys::kind(key) != Some(kind.as_str()) {
                warn!(key, kind, "deleted a key of the wrong type");
                deletions.push(plain("DEL", key));
            }
        }
        self.link.send(&deletions).await?;
        self.link.send(calls).await
    }

    async fn one(&self, call: Call) -> Result<Value, Down> {
        let mut answers = self.send(&[call]).await?;
        answers.pop().ok_or(Down::Unexpected("one call"))
    }
}

fn publish((channel, due): (String, Timestamp)) -> Call {
    let mut publish = cmd("PUBLISH");
    publish.arg(channel).arg(due.as_ms());
    Call::Plain(publish)
}

fn note_earliest(wakes: &mut HashMap<String, Timestamp>, channel: String, due: Timestamp) {
    wakes.entry(channel).and_modify(|earliest| *earliest = due.min(*earliest)).or_insert(due);
}

/// Splits members into task ids and what is none.
fn sort_out(members: Vec<Vec<u8>>) -> (Vec<String>, Vec<Vec<u8>>) {
    let (mut ids, mut malformed) = (Vec::with_capacity(members.len()), Vec::new());
    for member in members {
        match String::from_utf8(member) {
            Ok(id) if check_task_id(&id).is_ok() => ids.push(id),
            Ok(other) => malformed.push(other.into_bytes()),
            Err(error) => malformed.push(error.into_bytes()),
        }
    }
    (ids, malformed)
}

/// Older servers wrap a script's error, so the code alone does not tell.
fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}

/// Groups by partition, keeping the order within each.
fn grouped<'a, T>(items: impl Iterator<Item = (&'a Partition, T)>) -> Vec<(&'a Partition, Vec<T>)> {
    let mut groups: Vec<(&Partition, Vec<T>)> = Vec::new();
    let mut places: HashMap<&Partition, usize> = HashMap::new();
    for (partition, item) in items {
        let place = *places.entry(partition).or_insert_with(|| {
            groups.push((partition, Vec::new()));
            groups.len() - 1
        });
        groups[place].1.push(item);
    }
    groups
}

fn integer(answer: Value, of: &'static str) -> Result<u64, Down> {
    redis::from_redis_value(answer).map_err(|_| Down::Unexpected(of))
}

/// A script's answer whose first element stands apart from the ids behind it.
fn split_first(answer: Value, script: &'static str) -> Result<(String, Vec<String>), Down> {
    let mut all: Vec<String> = redis::from_redis_value(answer).map_err(|_| Down::Unexpected(script))?;
    if all.is_empty() {
        return Err(Down::Unexpected(script));
    }
    let first = all.remove(0);
    Ok((first, all))
}
