//! The runner as a process of its own.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// A running `punctual` on empty stores; killed with this value.
pub struct Runner {
    child: Child,
    /// Its address, `http://...`.
    pub url: String,
    _data: TempDir,
}

impl Runner {
    /// Starts the release build at its defaults, but on a free port, and with `variables`.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let binary: PathBuf = std::env::current_exe().expect("this program has a path").with_file_name("punctual");
        assert!(binary.exists(), "{} is missing: cargo build --release -p local", binary.display());
        let data = TempDir::new().expect("a temporary folder");
        let mut child = Command::new(binary)
            .args(["--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data.path())
            .env("RUST_LOG", "warn")
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the runner starts");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("the runner says where it listens");
        let url = line.split_whitespace().find(|word| word.starts_with("http://")).expect("an address");
        Self { url: url.to_owned(), child, _data: data }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
