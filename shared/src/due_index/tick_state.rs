//! What ticks leave in Redis for each other: a lock, cursors, the horizon.

use std::collections::HashMap;
use std::time::Duration;

use redis::{Value, cmd};

use super::keys::{self, HORIZON};
use super::scripts::RELEASE_LOCK;
use super::{Call, Down, DueIndex};
use crate::table::attributes::wake_key_due;
use crate::time::Timestamp;

impl DueIndex {
    /// Takes the lock `tick` for `hold`. `false` when another holds it.
    pub async fn lock(&self, tick: &str, token: &str, hold: Duration) -> Result<bool, Down> {
        let mut set = cmd("SET");
        set.arg(keys::lock(tick)).arg(token).arg("NX").arg("PX").arg(hold.as_millis().to_string());
        if self.one(Call::Plain(set)).await? != Value::Nil {
            return Ok(true);
        }
        // A lock without an end is none of ours, and would be held for ever.
        let mut left = cmd("PTTL");
        left.arg(keys::lock(tick));
        if self.one(Call::Plain(left)).await? == Value::Int(-1) {
            let mut end = cmd("PEXPIRE");
            end.arg(keys::lock(tick)).arg(hold.as_millis().to_string());
            self.one(Call::Plain(end)).await?;
        }
        Ok(false)
    }

    /// Whether the lock `tick` is that of `token`. It is not when Redis was emptied since it was taken.
    pub async fn holds(&self, tick: &str, token: &str) -> Result<bool, Down> {
        let mut get = cmd("GET");
        get.arg(keys::lock(tick));
        let holder: Option<String> = redis::from_redis_value(self.one(Call::Plain(get)).await?).unwrap_or_default();
        Ok(holder.as_deref() == Some(token))
    }

    /// Releases the lock `tick` if it is still that of `token`.
    pub async fn release(&self, tick: &str, token: &str) -> Result<(), Down> {
        self.one(RELEASE_LOCK.call([keys::lock(tick)], vec![token.to_owned()])).await.map(drop)
    }

    /// Up to when all that becomes due has been loaded; `None` when no refresh has told since Redis was last empty.
    pub async fn horizon(&self) -> Result<Option<Timestamp>, Down> {
        let mut get = cmd("GET");
        get.arg(HORIZON);
        let answer: Option<i64> =
            redis::from_redis_value(self.one(Call::Plain(get)).await?).map_err(|_| Down::Unexpected("GET"))?;
        Ok(answer.map(Timestamp::from_ms))
    }

    /// Notes that all that becomes due up to `horizon` is loaded.
    pub async fn set_horizon(&self, horizon: Timestamp) -> Result<(), Down> {
        let mut set = cmd("SET");
        set.arg(HORIZON).arg(horizon.as_ms());
        self.one(Call::Plain(set)).await.map(drop)
    }

    /// Where a tick that was cut short goes on: shard -> sort key.
    pub async fn cursor(&self, tick: &str) -> Result<HashMap<u16, String>, Down> {
        let mut get = cmd("HGETALL");
        get.arg(keys::cursor(tick));
        let answer = self.one(Call::Plain(get)).await?;
        let fields: Vec<(Vec<u8>, Vec<u8>)> =
            redis::from_redis_value(answer).map_err(|_| Down::Unexpected("HGETALL"))?;
        // What is not readable is no cursor: that shard is read from its beginning.
        let readable = fields.into_iter().filter_map(|(shard, wake)| {
            let wake = String::from_utf8(wake).ok().filter(|wake| wake_key_due(wake).is_some())?;
            Some((std::str::from_utf8(&shard).ok()?.parse().ok()?, wake))
        });
        Ok(readable.collect())
    }

    /// Notes where a tick that was cut short goes on, for an hour at most.
    pub async fn set_cursor(&self, tick: &str, cursor: &HashMap<u16, String>) -> Result<(), Down> {
        let key = keys::cursor(tick);
        let mut delete = cmd("DEL");
        delete.arg(&key);
        let mut calls = vec![Call::Plain(delete)];
        if !cursor.is_empty() {
            let mut set = cmd("HSET");
            set.arg(&key);
            for (shard, wake) in cursor {
                set.arg(*shard).arg(wake);
            }
            let mut expire = cmd("EXPIRE");
            expire.arg(&key).arg(3_600);
            calls.extend([Call::Plain(set), Call::Plain(expire)]);
        }
        self.send(&calls).await.map(drop)
    }
}
