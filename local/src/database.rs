//! The embedded DynamoDB: one file, which the SDK reaches within the process, and others over HTTP if they are to.

use std::fs::{File, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use dynoxide::Database;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tracing::{debug, error};

use crate::in_process::InProcess;

/// Items that have expired are removed this often.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Requests that are under way at the end get this long.
const STOP_WITHIN: Duration = Duration::from_secs(1);
/// Threads that do the file's input and output.
const THREADS: usize = 2;

/// The database could not be opened or offered.
#[derive(Debug, Error)]
pub enum DatabaseError {
    /// The data directory cannot be used.
    #[error("the data directory {}: {source}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another runner uses the data directory.
    #[error("the data directory {} is in use by another runner: stop it, or name another one with --data-dir", .0.display())]
    InUse(PathBuf),
    /// The file is not a database, or damaged.
    #[error("the database {}: {reason}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The address cannot be listened on.
    #[error("DynamoDB cannot listen on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The system gives no threads.
    #[error("DynamoDB: {0}")]
    Threads(io::Error),
}

/// An open database.
pub struct EmbeddedDatabase {
    database: Database,
    client: Client,
    server: Option<Server>,
    /// Kept open: the lock is the open file's, so it ends with the process however that ends.
    _lock: File,
}

/// What offers the database to others.
struct Server {
    address: SocketAddr,
    /// Its own threads: writing to the disk must not hold up a poll that waits for its moment.
    threads: Option<Runtime>,
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl EmbeddedDatabase {
    /// Opens the database in `directory`, which is made where it is missing, and serves it on `listen`, if that is given.
    pub async fn open(directory: &Path, listen: Option<&str>) -> Result<Self, DatabaseError> {
        let lock = lock(directory)?;
        let file = directory.join("dynamodb.sqlite3");
        let unusable = |reason: String| DatabaseError::File { path: file.clone(), reason };
        let path = file.to_str().ok_or_else(|| unusable("its path must be UTF-8".to_owned()))?;
        let database = Database::new(path).map_err(|error| unusable(error.to_string()))?;
        let server = match listen {
            Some(address) => Some(Server::start(address, database.clone())?),
            None => {
                // SQLite then leaves it to us to bring its log to the disk, which one flush does for many commits.
                database.disable_bulk_loading().map_err(|error| unusable(error.to_string()))?;
                None
            }
        };
        let log = PathBuf::from(format!("{path}-wal"));
        let in_process = InProcess::new(database.clone(), Some(log)).map_err(DatabaseError::Threads)?;
        let client = in_process.client().await;
        Ok(Self { database, client, server, _lock: lock })
    }

    /// The SDK's client of it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Where others find it, if it is served.
    pub fn endpoint(&self) -> Option<String> {
        self.server.as_ref().map(|server| format!("http://{}", server.address))
    }

    /// The database itself, for tests that look behind the SDK.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Removes what has expired, by the machine's clock, again and again.
    pub async fn sweep(database: Database) {
        let mut minute = interval(SWEEP_EVERY);
        loop {
            minute.tick().await;
            let database = database.clone();
            match tokio::task::spawn_blocking(move || database.sweep_ttl()).await {
                Ok(Ok(removed)) => debug!(removed, "expired items are removed"),
                Ok(Err(error)) => error!(%error, "expired items were not removed"),
                Err(error) => error!(%error, "expired items were not removed"),
            }
        }
    }

    /// Lets running requests finish, and closes the file.
    pub async fn stop(self) {
        if let Some(server) = self.server {
            server.stop().await;
        }
    }
}

impl Server {
    fn start(address: &str, database: Database) -> Result<Self, DatabaseError> {
        let (listener, address) = bind(address)?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("dynamodb-http")
            .enable_all()
            .build()
            .map_err(DatabaseError::Threads)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = threads.spawn(serve(listener, database, stopped));
        Ok(Self { address, threads: Some(threads), task, stop })
    }

    async fn stop(mut self) {
        let (stop, _) = oneshot::channel();
        drop(std::mem::replace(&mut self.stop, stop));
        if timeout(STOP_WITHIN, &mut self.task).await.is_err() {
            debug!("DynamoDB was stopped in the middle of a request");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A runtime must not wait for its threads within another one.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

fn lock(directory: &Path) -> Result<File, DatabaseError> {
    let wrong = |source| DatabaseError::Directory { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(wrong)?;
    let file = File::create(directory.join("lock")).map_err(wrong)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(DatabaseError::InUse(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(wrong(source)),
    }
}

fn bind(address: &str) -> Result<(TcpListener, SocketAddr), DatabaseError> {
    let bound = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    bound.map_err(|source| DatabaseError::Listen { address: address.to_owned(), source })
}

async fn serve(listener: TcpListener, database: Database, stopped: oneshot::Receiver<()>) {
    let served = async {
        let listener = tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let stopped = async {
            // An error is the sign, too: the sender is dropped.
            let _ = stopped.await;
        };
        dynoxide::server::serve_with_shutdown(listener, database, stopped).await
    };
    if let Err(error) = served.await {
        error!(error, "DynamoDB is not served any more");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_data_directory_has_one_runner_at_a_time() {
        let parent = tempfile::tempdir().expect("a folder");
        let directory = parent.path().join("new/data");
        let first = EmbeddedDatabase::open(&directory, None).await.expect("the first");
        let second = EmbeddedDatabase::open(&directory, None).await.err().expect("refused");
        assert!(second.to_string().contains("in use by another runner"), "{second}");
        first.stop().await;
        assert!(EmbeddedDatabase::open(&directory, None).await.is_ok());
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        let parent = tempfile::tempdir().expect("a folder");
        std::fs::write(parent.path().join("file"), "x").expect("written");
        let error = EmbeddedDatabase::open(&parent.path().join("file"), None).await.err().expect("refused");
        assert!(error.to_string().starts_with("the data directory "), "{error}");
        let opened = EmbeddedDatabase::open(&parent.path().join("data"), Some("nowhere")).await;
        let error = opened.err().expect("refused");
        assert!(error.to_string().starts_with("DynamoDB cannot listen on nowhere"), "{error}");
    }
}
