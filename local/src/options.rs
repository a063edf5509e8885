//! How a runner is started, and where its functions' variables come from.

use std::collections::HashMap;
use std::path::PathBuf;

use punctual_core::time::Timestamp;

use crate::template::Variables;

/// The table's name when `TABLE_NAME` gives none.
pub const TABLE_NAME: &str = "punctual-tasks";

/// How a runner is started.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0: a free one.
    pub listen: String,
    /// Where it keeps its data.
    pub data_dir: PathBuf,
    /// A Redis to use; `None`: one of its own.
    pub redis_url: Option<String>,
    /// Where it offers its DynamoDB to others.
    pub dynamodb_listen: Option<String>,
    /// Time stands still here and moves only when told; `None`: the machine's clock.
    pub manual_clock: Option<Timestamp>,
    /// Whether ticks run by themselves.
    pub ticks: bool,
    /// The environment variables.
    pub variables: HashMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:3000".to_owned(),
            data_dir: PathBuf::from(".punctual"),
            redis_url: None,
            dynamodb_listen: None,
            manual_clock: None,
            ticks: true,
            variables: HashMap::new(),
        }
    }
}

impl Options {
    /// A variable, trimmed; `None` when it is unset or blank.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }
}

/// Where the functions' variables come from.
pub(crate) struct Given<'a> {
    /// The process.
    pub options: &'a Options,
    /// The Redis in use.
    pub redis_url: &'a str,
    /// Whether it is the runner's own.
    pub has_own_redis: bool,
}

impl Given<'_> {
    /// A variable of a function: only those that the template declares for it, as in the cloud.
    pub fn variable(&self, declared: &Variables, name: &str) -> Option<String> {
        let default = declared.get(name)?;
        let fallback = (name == "TABLE_NAME").then_some(TABLE_NAME);
        match name {
            "REDIS_URL" => Some(self.redis_url.to_owned()),
            "REDIS_CLUSTER" if self.has_own_redis => Some("false".to_owned()),
            _ => self.options.variable(name).or(default.as_deref()).or(fallback).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_comes_from_the_process_then_the_template_then_the_runner_and_only_if_it_is_declared() {
        let text = |value: &str| Some(value.to_owned());
        let declared = Variables::from([
            ("WINDOW_SECONDS".to_owned(), text("300")),
            ("LEASE_SECONDS".to_owned(), text("30")),
            ("RETENTION_SECONDS".to_owned(), text("5")),
            ("TABLE_NAME".to_owned(), None),
            ("REDIS_URL".to_owned(), None),
            ("REDIS_CLUSTER".to_owned(), None),
        ]);
        let process = [("LEASE_SECONDS", "7"), ("RETENTION_SECONDS", " "), ("REDIS_CLUSTER", "true"), ("OTHER", "1")];
        let variables = process.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let options = Options { variables, ..Options::default() };
        let mut given = Given { options: &options, redis_url: "redis://here", has_own_redis: false };
        for (name, wanted) in [
            ("WINDOW_SECONDS", Some("300")),
            ("LEASE_SECONDS", Some("7")),
            ("RETENTION_SECONDS", Some("5")),
            ("TABLE_NAME", Some(TABLE_NAME)),
            ("REDIS_URL", Some("redis://here")),
            ("REDIS_CLUSTER", Some("true")),
            ("OTHER", None),
        ] {
            assert_eq!(given.variable(&declared, name).as_deref(), wanted, "{name}");
        }
        given.has_own_redis = true;
        assert_eq!(given.variable(&declared, "REDIS_CLUSTER").as_deref(), Some("false"));
    }
}
