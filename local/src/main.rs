//! `punctual`: the whole service on one machine.

use std::collections::HashMap;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use local::{Options, Running};
use mimalloc::MiMalloc;
use punctual_core::config::{Environment, WrongVariable};
use punctual_core::time::{LAST_TIMESTAMP, Timestamp};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// Most of a call's time goes into many small allocations; this one is quicker at them than the system's.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A delayed-task service on one machine: the functions over HTTP, an embedded DynamoDB, a Redis, and the ticks.
///
/// AWS_ENDPOINT_URL_DYNAMODB names another DynamoDB, REDIS_URL another Redis, API_KEY a key that callers must show;
/// the functions' own variables (WINDOW_SECONDS, LEASE_SECONDS, ...) have the defaults of template.yaml.
#[derive(Parser)]
#[command(name = "punctual", version)]
struct Arguments {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:3000")]
    listen: String,
    /// Where tasks are kept
    #[arg(long, value_name = "DIRECTORY", default_value = ".punctual")]
    data_dir: PathBuf,
    /// A Redis to use instead of a redis-server of its own; several URLs, comma-separated: a cluster
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Offers the embedded DynamoDB to others at this address
    #[arg(long, value_name = "ADDRESS")]
    dynamodb_listen: Option<String>,
    /// Time stands still at this moment and moves only by POST /local/clock/advance
    #[arg(long, value_name = "EPOCH_MS", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..=LAST_TIMESTAMP.as_ms()))]
    manual_clock: Option<i64>,
    /// No tick runs by itself, only by POST /local/tick/{refresh|recover|dispatch}
    #[arg(long)]
    no_ticks: bool,
}

impl From<Arguments> for Options {
    fn from(arguments: Arguments) -> Self {
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self {
            listen: arguments.listen,
            data_dir: arguments.data_dir,
            redis_url: arguments.redis_url,
            dynamodb_listen: arguments.dynamodb_listen,
            manual_clock: arguments.manual_clock.map(Timestamp::from_ms),
            ticks: !arguments.no_ticks,
            // A value that is no text is kept as well as can be, so that it is refused and not taken for unset.
            variables: variables.map(|(name, value)| (name, value.to_string_lossy().into_owned())).collect(),
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::from(Arguments::parse());
    let ran = match log_to_stderr(&options.variables) {
        Ok(()) => run(options).await,
        Err(wrong) => Err(wrong.into()),
    };
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("punctual: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<(), Box<dyn std::error::Error>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let data_dir = options.data_dir.clone();
    let running = tokio::select! {
        running = local::start(options) => running?,
        () = told_to_stop(&mut interrupt, &mut terminate) => return Ok(()),
    };
    // Nobody may read it.
    let _ = std::io::stdout().write_all(announcement(&running, &data_dir).as_bytes());
    told_to_stop(&mut interrupt, &mut terminate).await;
    tracing::info!("stopping");
    tokio::select! {
        () = running.stop() => {}
        // Who asks twice does not want to wait.
        () = told_to_stop(&mut interrupt, &mut terminate) => {}
    }
    Ok(())
}

async fn told_to_stop(interrupt: &mut Signal, terminate: &mut Signal) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

fn log_to_stderr(variables: &HashMap<String, String>) -> Result<(), WrongVariable> {
    // The embedded DynamoDB warns of each condition that does not hold, which is no fault here.
    let filter = Environment(&|name| variables.get(name).cloned()).log_filter("info,dynoxide=error")?;
    let colours = std::io::stderr().is_terminal();
    let lines = fmt::layer().with_target(false).with_ansi(colours).with_writer(std::io::stderr);
    registry().with(lines).with(filter).init();
    Ok(())
}

fn announcement(running: &Running, data_dir: &Path) -> String {
    let url = format!("http://{}", running.address);
    let data = match (running.database(), &running.dynamodb_endpoint) {
        (None, Some(endpoint)) => without_password(endpoint),
        _ => data_dir.display().to_string(),
    };
    let redis = without_password(&running.redis_url);
    let key = if running.needs_key { "-H \"Authorization: Bearer $API_KEY\" " } else { "" };
    format!(
        "punctual listens on {url} (data: {data}, redis: {redis})\n\
         try: curl {key}{url}/api/v1/task/add -d '{{\"taskType\": \"hello\", \"delay\": 5000, \"parameters\": {{\"to\": \"world\"}}}}'\n"
    )
}

/// URLs, comma-separated, without the user and the password that they may hold.
fn without_password(urls: &str) -> String {
    let clean = |url: &str| match url.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host)),
        None => url.to_owned(),
    };
    urls.split(',').map(|url| clean(url.trim())).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_line_shows_no_password() {
        assert_eq!(without_password("redis://user:p@ss@host:1,rediss://h"), "redis://host:1,rediss://h");
        assert_eq!(without_password("redis+unix:///tmp/a/redis.sock"), "redis+unix:///tmp/a/redis.sock");
    }
}
