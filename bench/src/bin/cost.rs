//! What Punctual costs on AWS: prints docs/cost.md's tables for other numbers.
//!
//! Units and requests are those that `tests/integration/api_budget.rs` measures; milliseconds, bytes and prices are
//! inputs, here in one place.

use std::fmt::Write;

use clap::Parser;

/// Dollars in us-east-1, without free tiers and discounts, as published in January 2025.
const PRICES: &[(&str, f64, &str)] = &[
    ("DynamoDB, on demand", WRITE_UNITS, "million write units"),
    ("", READ_UNITS, "million read units"),
    ("", STORAGE, "GB and month"),
    ("", RECOVERY, "GB and month of point-in-time recovery"),
    ("API Gateway, HTTP API", API_REQUESTS, "million requests"),
    ("Lambda, x86", LAMBDA_REQUESTS, "million requests"),
    ("", GB_SECONDS, "million GB-seconds"),
    ("CloudWatch", LOGS, "GB of logs taken in"),
    ("", ALARMS, "metric of an alarm and month"),
    ("", METRICS, "metric of one's own and month"),
    ("ElastiCache Serverless, Valkey", CACHE_GB_HOURS, "GB and hour; 0.1 GB at least"),
    ("", CACHE_UNITS, "million processing units"),
    ("Secrets Manager", SECRETS, "secret and month"),
    ("EventBridge Scheduler", SCHEDULER, "million invocations"),
    ("SQS, standard", SQS, "million requests"),
    ("Step Functions, standard", TRANSITIONS, "million transitions"),
    ("Google Cloud Tasks", CLOUD_TASKS, "million operations"),
    ("NAT gateway (`Egress` `nat`)", NAT_HOURS, "hour, and as much for each GB"),
    ("Interface endpoint (`Egress` `endpoints`)", ENDPOINT_HOURS, "hour and zone; there are 4"),
];
const WRITE_UNITS: f64 = 0.625;
const READ_UNITS: f64 = 0.125;
const STORAGE: f64 = 0.25;
const RECOVERY: f64 = 0.20;
const API_REQUESTS: f64 = 1.00;
const LAMBDA_REQUESTS: f64 = 0.20;
const GB_SECONDS: f64 = 16.6667;
const LOGS: f64 = 0.50;
const ALARMS: f64 = 0.10;
const METRICS: f64 = 0.30;
const CACHE_GB_HOURS: f64 = 0.084;
const CACHE_UNITS: f64 = 0.0023;
const SECRETS: f64 = 0.40;
const SCHEDULER: f64 = 1.00;
const SQS: f64 = 0.40;
const TRANSITIONS: f64 = 25.0;
const CLOUD_TASKS: f64 = 0.40;
const NAT_HOURS: f64 = 0.045;
const ENDPOINT_HOURS: f64 = 0.01;

const HOURS: f64 = 730.0;
const MINUTES: f64 = HOURS * 60.0;
/// Metrics that template.yaml's alarms watch: two of eight functions each, four of the table, one in seven.
const ALARM_METRICS: f64 = 27.0;
/// The ticks' memory, in GB.
const TICK_GB: f64 = 0.5;
/// Requests to the index that refresh and recover make for each shard each minute, half a read unit each: what becomes
/// due, what is overdue (both ticks), what is dead.
const SHARD_REQUESTS: f64 = 4.0;

/// Prints what tasks cost on AWS.
#[derive(Parser)]
struct Inputs {
    /// Tasks a month.
    #[arg(long, default_value_t = 10e6)]
    tasks: f64,
    /// Tasks in one add, one poll and one ack.
    #[arg(long, default_value_t = 25.0)]
    batch: f64,
    /// Size of a stored task in KB, rounded up.
    #[arg(long, default_value_t = 1.0)]
    task_kb: f64,
    /// Lambda's milliseconds for an add, a poll or an ack of one task.
    #[arg(long, default_value_t = 15.0)]
    call_ms: f64,
    /// Milliseconds more for each further task of a batch.
    #[arg(long, default_value_t = 1.0)]
    more_ms: f64,
    /// Memory of a function that answers calls.
    #[arg(long, default_value_t = 256.0)]
    memory_mb: f64,
    /// Milliseconds of refresh and recover together, each minute.
    #[arg(long, default_value_t = 1_000.0)]
    ticks_ms: f64,
    /// Seconds of each minute that dispatch looks for tasks with a handler.
    #[arg(long, default_value_t = 60.0)]
    shift_seconds: f64,
    /// Bytes of log for a call: the function's, Lambda's and API Gateway's own.
    #[arg(long, default_value_t = 1_500.0)]
    log_bytes: f64,
    /// Bytes of log for an attempt of a handler.
    #[arg(long, default_value_t = 300.0)]
    attempt_log_bytes: f64,
    /// ElastiCache's processing units for a task's life.
    #[arg(long, default_value_t = 20.0)]
    cache_units: f64,
    /// Index shards.
    #[arg(long, default_value_t = 16.0)]
    shards: f64,
    /// Days that a finished task is kept.
    #[arg(long, default_value_t = 7.0)]
    retention_days: f64,
}

