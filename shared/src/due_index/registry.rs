//! The set of all partitions, and what each holds.

use redis::{Value, cmd};

use super::keys::REGISTRY;
use super::{Call, Down, DueIndex, Partition, integer, sort_out};
use crate::time::Timestamp;

/// How many ids one partition holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Not due yet.
    pub scheduled: u64,
    /// Due, in the list or still in the sorted set, or with an ended lease.
    pub ready: u64,
    /// With a lease that has not ended.
    pub leased: u64,
    /// The first of the list, when it is an id.
    pub first_in_topic: Option<String>,
    /// The due time of the first id of the sorted set, when it is due.
    pub first_due: Option<Timestamp>,
}

impl DueIndex {
    /// All partitions that were ever used and not struck off, and how many unreadable ones there are.
    pub async fn partitions(&self) -> Result<(Vec<Partition>, usize), Down> {
        let mut members = cmd("SMEMBERS");
        members.arg(REGISTRY);
        let answer = self.one(Call::Plain(members)).await?;
        let names: Vec<Vec<u8>> = redis::from_redis_value(answer).map_err(|_| Down::Unexpected("SMEMBERS"))?;
        let readable = names.iter().filter_map(|name| std::str::from_utf8(name).ok());
        let mut partitions: Vec<Partition> = readable.filter_map(Partition::parse).collect();
        partitions.sort();
        let malformed = names.len() - partitions.len();
        Ok((partitions, malformed))
    }

    /// When the first task of each partition is due: those in the list are due at the epoch. One round trip.
    pub async fn heads(&self, partitions: &[Partition]) -> Result<Vec<Option<Timestamp>>, Down> {
        let mut calls = Vec::with_capacity(partitions.len() * 3);
        for partition in partitions {
            let mut length = cmd("LLEN");
            length.arg(partition.topic());
            calls.push(Call::Plain(length));
            for key in [partition.future(), partition.lease()] {
                let mut first = cmd("ZRANGE");
                first.arg(key).arg(0).arg(0).arg("WITHSCORES");
                calls.push(Call::Plain(first));
            }
        }
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut answers = self.send(&calls).await?.into_iter();
        let mut next = || answers.next().ok_or(Down::Unexpected("heads"));
        let mut heads = Vec::with_capacity(partitions.len());
        for _ in partitions {
            let listed = (integer(next()?, "LLEN")? > 0).then_some(Timestamp::from_ms(0));
            let scores = [first_score(next()?)?, first_score(next()?)?];
            heads.push(scores.into_iter().flatten().chain(listed).min());
        }
        Ok(heads)
    }

    /// Counts what `partitions` hold at `now`. One round trip.
    pub async fn counts(&self, partitions: &[Partition], now: Timestamp) -> Result<Vec<Counts>, Down> {
        let now = now.as_ms();
        let mut calls = Vec::with_capacity(partitions.len() * 7);
        let mut push = |name: &str, key: String, arguments: &[String]| {
            let mut command = cmd(name);
            command.arg(key).arg(arguments);
            calls.push(Call::Plain(command));
        };
        let (later, until_now) = ([format!("({now}"), "+inf".to_owned()], ["-inf".to_owned(), now.to_string()]);
        for partition in partitions {
            push("ZCOUNT", partition.future(), &later);
            push("ZCOUNT", partition.future(), &until_now);
            push("LLEN", partition.topic(), &[]);
            push("ZCOUNT", partition.lease(), &until_now);
            push("ZCOUNT", partition.lease(), &later);
            push("LINDEX", partition.topic(), &["0".to_owned()]);
            push("ZRANGE", partition.future(), &["0".to_owned(), "0".to_owned(), "WITHSCORES".to_owned()]);
        }
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut answers = self.send(&calls).await?.into_iter();
        let mut next = || answers.next().ok_or(Down::Unexpected("counts"));
        let mut counts = Vec::with_capacity(partitions.len());
        for _ in partitions {
            let scheduled = integer(next()?, "ZCOUNT")?;
            let ready = integer(next()?, "ZCOUNT")? + integer(next()?, "LLEN")? + integer(next()?, "ZCOUNT")?;
            let leased = integer(next()?, "ZCOUNT")?;
            let first: Option<Vec<u8>> = redis::from_redis_value(next()?).map_err(|_| Down::Unexpected("LINDEX"))?;
            let first_in_topic = sort_out(first.into_iter().collect()).0.pop();
            let first_due = first_score(next()?)?.filter(|due| due.as_ms() <= now);
            counts.push(Counts { scheduled, ready, leased, first_in_topic, first_due });
        }
        Ok(counts)
    }

    /// Strikes empty partitions off the registry; one that gets an id meanwhile is put back.
    pub async fn strike_off_empty(&self, partitions: &[Partition]) -> Result<u64, Down> {
        let empty = self.empty(partitions).await?;
        if empty.is_empty() {
            return Ok(0);
        }
        self.one(registry_call("SREM", &empty)).await?;
        let still_empty = self.empty(&empty).await?;
        let refilled: Vec<Partition> = empty.iter().filter(|p| !still_empty.contains(p)).cloned().collect();
        if !refilled.is_empty() {
            self.one(registry_call("SADD", &refilled)).await?;
        }
        Ok(still_empty.len() as u64)
    }

    /// Forgets partitions that no poll looks at any more; their tasks are loaded into the others from DynamoDB.
    pub async fn forget(&self, partitions: &[Partition]) -> Result<(), Down> {
        if partitions.is_empty() {
            return Ok(());
        }
        let mut calls: Vec<Call> = Vec::new();
        for partition in partitions {
            let mut delete = cmd("DEL");
            delete.arg(&partition.keys());
            calls.push(Call::Plain(delete));
        }
        calls.push(registry_call("SREM", partitions));
        self.send(&calls).await.map(drop)
    }

    async fn empty(&self, partitions: &[Partition]) -> Result<Vec<Partition>, Down> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let exists = |partition: &Partition| {
            let mut exists = cmd("EXISTS");
            exists.arg(&partition.keys());
            Call::Plain(exists)
        };
        let calls: Vec<Call> = partitions.iter().map(exists).collect();
        let mut empty = Vec::new();
        for (partition, answer) in partitions.iter().zip(self.send(&calls).await?) {
            if integer(answer, "EXISTS")? == 0 {
                empty.push(partition.clone());
            }
        }
        Ok(empty)
    }
}

fn registry_call(command: &str, partitions: &[Partition]) -> Call {
    let mut call = cmd(command);
    call.arg(REGISTRY);
    for partition in partitions {
        call.arg(partition.to_string());
    }
    Call::Plain(call)
}

/// The score of the one member of a `ZRANGE ... WITHSCORES`.
fn first_score(answer: Value) -> Result<Option<Timestamp>, Down> {
    let first: Vec<(Vec<u8>, f64)> = redis::from_redis_value(answer).map_err(|_| Down::Unexpected("ZRANGE"))?;
    Ok(first.first().map(|(_, score)| Timestamp::from_ms(*score as i64)))
}
