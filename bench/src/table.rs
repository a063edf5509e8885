//! A markdown table, and the words about the machine above it.

use std::fmt;
use std::process::Command;

use serde_json::{Value, json};

/// A table of measurements.
pub struct Table {
    title: String,
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: &[&'static str]) -> Self {
        Self { title: title.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, and shows it as progress.
    pub fn row(&mut self, cells: Vec<String>) {
        eprintln!("{}: {}", self.title, cells.join(" | "));
        self.rows.push(cells);
    }

    /// The table as JSON: its title, its columns, and an object a row.
    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| self.columns.iter().zip(row).map(|(column, cell)| ((*column).to_owned(), json!(cell))).collect())
            .collect();
        json!({"title": self.title, "columns": self.columns, "rows": rows})
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "**{}**\n", self.title)?;
        writeln!(f, "| {} |", self.columns.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.columns.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(f, "| {} |", row.join(" | ")))
    }
}

/// One line about what was measured, and where.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let redis = Command::new("redis-server").arg("--version").output().map(|told| told.stdout).unwrap_or_default();
    let redis = String::from_utf8_lossy(&redis).split_whitespace().nth(2).unwrap_or("v=unknown").to_owned();
    let [version, arch] = [env!("CARGO_PKG_VERSION"), std::env::consts::ARCH];
    format!("punctual {version}, redis-server {redis}, {cores} cores, {model}, {arch}")
}

/// The value at `fraction` of the sorted `values`.
pub fn percentile(values: &[f64], fraction: f64) -> f64 {
    let index = (values.len().saturating_sub(1)) as f64 * fraction;
    values.get(index.round() as usize).copied().unwrap_or(f64::NAN)
}
