//! The embedded DynamoDB: one file, served to the real SDK over HTTP.

use std::fs::{File, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dynoxide::Database;
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tracing::{debug, error};

/// Where the database listens when nobody else is to use it.
const PRIVATE: &str = "127.0.0.1:0";
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

/// A database that is served.
pub struct EmbeddedDatabase {
    address: SocketAddr,
    database: Database,
    /// Its own threads: writing to the disk must not hold up a poll that waits for its moment.
    threads: Option<Runtime>,
    server: JoinHandle<()>,
    stop: oneshot::Sender<()>,
    /// Kept open: the lock is the open file's, so it ends with the process however that ends.
    _lock: File,
}

impl EmbeddedDatabase {
    /// Opens the database in `directory`, which is made where it is missing, and serves it on `listen`.
    pub fn open(directory: &Path, listen: Option<&str>) -> Result<Self, DatabaseError> {
        let lock = lock(directory)?;
        let file = directory.join("dynamodb.sqlite3");
        let unusable = |reason: String| DatabaseError::File { path: file.clone(), reason };
        let path = file.to_str().ok_or_else(|| unusable("its path must be UTF-8".to_owned()))?;
        let database = Database::new(path).map_err(|error| unusable(error.to_string()))?;
        let (listener, address) = bind(listen.unwrap_or(PRIVATE))?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("dynamodb")
            .enable_all()
            .build()
            .map_err(DatabaseError::Threads)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let server = threads.spawn(serve(listener, database.clone(), stopped));
        Ok(Self { address, database, threads: Some(threads), server, stop, _lock: lock })
    }

    /// Where the SDK finds it.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
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
    pub async fn stop(mut self) {
        let (stop, _) = oneshot::channel();
        drop(std::mem::replace(&mut self.stop, stop));
        if timeout(STOP_WITHIN, &mut self.server).await.is_err() {
            debug!("DynamoDB was stopped in the middle of a request");
        }
    }
}

impl Drop for EmbeddedDatabase {
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
        let first = EmbeddedDatabase::open(&directory, None).expect("the first");
        let second = EmbeddedDatabase::open(&directory, None).err().expect("refused");
        assert!(second.to_string().contains("in use by another runner"), "{second}");
        first.stop().await;
        assert!(EmbeddedDatabase::open(&directory, None).is_ok());
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_said() {
        let parent = tempfile::tempdir().expect("a folder");
        std::fs::write(parent.path().join("file"), "x").expect("written");
        let error = EmbeddedDatabase::open(&parent.path().join("file"), None).err().expect("refused");
        assert!(error.to_string().starts_with("the data directory "), "{error}");
        let error = EmbeddedDatabase::open(&parent.path().join("data"), Some("nowhere")).err().expect("refused");
        assert!(error.to_string().starts_with("DynamoDB cannot listen on nowhere"), "{error}");
    }
}
