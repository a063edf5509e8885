//! The runner as a process of its own, as a user starts it.

use std::path::PathBuf;

use tempfile::TempDir;

/// A running `punctual` on empty stores; killed with this value.
pub struct Runner {
    runner: tests::Runner,
    _data: TempDir,
}

impl Runner {
    /// Starts the release build at its defaults, but on a free port, and with `variables`.
    pub fn start(variables: &[(&str, &str)]) -> Self {
        let data = TempDir::new().expect("a temporary folder");
        let binary = binary("punctual");
        let binary = binary.to_str().expect("a path in UTF-8");
        Self { runner: tests::Runner::start(binary, "127.0.0.1:0", data.path(), variables), _data: data }
    }

    /// Its address, `http://...`.
    pub fn url(&self) -> &str {
        &self.runner.url
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.runner.pid()
    }
}

/// A program that was built beside this one.
pub fn binary(name: &str) -> PathBuf {
    let binary: PathBuf = std::env::current_exe().expect("this program has a path").with_file_name(name);
    assert!(binary.exists(), "{} is missing: cargo build --release --workspace --bins", binary.display());
    binary
}