/// What one way of use costs for a million tasks.
struct Costs {
    table: f64,
    calls: f64,
    compute: f64,
    logs: f64,
    cache: f64,
    storage: f64,
}

impl Costs {
    /// With `calls` calls of the API for `batch` tasks, and `attempts` of handlers for each.
    fn of(inputs: &Inputs, calls: f64, batch: f64, attempts: f64) -> Self {
        let kb = inputs.task_kb.ceil();
        // The index takes one in an add and one in an ack; a lease leaves it alone.
        let (add, lease, ack) = (kb + 1.0, kb, kb + 1.0);
        let requests = calls / batch;
        let seconds = requests * (inputs.call_ms + inputs.more_ms * (batch - 1.0)) / 1_000.0;
        Self {
            table: (add + lease + ack) * WRITE_UNITS,
            calls: requests * (API_REQUESTS + LAMBDA_REQUESTS),
            compute: seconds * inputs.memory_mb / 1_024.0 * GB_SECONDS,
            // A million times so many bytes are so many thousandths of a GB.
            logs: (requests * inputs.log_bytes + attempts * inputs.attempt_log_bytes) / 1_000.0 * LOGS,
            cache: inputs.cache_units * CACHE_UNITS,
            storage: kb * inputs.retention_days / 30.0 * (STORAGE + RECOVERY),
        }
    }

    fn sum(&self) -> f64 {
        self.table + self.calls + self.compute + self.logs + self.cache + self.storage
    }
}

/// The ways of use, by name.
fn ways(inputs: &Inputs) -> [(String, Costs); 4] {
    let batch = inputs.batch;
    [
        ("poll, one by one".to_owned(), Costs::of(inputs, 3.0, 1.0, 0.0)),
        (format!("poll, {batch} at once"), Costs::of(inputs, 3.0, batch, 0.0)),
        ("push, added one by one".to_owned(), Costs::of(inputs, 1.0, 1.0, 1.0)),
        (format!("push, {batch} added at once"), Costs::of(inputs, 1.0, batch, 1.0)),
    ]
}

