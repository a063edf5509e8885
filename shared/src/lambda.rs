//! The Lambda runtime around a function: logs, configuration, clients, and the loop.

use std::time::Instant;

use lambda_runtime::{Error, LambdaEvent, service_fn};
use serde::Serialize;
use serde_json::value::RawValue;
use tracing::{Level, error, info};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

use crate::api::Answer;
use crate::clock::Clock;
use crate::config::{Config, Environment, TickConfig, WrongVariable};
use crate::service::{BACKLOG_LOG, Service};
use crate::table;

/// Reads a variable of the process.
pub fn process_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Logs as JSON lines on stdout, by `RUST_LOG` (`info` when unset). What metrics are read from is always logged.
pub fn log_as_json() -> Result<(), WrongVariable> {
    let filter = Environment(&process_variable).log_filter("info")?.with_target(BACKLOG_LOG, Level::INFO);
    let lines = fmt::layer().json().flatten_event(true).with_target(false).without_time();
    registry().with(lines).with(filter).init();
    Ok(())
}

/// The service that the process's environment describes.
pub async fn service() -> Result<Service, Error> {
    let config = Config::read(&Environment(&process_variable))?;
    Ok(Service::new(table::connect().await, Clock::System, config)?)
}

/// Runs an API function.
pub async fn run_api(handle: impl AsyncFn(&Service, &str) -> Answer) -> Result<(), Error> {
    log_as_json()?;
    let service = service().await?;
    let (service, handle) = (&service, &handle);
    lambda_runtime::run(service_fn(async |event: LambdaEvent<Box<RawValue>>| {
        // Boxed: the future is large, and its layout deep.
        Ok::<_, Error>(Box::pin(handle(service, event.payload.get())).await)
    }))
    .await
}

/// Runs the tick `name`. Its report is the function's result and its log line.
pub async fn run_tick<R: Serialize>(
    name: &'static str,
    handle: impl AsyncFn(&Service, &TickConfig) -> Result<R, crate::error::Error>,
) -> Result<(), Error> {
    log_as_json()?;
    let tick = TickConfig::read(&Environment(&process_variable))?;
    let service = service().await?;
    let (service, handle, tick) = (&service, &handle, &tick);
    lambda_runtime::run(service_fn(async |_event: LambdaEvent<Box<RawValue>>| {
        // Boxed: the future is large, and its layout deep.
        log_tick(name, Box::pin(handle(service, tick))).await
    }))
    .await
}

/// Runs one tick and logs its report or its failure.
pub async fn log_tick<R: Serialize>(
    name: &'static str,
    tick: impl Future<Output = Result<R, crate::error::Error>>,
) -> Result<R, Error> {
    let started = Instant::now();
    let outcome = tick.await;
    let duration_ms = started.elapsed().as_secs_f64() * 1_000.0;
    match &outcome {
        Ok(report) => {
            let report = serde_json::to_string(report).unwrap_or_default();
            info!(tick = name, outcome = "ok", duration_ms, report, "tick");
        }
        Err(failure) => {
            let cause = std::error::Error::source(failure).map(ToString::to_string);
            error!(tick = name, outcome = failure.word(), duration_ms, cause, "tick");
        }
    }
    Ok(outcome?)
}
