//! Configuration by environment variables: each is named here, and a wrong one is refused at start with its name.

use std::time::Duration;

use thiserror::Error;
use tracing_subscriber::filter::Targets;

/// A variable that is missing or wrong.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{name}: {reason}")]
pub struct WrongVariable {
    /// The variable.
    pub name: &'static str,
    /// What it must be.
    pub reason: String,
}

/// Reads variables by name.
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// The variable, trimmed; `None` when it is unset or blank.
    pub fn text(&self, name: &'static str) -> Option<String> {
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The variable, which must be there.
    pub fn required(&self, name: &'static str) -> Result<String, WrongVariable> {
        self.text(name).ok_or(WrongVariable { name, reason: "must be set".to_owned() })
    }

    /// What is logged: `RUST_LOG`, a level or `target=level` pairs, or `default` when it is unset.
    pub fn log_filter(&self, default: &str) -> Result<Targets, WrongVariable> {
        let text = self.text("RUST_LOG").unwrap_or_else(|| default.to_owned());
        let reason = "must be error, warn, info, debug, trace or off, or pairs of module=level, separated by commas";
        text.parse().map_err(|_| WrongVariable { name: "RUST_LOG", reason: reason.to_owned() })
    }

    /// A whole number from `least` to `most`, or `default` when the variable is unset.
    pub fn number(&self, name: &'static str, default: u64, least: u64, most: u64) -> Result<u64, WrongVariable> {
        let Some(text) = self.text(name) else {
            return Ok(default);
        };
        match text.parse() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(WrongVariable {
                name,
                reason: format!("must be a whole number from {least} to {most}, not '{text}'"),
            }),
        }
    }

    /// `true` or `false`, or `false` when the variable is unset.
    pub fn flag(&self, name: &'static str) -> Result<bool, WrongVariable> {
        match self.text(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(other) => Err(WrongVariable { name, reason: format!("must be true or false, not '{other}'") }),
        }
    }
}

/// What every function is configured with.
#[derive(Clone, Debug)]
pub struct Config {
    /// `TABLE_NAME`: the DynamoDB table.
    pub table_name: String,
    /// `REDIS_URL`: one or several URLs, comma-separated.
    pub redis_urls: Vec<String>,
    /// `REDIS_CLUSTER`: whether they lead to a cluster; several URLs always do.
    pub redis_cluster: bool,
    /// `WINDOW_SECONDS`: how far ahead Redis knows of tasks, in milliseconds.
    pub window_ms: i64,
    /// `INDEX_SHARDS`: partitions of the DynamoDB index.
    pub index_shards: u16,
    /// `QUEUE_PARTITIONS`: parts of each queue in Redis.
    pub queue_partitions: u16,
    /// `LEASE_SECONDS`: a lease's length when the caller does not say, in milliseconds.
    pub lease_ms: i64,
    /// `RETENTION_SECONDS`: how long a finished task is kept when the caller does not say, in milliseconds.
    pub retention_ms: i64,
}

impl Config {
    /// Reads and checks the variables.
    pub fn read(environment: &Environment<'_>) -> Result<Self, WrongVariable> {
        let urls = environment.required("REDIS_URL")?;
        let redis_urls: Vec<String> = urls.split(',').map(|url| url.trim().to_owned()).collect();
        for url in &redis_urls {
            // The URL may hold a password, so the reason must not repeat it.
            redis::Client::open(url.as_str()).map_err(|_| WrongVariable {
                name: "REDIS_URL",
                reason: "must be URLs like rediss://host:6379, separated by commas".to_owned(),
            })?;
        }
        let seconds = |name, default, least, most| -> Result<i64, WrongVariable> {
            let seconds = environment.number(name, default, least, most)?;
            Ok(i64::try_from(seconds * 1_000).expect("the limits are far below"))
        };
        let small = |name, default, most| -> Result<u16, WrongVariable> {
            let number = environment.number(name, default, 1, most)?;
            Ok(u16::try_from(number).expect("the limits are far below"))
        };
        Ok(Self {
            table_name: environment.required("TABLE_NAME")?,
            redis_urls,
            redis_cluster: environment.flag("REDIS_CLUSTER")?,
            window_ms: seconds("WINDOW_SECONDS", 300, 60, 86_400)?,
            index_shards: small("INDEX_SHARDS", 16, 1_024)?,
            queue_partitions: small("QUEUE_PARTITIONS", 1, 64)?,
            lease_ms: seconds("LEASE_SECONDS", 30, 1, 43_200)?,
            retention_ms: seconds("RETENTION_SECONDS", 604_800, 0, 315_360_000)?,
        })
    }
}

