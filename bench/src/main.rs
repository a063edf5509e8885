//! Measures the release build of the runner on this machine and prints markdown tables.
//!
//! Figures of one run are for comparing with each other; machines differ, and so do moments.

mod backlog;
mod hot;
mod lateness;
mod rates;
mod scripts;
mod start;
mod store;

use bench::table::{self, Table};
use clap::{Parser, ValueEnum};

/// As in the runner, with which [`store`] is compared.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures the runner; build it first: `cargo build --release -p local`.
#[derive(Parser)]
struct Arguments {
    /// What to measure; everything when none is named.
    parts: Vec<Part>,
    /// Tasks of the rate measurements.
    #[arg(long, default_value_t = 5_000)]
    tasks: usize,
    /// Tasks of the lateness measurements.
    #[arg(long, default_value_t = 2_000)]
    late_tasks: usize,
    /// The time over which those are due, in seconds.
    #[arg(long, default_value_t = 60)]
    spread_seconds: u64,
    /// The most tasks that refresh is measured with.
    #[arg(long, default_value_t = 100_000)]
    backlog: usize,
    /// Tasks of one queue that are due in one instant.
    #[arg(long, default_value_t = 100_000)]
    hot_tasks: usize,
    /// Where the results go as JSON, for `make bench-compare`.
    #[arg(long, default_value = "target/bench/last.json")]
    json: std::path::PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Adds, drains and whole lives per second over HTTP.
    Rates,
    /// The same tasks' writes on the embedded DynamoDB alone.
    Store,
    /// How late waiting polls get their tasks.
    Poll,
    /// How late webhooks arrive.
    Push,
    /// The Redis scripts alone, beside bare commands.
    Scripts,
    /// What a refresh costs, by what is stored and by what is due.
    Refresh,
    /// Sizes and start times of the functions.
    Start,
    /// One queue with very many tasks due in one instant, and another one beside it.
    Hot,
}

#[tokio::main]
async fn main() {
    let arguments = Arguments::parse();
    let wanted = |part| arguments.parts.is_empty() || arguments.parts.contains(&part);
    let mut tables: Vec<Table> = Vec::new();
    if wanted(Part::Rates) {
        tables.push(rates::measure(arguments.tasks).await);
    }
    if wanted(Part::Store) {
        tables.push(store::measure(arguments.tasks).await);
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
    if wanted(Part::Refresh) {
        tables.push(backlog::by_what_is_stored(arguments.backlog).await);
        tables.push(backlog::by_what_is_due(arguments.backlog).await);
    }
    if wanted(Part::Start) {
        tables.push(start::measure());
    }
    if wanted(Part::Hot) {
        tables.push(hot::measure(arguments.hot_tasks).await);
    }
    println!("{}", table::machine());
    for table in &tables {
        println!("\n{table}");
    }
    let all: Vec<serde_json::Value> = tables.iter().map(Table::to_json).collect();
    let written = arguments.json.parent().map_or(Ok(()), std::fs::create_dir_all);
    let text = serde_json::Value::Array(all).to_string();
    let written = written.and_then(|()| std::fs::write(&arguments.json, text));
    written.unwrap_or_else(|error| panic!("{}: {error}", arguments.json.display()));
}
