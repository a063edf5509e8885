//! The ticks: one run of each, and their schedules.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use punctual_core::clock::Clock;
use punctual_core::error::Error;
use punctual_core::service::Service;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::sleep;
use tracing::{error, info};

use crate::functions::{Occasion, TickCall};

/// What makes Redis know what DynamoDB knows, in this order: run at the start, and when Redis has lost everything.
const RELOADING: [&str; 2] = ["refresh", "recover"];

/// Tries to reload; after these the next minute makes up for it.
const RELOADS: usize = 5;
/// The pause before each of them.
const RELOAD_PAUSE: Duration = Duration::from_millis(400);

/// The functions that run by the minute.
#[derive(Clone)]
pub struct Ticks {
    service: Arc<Service>,
    calls: BTreeMap<String, TickCall>,
}

impl Ticks {
    /// The ticks of `service` by their names.
    pub fn new(service: Arc<Service>, calls: BTreeMap<String, TickCall>) -> Self {
        Self { service, calls }
    }

    /// Runs one tick and logs its report; `None` when there is no such tick.
    pub async fn run(&self, name: &str, occasion: Occasion) -> Option<Result<Value, Error>> {
        let call = self.calls.get(name)?;
        let started = Instant::now();
        let run = AssertUnwindSafe(call(self.service.clone(), occasion)).catch_unwind().await;
        let outcome = run.unwrap_or_else(|_| Err(Error::Internal("the tick panicked".into())));
        let duration_ms = started.elapsed().as_secs_f64() * 1_000.0;
        match &outcome {
            Ok(report) => info!(tick = name, outcome = "ok", duration_ms, %report, "tick"),
            Err(failure) => error!(tick = name, outcome = failure.word(), duration_ms, cause = causes(failure), "tick"),
        }
        Some(outcome)
    }

    /// Fills Redis from DynamoDB, at once. `false` when that failed.
    pub async fn reload(&self) -> bool {
        let mut is_done = true;
        for name in RELOADING {
            is_done &= !matches!(self.run(name, Occasion::Scheduled).await, Some(Err(_)));
        }
        is_done
    }

    /// Reloads whenever `emptied` says so.
    pub async fn reload_on(self, emptied: Arc<Notify>) {
        loop {
            emptied.notified().await;
            for _ in 0..RELOADS {
                // The service leaves a Redis that failed alone for a moment, so the first try comes after that.
                sleep(RELOAD_PAUSE).await;
                if self.reload().await {
                    break;
                }
            }
        }
    }

    /// Runs the tick `name` at each full `period`; those that do not reload, at once too. A run that takes longer
    /// does not hold up the next one, as in the cloud.
    pub async fn run_by_schedule(self, name: String, period: Duration) {
        let period_ms = i64::try_from(period.as_millis()).unwrap_or(i64::MAX);
        let mut runs = tokio::task::JoinSet::new();
        let mut last_slot = None;
        let mut is_first = !RELOADING.contains(&name.as_str());
        loop {
            if !std::mem::take(&mut is_first) {
                let now_ms = Clock::System.now().as_ms();
                let mut slot = now_ms.div_euclid(period_ms) + 1;
                if last_slot == Some(slot) {
                    // A timer that was a moment early must not run the same minute twice.
                    slot += 1;
                }
                last_slot = Some(slot);
                let wait_ms = u64::try_from(slot.saturating_mul(period_ms) - now_ms).unwrap_or(0);
                sleep(Duration::from_millis(wait_ms)).await;
            }
            let (ticks, name) = (self.clone(), name.clone());
            runs.spawn(async move { ticks.run(&name, Occasion::Scheduled).await });
            // Those that have ended need no memory any more.
            while runs.try_join_next().is_some() {}
        }
    }
}

/// An error with what caused it.
pub fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
