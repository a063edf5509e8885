//! Measures the release build of the runner on this machine and prints markdown tables.
//!
//! Figures of one run are for comparing with each other; machines differ, and so do moments.

mod client;
mod lateness;
mod rates;
mod runner;
mod scripts;
mod table;

use clap::{Parser, ValueEnum};

use table::Table;

/// Measures the runner; build it first: `cargo build --release -p local`.
#[derive(Parser)]
struct Arguments {
    /// What to measure; everything when none is named.
    parts: Vec<Part>,
    /// Tasks of the rate measurements.
    #[arg(long, default_value_t = 5_000)]
    tasks: usize,
    /// Tasks of the lateness measurements.
    #[arg(long, default_value_t = 1_000)]
    late_tasks: usize,
    /// The time over which those are due, in seconds.
    #[arg(long, default_value_t = 60)]
    spread_seconds: u64,
    /// Writes the results there as JSON, too.
    #[arg(long)]
    json: Option<std::path::PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Adds, drains and whole lives per second over HTTP.
    Rates,
    /// How late waiting polls get their tasks.
    Poll,
    /// How late webhooks arrive.
    Push,
    /// The Redis scripts alone, beside bare commands.
    Scripts,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut tables: Vec<Table> = Vec::new();
    if wanted(Part::Rates) {
        tables.push(rates::measure(arguments.tasks).await);
    }
    if wanted(Part::Poll) {
        tables.push(lateness::of_polls(arguments.late_tasks, arguments.spread_seconds).await);
    }
    if wanted(Part::Push) {
        tables.push(lateness::of_push(arguments.late_tasks, arguments.spread_seconds).await);
    }
    if wanted(Part::Scripts) {
        tables.push(scripts::measure());
    }
    println!("{}", table::machine());
    for table in &tables {
        println!("\n{table}");
    }
    if let Some(path) = arguments.json {
        let all: Vec<serde_json::Value> = tables.iter().map(Table::to_json).collect();
        let text = serde_json::Value::Array(all).to_string();
        std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}
