//! What every API function does around its own work: read the event, bound the time, map the outcome, log one line.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;
use serde_json::value::RawValue;
use tracing::{Instrument, error, field, info, info_span, warn};

use super::answer::{Answer, Envelope};
use super::event::Request;
use crate::error::Error;

/// A call that does not wait on purpose answers within this, whatever the stores do.
pub const TIME_LIMIT: Duration = Duration::from_millis(4_600);

/// Serves one API Gateway event with `act`. Whatever happens, the answer is the envelope: `data_on_error` stands
/// behind `data` of an error. `act` has [`TIME_LIMIT`] and `extra_time`.
pub async fn serve(
    function: &'static str,
    event: &str,
    extra_time: Duration,
    data_on_error: &RawValue,
    act: impl AsyncFnOnce(&Request) -> Result<Envelope, Error>,
) -> Answer {
    let started = Instant::now();
    let span = info_span!("request", function, method = field::Empty, task_id = field::Empty, queue = field::Empty);
    let work = async {
        let request = Request::from_event(event)?;
        tracing::Span::current().record("method", request.method.as_str());
        // Boxed: the future is large, and its layout deep.
        Box::pin(act(&request)).await
    };
    let bounded = tokio::time::timeout(TIME_LIMIT + extra_time, AssertUnwindSafe(work).catch_unwind());
    let outcome = match bounded.instrument(span.clone()).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(Error::Internal("the function panicked".into())),
        Err(_) => Err(Error::TooSlow),
    };
    let answer = Answer::new(&outcome, data_on_error);
    let _entered = span.enter();
    let duration_ms = started.elapsed().as_secs_f64() * 1_000.0;
    match &outcome {
        Ok(_) => info!(outcome = "ok", status = answer.status_code, duration_ms, "request"),
        Err(failure) => {
            let (outcome, status) = (failure.word(), answer.status_code);
            let cause = std::error::Error::source(failure).map(ToString::to_string);
            match status {
                500 => error!(outcome, status, duration_ms, cause, "request"),
                429 | 503 => warn!(outcome, status, duration_ms, cause, "request"),
                _ => info!(outcome, status, duration_ms, "request"),
            }
        }
    }
    answer
}

/// Names the task in the request's log line.
pub fn note_task(id: &str) {
    tracing::Span::current().record("task_id", id);
}

/// Names the queue in the request's log line.
pub fn note_queue(queue: impl std::fmt::Display) {
    tracing::Span::current().record("queue", field::display(queue));
}
