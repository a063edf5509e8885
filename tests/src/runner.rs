//! The runner as a process of its own.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A running `punctual`; killed with this value.
pub struct Runner {
    child: Child,
    /// Its address, `http://...`.
    pub url: String,
}

impl Runner {
    /// Starts `program` on `listen` with its data in `data`, and more variables. Returns once it listens.
    pub fn start(program: &str, listen: &str, data: &Path, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(program)
            .args(["--listen", listen, "--data-dir"])
            .arg(data)
            .env("RUST_LOG", "error")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the runner starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the runner says where it listens");
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
        Self { url: url.to_owned(), child }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
