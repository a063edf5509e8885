//! One attempt of a handler: bounded in time, its lease extended, its panic caught, its outcome settled.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Service;
use super::dispatch::Outcome;
use crate::error::Error;
use crate::handler::{AnyHandler, Context, HandlerError};
use crate::task::{DEFAULT_TIMEOUT_MS, Task};

// Were a panic to end the process, one handler could end the attempts of all others, again and again.
const _: () = assert!(cfg!(panic = "unwind"), "build with panic = \"unwind\"");

impl Service {
    /// Runs one attempt and settles it.
    pub(super) async fn run(&self, handler: Arc<dyn AnyHandler>, task: Task) -> Outcome {
        let started = Instant::now();
        let result = self.attempt(handler, &task).await;
        let token = task.lease_token.as_deref().unwrap_or_default();
        let now = self.clock.now();
        let (word, settled) = match &result {
            Some(Ok(())) => {
                let settled = self.acknowledge(&[(task.id.clone(), token.to_owned())], now).await.pop();
                ("succeeded", settled.unwrap_or(Ok(())))
            }
            Some(Err(HandlerError::Retry { after, reason })) => {
                let delay_ms = after.map(|after| i64::try_from(after.as_millis()).unwrap_or(i64::MAX));
                ("failed", self.fail(&task.id, token, Some(reason.clone()), delay_ms, false, now).await)
            }
            Some(Err(HandlerError::Permanent { reason })) => {
                ("failed", self.fail(&task.id, token, Some(reason.clone()), None, true, now).await)
            }
            None => ("lost", Ok(())),
        };
        let outcome = match (&result, &settled) {
            (_, Err(Error::LeaseLost)) | (None, _) => Outcome::Lost,
            (Some(Ok(())), _) => Outcome::Succeeded,
            (Some(Err(_)), _) => Outcome::Failed,
        };
        let (task_id, queue, attempt) = (&task.id, task.lane().to_string(), task.attempts);
        let duration_ms = started.elapsed().as_secs_f64() * 1_000.0;
        match settled {
            Ok(()) => info!(task_id, queue, attempt, outcome = word, duration_ms, "attempt"),
            // Not told, so it will be tried again: an attempt may repeat, it is never forgotten.
            Err(error) => warn!(task_id, queue, attempt, outcome = word, duration_ms, %error, "attempt not settled"),
        }
        outcome
    }

    /// The handler's result, or `None` when the lease was lost meanwhile. The lease is extended while it runs.
    async fn attempt(&self, handler: Arc<dyn AnyHandler>, task: &Task) -> Option<Result<(), HandlerError>> {
        let token = task.lease_token.clone().unwrap_or_default();
        let timeout_ms = task.content.timeout_ms.unwrap_or(DEFAULT_TIMEOUT_MS);
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let now = self.clock.now();
        let context = Context {
            task_id: task.id.clone(),
            attempt: task.attempts,
            deadline: now.plus_ms(timeout_ms),
            now,
            lease_token: token.clone(),
            table: self.table.clone(),
        };
        let parameters = task.content.parameters.clone();
        // A task of its own: a panic ends it alone, and a handler that blocks its thread does not block this one.
        let mut work = tokio::spawn(async move {
            let parameters = parameters.as_deref().unwrap_or(serde_json::value::RawValue::NULL);
            handler.run(parameters, &context).await
        });
        let deadline = tokio::time::sleep(timeout);
        tokio::pin!(deadline);
        let lease = Duration::from_millis(u64::try_from(self.config.lease_ms).unwrap_or(0));
        let mut extension = tokio::time::interval_at(Instant::now() + lease / 3, lease / 3);
        loop {
            tokio::select! {
                result = &mut work => return Some(result.unwrap_or_else(|error| Err(of_panic(error)))),
                () = &mut deadline => {
                    work.abort();
                    return Some(Err(HandlerError::retry(format!("timed out after {timeout_ms} ms"))));
                }
                _ = extension.tick() => {
                    let now = self.clock.now();
                    match self.extend(&task.id, &token, now.plus_ms(self.config.lease_ms), now).await {
                        Ok(()) => {}
                        Err(Error::LeaseLost | Error::NotFound(_)) if work.is_finished() => {}
                        Err(Error::LeaseLost | Error::NotFound(_)) => {
                            work.abort();
                            return None;
                        }
                        Err(error) => warn!(task_id = task.id, %error, "a lease could not be extended"),
                    }
                }
            }
        }
    }
}

fn of_panic(error: JoinError) -> HandlerError {
    let Ok(panic) = error.try_into_panic() else {
        return HandlerError::retry("the handler was broken off");
    };
    let message = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned());
    HandlerError::retry(format!("the handler panicked: {message}"))
}
