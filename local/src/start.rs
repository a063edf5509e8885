//! Starting and stopping everything, in the right order.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Region;
use punctual_core::clock::{Clock, ManualClock};
use punctual_core::config::{Config, Environment, WrongVariable};
use punctual_core::service::{BatchWrites, Service};
use punctual_core::table::{connect, connect_to};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket, lookup_host};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tracing::debug;

use crate::database::{DatabaseError, EmbeddedDatabase};
use crate::functions::{Function, FunctionError, function};
use crate::key::{API_KEY, ApiKey};
use crate::options::{Given, Options};
use crate::redis_server::{RedisServer, RedisServerError};
use crate::routes::Routes;
use crate::server::{App, serve};
use crate::table::{self, TableError};
use crate::template::{Template, TemplateError};
use crate::ticks::Ticks;

/// The variable that names a DynamoDB outside this process.
const ENDPOINT: &str = "AWS_ENDPOINT_URL_DYNAMODB";
/// Any of these: the process has credentials, which the endpoint may want.
const CREDENTIALS: [&str; 5] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];
/// Writes of batches that the embedded DynamoDB has in hand at once. More bring no more tasks a second; fewer leave it
/// waiting for the disk.
const BATCH_WRITES: u16 = 16;
/// Connections that may wait for being accepted.
const BACKLOG: u32 = 1_024;