/// What the ticks are configured with besides.
#[derive(Clone, Copy, Debug)]
pub struct TickConfig {
    /// `TICK_SECONDS`: how long a tick works before it stops and says `more: true`.
    pub budget: Duration,
}

impl TickConfig {
    /// Reads and checks the variables.
    pub fn read(environment: &Environment<'_>) -> Result<Self, WrongVariable> {
        Ok(Self { budget: Duration::from_secs(environment.number("TICK_SECONDS", 40, 0, 840)?) })
    }
}

/// What the dispatcher is configured with besides.
#[derive(Clone, Copy, Debug)]
pub struct DispatchConfig {
    /// `DISPATCH_SHIFT_SECONDS`: how long a dispatcher takes new tasks; 0: a single pass.
    pub shift: Duration,
    /// `DISPATCH_CONCURRENCY`: tasks that one dispatcher runs at once.
    pub concurrency: usize,
}

impl DispatchConfig {
    /// Reads and checks the variables.
    pub fn read(environment: &Environment<'_>) -> Result<Self, WrongVariable> {
        let concurrency = environment.number("DISPATCH_CONCURRENCY", 32, 1, 1_000)?;
        Ok(Self {
            shift: Duration::from_secs(environment.number("DISPATCH_SHIFT_SECONDS", 60, 0, 240)?),
            concurrency: usize::try_from(concurrency).expect("the limit is far below"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Config, WrongVariable> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::read(&Environment(&lookup))
    }

    const STORES: [(&str, &str); 2] = [("TABLE_NAME", "tasks"), ("REDIS_URL", "redis://localhost:1")];

    #[test]
    fn defaults_are_those_of_the_design() {
        let config = read(&STORES).expect("valid");
        assert_eq!(config.window_ms, 300_000);
        assert_eq!((config.index_shards, config.queue_partitions), (16, 1));
        assert_eq!(config.lease_ms, 30_000);
        assert_eq!(config.retention_ms, 604_800_000);
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for (name, value) in [
            ("TABLE_NAME", " "),
            ("REDIS_URL", ""),
            ("REDIS_URL", "nonsense"),
            ("WINDOW_SECONDS", "5 minutes"),
            ("INDEX_SHARDS", "0"),
            ("QUEUE_PARTITIONS", "-1"),
            ("LEASE_SECONDS", "43201"),
            ("REDIS_CLUSTER", "yes"),
        ] {
            let mut variables = vec![(name, value)];
            variables.extend(STORES);
            assert_eq!(read(&variables).expect_err(name).name, name);
        }
    }

    #[test]
    fn what_is_logged_is_a_level_or_pairs_and_else_refused_by_name() {
        for text in ["info", "warn,dynoxide=error", "off", " DEBUG "] {
            assert!(Environment(&|_| Some(text.to_owned())).log_filter("info").is_ok(), "{text}");
        }
        assert!(Environment(&|_| None).log_filter("info").is_ok());
        let wrong = Environment(&|_| Some("info,core=loud".to_owned())).log_filter("info").expect_err("refused");
        assert_eq!(wrong.name, "RUST_LOG");
    }
}
