//! The connection to Redis: opened when first needed, bounded in time, opened anew after a failure.

use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::warn;

/// Opening a connection may take this long.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);
/// A silent Redis is a Redis that is down after this.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1_000);
/// After a failure nobody knocks again for this long, so that a Redis that comes back is not trampled.
pub(super) const REST_AFTER_FAILURE: Duration = Duration::from_millis(300);

/// Redis could not be used.
#[derive(Debug, Error)]
pub enum Down {
    /// The last try failed a moment ago.
    #[error("Redis failed a moment ago and is left alone")]
    Resting,
    /// Redis did not answer in time.
    #[error("Redis did not answer within {} ms", .0.as_millis())]
    Silent(Duration),
    /// Redis refused, or its connection broke.
    #[error("Redis: {0}")]
    Failed(#[from] RedisError),
    /// Redis answered what no script of ours returns.
    #[error("Redis answered something unexpected to {0}")]
    Unexpected(&'static str),
}

/// A Lua script with its hash.
pub struct Script {
    /// Its name, for messages.
    pub name: &'static str,
    text: &'static str,
    hash: LazyLock<String>,
}

impl Script {
    /// Names a script.
    pub const fn new(name: &'static str, text: &'static str, hash: fn() -> String) -> Self {
        Self { name, text, hash: LazyLock::new(hash) }
    }
}

/// One command to send.
pub enum Call {
    /// A plain command.
    Plain(Cmd),
    /// A script, by its hash first and by its text where Redis has forgotten it.
    Script {
        /// The script.
        script: &'static Script,
        /// Its KEYS.
        keys: Vec<String>,
        /// Its ARGV.
        arguments: Vec<String>,
    },
}

impl Call {
    /// The keys that it is about; of a plain command only the first.
    pub(super) fn keys(&self) -> Vec<String> {
        match self {
            Call::Plain(command) => match command.args_iter().nth(1) {
                Some(redis::Arg::Simple(key)) => vec![String::from_utf8_lossy(key).into_owned()],
                _ => Vec::new(),
            },
            Call::Script { keys, .. } => keys.clone(),
        }
    }

    fn command(&self, by_text: bool) -> Cmd {
        match self {
            Call::Plain(command) => command.clone(),
            Call::Script { script, keys, arguments } => {
                let mut command = if by_text {
                    let mut command = redis::cmd("EVAL");
                    command.arg(script.text);
                    command
                } else {
                    let mut command = redis::cmd("EVALSHA");
                    command.arg(script.hash.as_str());
                    command
                };
                command.arg(keys.len()).arg(keys).arg(arguments);
                command
            }
        }
    }
}

#[derive(Clone)]
enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Connection {
    /// Sends all commands at once and awaits all answers.
    async fn send(&mut self, mut commands: Vec<Cmd>) -> RedisResult<Vec<RedisResult<Value>>> {
        match self {
            Connection::Single(connection) => {
                let mut pipeline = redis::Pipeline::with_capacity(commands.len());
                for command in commands {
                    pipeline.add_command(command);
                }
                pipeline.ignore_errors().query_async(connection).await
            }
            // A cluster's pipeline must stay in one slot, so the commands go side by side instead; but what tells of
            // the others goes after them, since one node does not wait for another.
            Connection::Cluster(connection) => {
                let news = commands.iter().position(is_publish).unwrap_or(commands.len());
                let news = commands.split_off(news);
                let mut answers = send_side_by_side(connection, commands).await;
                answers.extend(send_side_by_side(connection, news).await);
                Ok(answers)
            }
        }
    }
}

async fn send_side_by_side(connection: &ClusterConnection, commands: Vec<Cmd>) -> Vec<RedisResult<Value>> {
    let sent = commands.into_iter().map(|command| {
        let mut connection = connection.clone();
        // A node's refusal comes as a value here.
        async move { connection.req_packed_command(&command).await.and_then(Value::extract_error) }
    });
    futures::future::join_all(sent).await
}

fn is_publish(command: &Cmd) -> bool {
    command.args_iter().next() == Some(redis::Arg::Simple(b"PUBLISH"))
}

#[expect(clippy::large_enum_variant, reason = "a process has one of them")]
enum Target {
    Single(Client),
    Cluster(ClusterClient),
}

#[derive(Default)]
struct State {
    connection: Option<Connection>,
    /// Counts connections, so that a failure of an old one does not close a new one.
    generation: u64,
    rest_until: Option<Instant>,
}

/// The connection to Redis, shared by everyone in the process.
pub struct Link {
    target: Target,
    state: Mutex<State>,
}

impl Link {
    /// A link to `urls`, a cluster when there are several or `cluster` says so. Connects to nothing yet.
    pub fn new(urls: &[String], cluster: bool) -> RedisResult<Self> {
        let target = if cluster || urls.len() > 1 {
            let client = ClusterClient::builder(urls.iter().map(String::as_str))
                .connection_timeout(CONNECT_TIMEOUT)
                .response_timeout(RESPONSE_TIMEOUT)
                .retries(3)
                .build()?;
            Target::Cluster(client)
        } else {
            let url = urls.first().map(String::as_str).unwrap_or_default();
            Target::Single(Client::open(url)?)
        };
        Ok(Self { target, state: Mutex::default() })
    }

    /// Sends `calls` in one round trip and returns their answers. A broken connection is replaced and the calls
    /// sent once more: each of them may be repeated.
    pub async fn send(&self, calls: &[Call]) -> Result<Vec<Value>, Down> {
        match self.send_once(calls).await {
            Err(Down::Failed(error)) if error.is_connection_dropped() || is_read_only(&error) => {
                match self.send_once(calls).await {
                    // The first failure is the one that tells why.
                    Err(Down::Resting) => Err(Down::Failed(error)),
                    answer => answer,
                }
            }
            answer => answer,
        }
    }

    async fn send_once(&self, calls: &[Call]) -> Result<Vec<Value>, Down> {
        let (mut connection, generation) = self.connection().await?;
        let commands = calls.iter().map(|call| call.command(false)).collect();
        let mut answers = self.bounded(generation, connection.send(commands)).await?;
        let forgotten: Vec<usize> = (0..answers.len()).filter(|i| is_forgotten(&answers[*i])).collect();
        if !forgotten.is_empty() {
            let commands = forgotten.iter().map(|i| calls[*i].command(true)).collect();
            let again = self.bounded(generation, connection.send(commands)).await?;
            for (i, answer) in forgotten.into_iter().zip(again) {
                answers[i] = answer;
            }
        }
        let failed = answers.iter().find_map(|answer| answer.as_ref().err());
        if let Some(error) = failed
            && needs_new_connection(error)
        {
            self.close(generation, !is_read_only(error)).await;
        }
        answers.into_iter().collect::<RedisResult<Vec<Value>>>().map_err(Down::Failed)
    }

    async fn connection(&self) -> Result<(Connection, u64), Down> {
        let mut state = self.state.lock().await;
        if let Some(connection) = &state.connection {
            return Ok((connection.clone(), state.generation));
        }
        if state.rest_until.is_some_and(|until| Instant::now() < until) {
            return Err(Down::Resting);
        }
        // Others wait for the lock meanwhile: one process opens one connection at a time.
        let opened = tokio::time::timeout(CONNECT_TIMEOUT, self.open()).await;
        let failure = match opened {
            Ok(Ok(connection)) => {
                state.generation += 1;
                state.connection = Some(connection.clone());
                return Ok((connection, state.generation));
            }
            Ok(Err(error)) => Down::Failed(error),
            Err(_) => Down::Silent(CONNECT_TIMEOUT),
        };
        state.rest_until = Some(Instant::now() + REST_AFTER_FAILURE);
        warn!(%failure, "Redis is not reached");
        Err(failure)
    }

    async fn open(&self) -> RedisResult<Connection> {
        match &self.target {
            Target::Single(client) => {
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(CONNECT_TIMEOUT))
                    .set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
                Ok(Connection::Single(connection))
            }
            Target::Cluster(client) => Ok(Connection::Cluster(client.get_async_connection().await?)),
        }
    }

    async fn bounded<T>(&self, generation: u64, answer: impl Future<Output = RedisResult<T>>) -> Result<T, Down> {
        match tokio::time::timeout(RESPONSE_TIMEOUT, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if needs_new_connection(&error) {
                    // A dropped connection is the usual sign of a restart: the next call may knock at once.
                    self.close(generation, !error.is_connection_dropped()).await;
                }
                Err(Down::Failed(error))
            }
            Err(_) => {
                self.close(generation, true).await;
                Err(Down::Silent(RESPONSE_TIMEOUT))
            }
        }
    }

    async fn close(&self, generation: u64, rest: bool) {
        let mut state = self.state.lock().await;
        if state.generation == generation {
            state.connection = None;
            if rest {
                state.rest_until = Some(Instant::now() + REST_AFTER_FAILURE);
            }
        }
    }
}

fn is_forgotten(answer: &RedisResult<Value>) -> bool {
    matches!(answer, Err(e) if e.kind() == ErrorKind::Server(ServerErrorKind::NoScript))
}

/// A node that answers READONLY was a master before a failover: the name leads to the new one when asked again.
fn is_read_only(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

fn needs_new_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_connection_dropped()
        || error.is_timeout()
        || is_read_only(error)
        || matches!(
            error.kind(),
            ErrorKind::ClusterConnectionNotFound
                | ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown)
        )
}