/// Why a runner does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// A variable is wrong.
    #[error(transparent)]
    Variable(#[from] WrongVariable),
    /// A function cannot be configured.
    #[error(transparent)]
    Function(#[from] FunctionError),
    /// The template is wrong.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// There are two places for the data.
    #[error("--dynamodb-listen offers the embedded DynamoDB, which {ENDPOINT} replaces: leave one of them out")]
    TwoDatabases,
    /// The embedded DynamoDB.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The own Redis.
    #[error(transparent)]
    Redis(#[from] RedisServerError),
    /// The table at an endpoint.
    #[error("{endpoint}: {source}")]
    Table {
        /// The endpoint.
        endpoint: String,
        /// Why.
        source: TableError,
    },
}

/// A runner that serves.
pub struct Running {
    /// Where it listens.
    pub address: SocketAddr,
    /// The service behind its functions.
    pub service: Arc<Service>,
    /// The service's clock.
    pub clock: Clock,
    /// Where others find its DynamoDB; `None`: within this process.
    pub dynamodb_endpoint: Option<String>,
    /// Its Redis.
    pub redis_url: String,
    /// Whether callers need a key.
    pub needs_key: bool,
    database: Option<EmbeddedDatabase>,
    redis: Option<RedisServer>,
    background: JoinSet<()>,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
}

/// Starts a runner. When this returns it can be called.
pub async fn start(options: Options) -> Result<Running, StartError> {
    let template = Template::embedded()?;
    let key = ApiKey::read(options.variables.get(API_KEY).map(String::as_str))?;
    let socket = bind(&options.listen).await?;
    let (database, client, dynamodb_endpoint) = open_database(&options).await?;
    let given_url = options.redis_url.as_deref().or_else(|| options.variable("REDIS_URL"));
    let redis = if given_url.is_none() { Some(RedisServer::start().await?) } else { None };
    let redis_url = redis.as_ref().map_or(given_url.unwrap_or_default(), RedisServer::url).to_owned();
    let given = Given { options: &options, redis_url: &redis_url, has_own_redis: redis.is_some() };

    let config = Config::read(&Environment(&|name| given.variable(&template.globals, name)))?;
    let (mut routes, mut tick_calls, mut schedules) = (Routes::default(), BTreeMap::new(), Vec::new());
    for definition in template.functions {
        let environment = |name: &str| given.variable(&definition.variables, name);
        match function(&definition.name, &Environment(&environment)).await? {
            Some(Function::Api(call)) => {
                for route in definition.routes {
                    routes.add(&route.method, &route.path, (definition.name.clone(), call.clone()));
                }
            }
            Some(Function::Tick(call)) => {
                schedules.extend(definition.schedules.iter().map(|period| (definition.name.clone(), *period)));
                tick_calls.insert(definition.name, call);
            }
            None => debug!(function = definition.name, "not served here"),
        }
    }

    table::ensure(&client, &config.table_name, &template.table).await.map_err(|source| StartError::Table {
        endpoint: dynamodb_endpoint.clone().unwrap_or_else(|| "the embedded DynamoDB".to_owned()),
        source,
    })?;
    let clock = options.manual_clock.map_or(Clock::System, |start| Clock::Manual(ManualClock::new(start)));
    let mut service = Service::new(client, clock.clone(), config)?;
    if database.is_some() {
        service.batch_writes = BatchWrites::new(BATCH_WRITES);
    }
    let service = Arc::new(service);
    let ticks = Ticks::new(service.clone(), tick_calls);
    if options.ticks {
        // What was due while nobody ran is at hand before the first poll.
        ticks.reload().await;
    }
    let mut background = JoinSet::new();
    if matches!(clock, Clock::System) {
        // By a clock that stands still, nothing expires and nothing is due each minute.
        if let Some(database) = &database {
            background.spawn(EmbeddedDatabase::sweep(database.database().clone()));
        }
        if options.ticks {
            for (name, period) in schedules {
                background.spawn(ticks.clone().run_by_schedule(name, period));
            }
            if let Some(redis) = &redis {
                background.spawn(ticks.clone().reload_on(redis.restarted()));
            }
        }
    }

    let (listener, address) = listen(socket, &options.listen)?;
    let (stop, stopping) = watch::channel(false);
    let needs_key = key.is_some();
    let app = App { service: service.clone(), clock: clock.clone(), routes, ticks, key, address, stopping };
    let server = tokio::spawn(serve(listener, Arc::new(app)));
    Ok(Running {
        address,
        service,
        clock,
        dynamodb_endpoint,
        redis_url,
        needs_key,
        database,
        redis,
        background,
        stop,
        server,
    })
}

impl Running {
    /// The embedded DynamoDB, for tests that look behind the SDK.
    pub fn database(&self) -> Option<&dynoxide::Database> {
        self.database.as_ref().map(EmbeddedDatabase::database)
    }

    /// Whether the Redis is the runner's own.
    pub fn has_own_redis(&self) -> bool {
        self.redis.is_some()
    }

    /// Accepts no more calls, lets running ones finish for some seconds, and ends what was started.
    pub async fn stop(mut self) {
        self.background.shutdown().await;
        self.stop.send_replace(true);
        if let Err(error) = self.server.await {
            debug!(%error, "the server had ended already");
        }
        if let Some(database) = self.database {
            database.stop().await;
        }
        if let Some(redis) = self.redis {
            redis.stop().await;
        }
    }
}

/// Takes the address but does not listen yet: who connects before everything runs is refused, not left waiting.
async fn bind(address: &str) -> Result<TcpSocket, StartError> {
    let bound = async {
        let mut last = io::Error::new(io::ErrorKind::InvalidInput, "the name has no address");
        for address in lookup_host(address).await? {
            let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            // A runner that follows another one at once finds the port still marked.
            socket.set_reuseaddr(true)?;
            match socket.bind(address) {
                Ok(()) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    bound.await.map_err(|source| StartError::Listen { address: address.to_owned(), source })
}

fn listen(socket: TcpSocket, address: &str) -> Result<(TcpListener, SocketAddr), StartError> {
    let listening = socket.listen(BACKLOG).and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    listening.map_err(|source| StartError::Listen { address: address.to_owned(), source })
}

async fn open_database(options: &Options) -> Result<(Option<EmbeddedDatabase>, Client, Option<String>), StartError> {
    let Some(endpoint) = options.variable(ENDPOINT) else {
        let database = EmbeddedDatabase::open(&options.data_dir, options.dynamodb_listen.as_deref()).await?;
        let (client, endpoint) = (database.client(), database.endpoint());
        return Ok((Some(database), client, endpoint));
    };
    if options.dynamodb_listen.is_some() {
        return Err(StartError::TwoDatabases);
    }
    Ok((None, connect_outside(options, endpoint).await, Some(endpoint.to_owned())))
}

/// A client of an endpoint that may be an emulator, which takes any credentials and any region, or the real one.
async fn connect_outside(options: &Options, endpoint: &str) -> Client {
    let has_credentials = CREDENTIALS.iter().any(|name| options.variable(name).is_some());
    let client = if has_credentials { connect().await } else { connect_to(endpoint).await };
    let config = client.config();
    let named = options.variable("AWS_REGION").or_else(|| options.variable("AWS_DEFAULT_REGION"));
    let region = named.map(|name| Region::new(name.to_owned())).or_else(|| config.region().cloned());
    let region = region.unwrap_or(Region::from_static("us-east-1"));
    Client::from_conf(config.to_builder().region(region).endpoint_url(endpoint).build())
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_core::time::Timestamp;

    #[tokio::test]
    async fn a_runner_starts_serves_and_leaves_nothing_behind() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let folder = tempfile::tempdir().expect("a folder");
        let options = || Options {
            listen: "127.0.0.1:0".to_owned(),
            data_dir: folder.path().to_owned(),
            manual_clock: Some(Timestamp::from_ms(1_800_000_000_000)),
            ..Options::default()
        };
        for _ in 0..2 {
            let running = start(options()).await.expect("a runner");
            let mut stream = tokio::net::TcpStream::connect(running.address).await.expect("a connection");
            stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert!(answer.ends_with("\"dynamodb\":\"ok\",\"redis\":\"ok\"}}"), "{answer}");
            let (address, redis_url) = (running.address, running.redis_url.clone());
            running.stop().await;
            assert!(tokio::net::TcpStream::connect(address).await.is_err());
            assert!(!std::path::Path::new(redis_url.trim_start_matches("redis+unix://")).exists());
        }
    }
}