/// What is paid though there is no task.
fn fixed(inputs: &Inputs) -> [(&'static str, f64); 7] {
    let per_second = GB_SECONDS / 1e6;
    [
        ("ElastiCache Serverless at its least", 0.1 * HOURS * CACHE_GB_HOURS),
        ("its secret", SECRETS),
        ("refresh and recover: Lambda", MINUTES * inputs.ticks_ms / 1_000.0 * TICK_GB * per_second),
        ("refresh and recover: reads", MINUTES * inputs.shards * SHARD_REQUESTS * 0.5 / 1e6 * READ_UNITS),
        (
            "schedules, invocations and logs of three ticks",
            3.0 * MINUTES / 1e6 * (SCHEDULER + LAMBDA_REQUESTS + inputs.log_bytes / 1_000.0 * LOGS),
        ),
        ("alarms", ALARM_METRICS * ALARMS),
        ("their two metrics", 2.0 * METRICS),
    ]
}

/// One dispatcher at all times, when a handler is configured.
fn shifts(inputs: &Inputs) -> f64 {
    MINUTES * inputs.shift_seconds * TICK_GB * GB_SECONDS / 1e6
}

/// One consumer whose poll always waits, 20 seconds at a time.
fn waiting(inputs: &Inputs) -> f64 {
    let polls = HOURS * 3_600.0 / 20.0;
    let seconds = HOURS * 3_600.0 * inputs.memory_mb / 1_024.0 * GB_SECONDS / 1e6;
    seconds + polls / 1e6 * (API_REQUESTS + LAMBDA_REQUESTS + inputs.log_bytes / 1_000.0 * LOGS)
}

/// The same work elsewhere, dollars for a million tasks.
fn others(inputs: &Inputs) -> [(String, f64, &'static str); 5] {
    let sqs_batch = inputs.batch.clamp(1.0, 10.0);
    [
        (
            "EventBridge Scheduler, one schedule a task".to_owned(),
            SCHEDULER,
            "to the minute; push only; cancel by deleting the schedule",
        ),
        (
            "SQS with DelaySeconds, one by one".to_owned(),
            3.0 * SQS,
            "15 minutes at most; no cancel, no look at one message",
        ),
        (format!("SQS with DelaySeconds, {sqs_batch} at once"), 3.0 * SQS / sqs_batch, "the same"),
        (
            "Step Functions, wait then work".to_owned(),
            3.0 * TRANSITIONS,
            "push only; shows each task's history; a year at most",
        ),
        (
            "Google Cloud Tasks".to_owned(),
            2.0 * CLOUD_TASKS,
            "push only; 30 days at most; another cloud, whose traffic is paid",
        ),
    ]
}

fn report(inputs: &Inputs) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("a String takes all");
    line("| dollars for a million tasks | table | calls | Lambda | logs | cache | kept | together |".to_owned());
    line("|---|---|---|---|---|---|---|---|".to_owned());
    for (name, costs) in ways(inputs) {
        let Costs { table, calls, compute, logs, cache, storage } = costs;
        let sum = costs.sum();
        let parts = format!("{table:.2} | {calls:.2} | {compute:.2} | {logs:.2} | {cache:.2} | {storage:.2}");
        line(format!("| {name} | {parts} | **{sum:.2}** |"));
    }
    line("\n| dollars a month, whatever happens | |\n|---|---|".to_owned());
    let fixed = fixed(inputs);
    for (name, dollars) in fixed {
        line(format!("| {name} | {dollars:.2} |"));
    }
    let sum: f64 = fixed.iter().map(|(_, dollars)| dollars).sum();
    line(format!("| **together** | **{sum:.2}** |"));
    line(format!("| with a handler configured: dispatch | {:.2} |", shifts(inputs)));
    line(format!("| each consumer whose poll always waits | {:.2} |", waiting(inputs)));
    line(format!("| `Egress` `endpoints` | {:.2} |", 4.0 * HOURS * ENDPOINT_HOURS));
    line(format!("| `Egress` `nat` | {:.2} |", HOURS * NAT_HOURS));
    let millions = inputs.tasks / 1e6;
    line(format!("\n| dollars a month for {millions} million tasks | |\n|---|---|"));
    for (place, (name, costs)) in ways(inputs).into_iter().enumerate() {
        // One consumer that waits, or one dispatcher.
        let standing = if place < 2 { waiting(inputs) } else { shifts(inputs) };
        line(format!("| {name} | {:.2} |", costs.sum() * millions + sum + standing));
    }
    line("\n| the same work elsewhere | dollars for a million | |\n|---|---|---|".to_owned());
    for (name, dollars, limits) in others(inputs) {
        line(format!("| {name} | {dollars:.2} | {limits} |"));
    }
    line("\n| price list | dollars | for a |\n|---|---|---|".to_owned());
    for (service, dollars, unit) in PRICES {
        line(format!("| {service} | {dollars} | {unit} |"));
    }
    out
}

fn main() {
    print!("{}", report(&Inputs::parse()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_says_what_the_calculator_says() {
        let page = include_str!("../../../docs/cost.md");
        for line in report(&Inputs::parse_from(["cost"])).lines() {
            assert!(page.lines().any(|other| other == line), "docs/cost.md lacks: {line}");
        }
    }

    #[test]
    fn a_small_task_takes_the_units_that_the_tests_measure() {
        let costs = Costs::of(&Inputs::parse_from(["cost"]), 3.0, 1.0, 0.0);
        assert!((costs.table - 5.0 * WRITE_UNITS).abs() < 1e-9);
    }

    #[test]
    fn the_alarms_are_those_of_the_template() {
        let template = include_str!("../../../template.yaml");
        let from = template.find("  FunctionErrorsAlarm:").expect("the alarms");
        let to = template.find("  Board:").expect("what follows");
        let watched = template[from..to].lines().filter(|line| line.trim_start().starts_with("MetricName:"));
        // Two of these lines are of the metrics themselves.
        assert_eq!(watched.count() as f64, ALARM_METRICS + 2.0);
    }
}
