//! A real redis-server for one test.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use punctual_core::due_index::keys::HORIZON;
use tempfile::TempDir;

use crate::Watched;

/// Waits this long for a server to answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A redis-server on a unix socket in a folder of its own. It ends with this value, or with the test's process.
pub struct RedisServer {
    folder: TempDir,
    process: Option<Watched>,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts an empty server.
    ///
    /// # Panics
    /// When redis-server is not installed: `make setup` installs it.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an empty server with more command line options.
    pub fn start_with(options: &[&str]) -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        let mut server = Self { folder, process: None, options };
        server.launch();
        server
    }

    /// The unix socket on which it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// The URL for the redis crate.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The process id of the server itself.
    pub fn pid(&self) -> u32 {
        let info: String = redis::cmd("INFO").arg("server").query(&mut self.connection()).expect("INFO");
        let line = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        line.expect("INFO tells the process id").trim().parse().expect("a number")
    }

    /// A plain connection, for looking and for breaking things.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("a connection")
    }

    /// Runs one command, its words separated by spaces.
    pub fn run(&self, command: &str) -> redis::Value {
        let mut words = command.split(' ');
        let mut cmd = redis::cmd(words.next().expect("a command"));
        words.for_each(|word| {
            cmd.arg(word);
        });
        cmd.query(&mut self.connection()).expect(command)
    }

    /// The same, for a command that answers an integer.
    pub fn integer(&self, command: &str) -> i64 {
        redis::from_redis_value(self.run(command)).expect("an integer")
    }

    /// All keys but the horizon, which is there whether there are tasks or not.
    pub fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut self.connection()).expect("KEYS");
        keys.retain(|key| key != HORIZON);
        keys.sort();
        keys
    }

    /// How often a task id stands in Redis, in whatever place.
    pub fn places_of(&self, id: &str) -> usize {
        let mut connection = self.connection();
        let mut places = 0;
        for key in self.keys() {
            let members: Vec<String> = if key.starts_with("topic:") {
                redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(&mut connection).expect("LRANGE")
            } else if key.starts_with("future:") || key.starts_with("lease:") {
                redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query(&mut connection).expect("ZRANGE")
            } else {
                continue;
            };
            places += members.iter().filter(|member| *member == id).count();
        }
        places
    }

    /// Sends a signal, as `kill` names it, to the server.
    pub fn signal(&self, name: &str) {
        self.signal_pid(self.pid(), name);
    }

    /// The same where the server may not answer.
    pub fn signal_pid(&self, pid: u32, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
        assert!(status.expect("kill runs").success(), "kill -{name} {pid}");
    }

    /// Kills the server; its data is lost.
    pub fn stop(&mut self) {
        self.process = None;
        let _ = std::fs::remove_file(self.socket());
    }

    /// Starts the server again, empty, at the same place.
    pub fn launch(&mut self) {
        let socket = self.socket();
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(self.folder.path())
            .args(&self.options);
        self.process = Some(Watched::start(&command, Stdio::null()));
        let started = Instant::now();
        loop {
            let answer = redis::Client::open(self.url()).and_then(|client| client.get_connection());
            if answer.is_ok_and(|mut c| redis::cmd("PING").query::<String>(&mut c).is_ok()) {
                return;
            }
            assert!(
                started.elapsed() < START_TIMEOUT,
                "redis-server does not start; is it installed? `make setup` installs it"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.stop();
    }
}
