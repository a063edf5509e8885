//! Child processes that do not outlive their test.

use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A process that is killed with this value, or with the test's process in whatever way that ends.
pub struct Watched(Child);

impl Watched {
    /// Starts `command`, its standard output to `stdout`.
    ///
    /// # Panics
    /// When there is no shell.
    pub fn start(command: &Command, stdout: Stdio) -> Self {
        // The shell outlives us when we are killed, sees its standard input end, and takes the process with it.
        const WATCHDOG: &str = r#"exec 3<&0
            "$@" </dev/null 3<&- & process=$!
            (read -r _ <&3; kill -9 $process) >/dev/null & watcher=$!
            wait $process; kill $watcher 2>/dev/null"#;
        let mut shell = Command::new("sh");
        shell.args(["-c", WATCHDOG, "sh"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        Self(shell.stdin(Stdio::piped()).stdout(stdout).spawn().expect("sh runs"))
    }

    /// What the process writes to a [`Stdio::piped`].
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// The process id of the shell that watches it: its parent.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // The watchdog sees its standard input end and kills the process with SIGKILL.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A port of 127.0.0.1 that nobody listens on, nor 10,000 above it, where a cluster's node has its bus. Not one of those
/// that the system gives to outgoing connections: a server that is started again finds it free again.
///
/// # Panics
/// When no port is free.
pub fn free_port() -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut tries = (0..1_000).map(|_| rand::random_range(10_000..22_000));
    tries.find(|port| is_free(*port) && is_free(port + 10_000)).expect("a free port")
}
