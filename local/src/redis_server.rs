//! A redis-server of the runner's own, on a unix socket in a private folder.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};

/// A server answers within this after its start, or it never will.
const START_WITHIN: Duration = Duration::from_secs(10);
/// The pause between two knocks at a server that starts.
const KNOCK_AGAIN: Duration = Duration::from_millis(5);
/// The pause before a server that died is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(200);
/// A server that is told to end is gone within this.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// The longest path that every system takes for a unix socket.
const LONGEST_SOCKET_PATH: usize = 100;

/// Runs redis-server. This shell is the child; it ends with the server. When its standard input ends, which is a pipe
/// that only the runner holds, the runner is gone in whatever way: then it takes the server and the folder with it.
/// A line on its standard input ends the server and keeps the folder.
const WATCHDOG: &str = r#"
exec 3<&0 </dev/null
folder=$1; shift
redis-server "$@" 3<&- & server=$!
{ read -r _ <&3 || rm -rf "$folder"; kill -9 "$server"; } & watcher=$!
exec 3<&-
wait "$server"
kill "$watcher"
"#;

/// The shell that runs a server.
struct Shell {
    child: Child,
    /// The watchdog's pipe. Apart from the child, because waiting for the child would close it.
    input: ChildStdin,
}

/// redis-server could not be started.
#[derive(Debug, Error)]
pub enum RedisServerError {
    /// It is not installed.
    #[error(
        "redis-server is not installed. Install it with `apt-get install redis-server` (Debian, Ubuntu) or `brew \
         install redis` (macOS), or name a Redis with --redis-url"
    )]
    Missing,
    /// It, its folder or its shell could not be made.
    #[error("redis-server: {0}")]
    Start(#[from] io::Error),
    /// It ended or kept silent; with what it logged.
    #[error("redis-server does not answer: {0}")]
    Silent(String),
}

/// A redis-server. It is started again when it dies, and ends with this value, or with the process.
pub struct RedisServer {
    url: String,
    restarted: Arc<Notify>,
    stop: oneshot::Sender<()>,
    supervisor: JoinHandle<()>,
}

impl RedisServer {
    /// Starts an empty server and waits until it answers.
    pub async fn start() -> Result<Self, RedisServerError> {
        let version = Command::new("redis-server").arg("--version").stdin(Stdio::null()).output().await;
        if version.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(RedisServerError::Missing);
        }
        let folder = private_folder()?;
        let shell = launch(folder.path()).await?;
        let url = format!("redis+unix://{}", socket(folder.path()).display());
        let restarted = Arc::new(Notify::new());
        let (stop, stopped) = oneshot::channel();
        let supervisor = tokio::spawn(supervise(folder, shell, restarted.clone(), stopped));
        Ok(Self { url, restarted, stop, supervisor })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Is told of each new start, after which the server is empty.
    pub fn restarted(&self) -> Arc<Notify> {
        self.restarted.clone()
    }

    /// Ends the server and removes its folder.
    pub async fn stop(self) {
        drop(self.stop);
        // It can only fail by a panic, which is on standard error already.
        let _ = self.supervisor.await;
    }
}

fn private_folder() -> io::Result<TempDir> {
    let usual = std::env::temp_dir();
    let fits = socket(&usual.join("punctual-123456")).as_os_str().len() <= LONGEST_SOCKET_PATH;
    let parent = if fits { usual } else { PathBuf::from("/tmp") };
    tempfile::Builder::new().prefix("punctual-").tempdir_in(parent)
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("redis.sock")
}

async fn launch(folder: &Path) -> Result<Shell, RedisServerError> {
    let log = folder.join("redis.log");
    let mut child = Command::new("sh")
        .args(["-c", WATCHDOG, "punctual-redis"])
        .arg(folder)
        .args(["--port", "0", "--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--unixsocket")
        .arg(socket(folder))
        .arg("--dir")
        .arg(folder)
        .arg("--logfile")
        .arg(&log)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C in the terminal is for the runner, which ends the server after its last request.
        .process_group(0)
        .spawn()?;
    let input = child.stdin.take().ok_or_else(|| io::Error::other("no pipe to the shell"))?;
    let deadline = Instant::now() + START_WITHIN;
    while !answers(&socket(folder)).await {
        let ended = child.try_wait()?.is_some();
        if ended || Instant::now() > deadline {
            let log = std::fs::read_to_string(&log).unwrap_or_default();
            let last = log.lines().rev().take(5).collect::<Vec<_>>();
            return Err(RedisServerError::Silent(last.into_iter().rev().collect::<Vec<_>>().join("\n")));
        }
        sleep(KNOCK_AGAIN).await;
    }
    Ok(Shell { child, input })
}

async fn answers(socket: &Path) -> bool {
    let ping = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(b"PING\r\n").await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        Ok::<_, io::Error>(&answer == b"+PONG")
    };
    timeout(Duration::from_secs(1), ping).await.is_ok_and(|answer| answer.unwrap_or(false))
}

/// Starts the server again whenever it dies, until `stopped` is dropped by the other side.
async fn supervise(folder: TempDir, mut shell: Shell, restarted: Arc<Notify>, mut stopped: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            ended = shell.child.wait() => warn!(?ended, "redis-server ended: starting it again"),
        }
        // Only the shell may have died: what it leaves must end before another server takes the socket.
        let _ = shell.input.write_all(b"\n").await;
        let relaunch = async {
            loop {
                sleep(RESTART_PAUSE).await;
                // Cleaners of temporary folders take it away at times.
                if let Err(error) = DirBuilder::new().recursive(true).mode(0o700).create(folder.path()) {
                    error!(%error, "redis-server's folder is gone and was not made again");
                }
                match launch(folder.path()).await {
                    Ok(shell) => return shell,
                    Err(error) => error!(%error, "redis-server was not started again"),
                }
            }
        };
        shell = tokio::select! {
            _ = &mut stopped => break,
            shell = relaunch => shell,
        };
        info!("redis-server runs again, empty");
        restarted.notify_one();
    }
    drop(shell.input);
    if timeout(STOP_WITHIN, shell.child.wait()).await.is_err() {
        warn!("redis-server does not end");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_dies_is_started_again_and_one_that_is_stopped_leaves_nothing() {
        let server = RedisServer::start().await.expect("a server");
        let socket = PathBuf::from(server.url().strip_prefix("redis+unix://").expect("a socket"));
        let restarted = server.restarted();
        let mut stream = UnixStream::connect(&socket).await.expect("a connection");
        stream.write_all(b"SHUTDOWN NOSAVE\r\n").await.expect("sent");
        timeout(START_WITHIN, restarted.notified()).await.expect("it is started again");
        assert!(answers(&socket).await);
        server.stop().await;
        assert!(!answers(&socket).await);
        assert!(!socket.parent().expect("a folder").exists());
    }
}
