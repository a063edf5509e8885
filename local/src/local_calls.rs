//! The calls that only a runner has: one tick, and the clock. Plain JSON, not the envelope.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use punctual_core::clock::Clock;
use punctual_core::time::LAST_TIMESTAMP;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::body::{BodyError, read};
use crate::functions::Occasion;
use crate::server::App;
use crate::ticks::causes;

/// What these paths begin with.
pub const PREFIX: &str = "/local/";
/// No body here needs more.
const MAX_BODY_BYTES: usize = 64 * 1024;
/// A body is there after this.
const BODY_WITHIN: Duration = Duration::from_secs(10);

type Reply = (StatusCode, Value);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Advance {
    ms: i64,
}

/// Answers one call.
pub async fn answer(app: &App, request: &Parts, body: Incoming) -> Reply {
    let path = request.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    let segments: Vec<&str> = path.split('/').collect();
    match (&request.method, &segments[..]) {
        (&Method::POST, ["tick", name]) => tick(app, (*name).to_owned()).await,
        (&Method::GET, ["clock"]) => now(&app.clock),
        (&Method::POST, ["clock", "advance"]) => match read(body, MAX_BODY_BYTES, BODY_WITHIN).await {
            Ok(body) => advance(&app.clock, &body),
            Err(BodyError::TooLarge) => failure(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
            Err(BodyError::Slow) => failure(StatusCode::REQUEST_TIMEOUT, "the body did not come"),
            Err(BodyError::Broken(error)) => failure(StatusCode::BAD_REQUEST, error.to_string()),
        },
        (_, ["tick", _] | ["clock", "advance"]) => failure(StatusCode::METHOD_NOT_ALLOWED, "this path takes only POST"),
        (_, ["clock"]) => failure(StatusCode::METHOD_NOT_ALLOWED, "this path takes only GET"),
        _ => failure(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

fn failure(status: StatusCode, message: impl Into<String>) -> Reply {
    (status, json!({"error": message.into()}))
}

/// A tick goes on when its caller has gone.
async fn tick(app: &App, name: String) -> Reply {
    let ticks = app.ticks.clone();
    let run = tokio::spawn(async move { ticks.run(&name, Occasion::Asked).await }).await;
    match run {
        Ok(Some(Ok(report))) => (StatusCode::OK, report),
        Ok(Some(Err(error))) => failure(StatusCode::INTERNAL_SERVER_ERROR, causes(&error)),
        Ok(None) => failure(StatusCode::NOT_FOUND, "there is no such tick"),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn now(clock: &Clock) -> Reply {
    (StatusCode::OK, json!({"now": clock.now()}))
}

fn advance(clock: &Clock, body: &[u8]) -> Reply {
    let Clock::Manual(manual) = clock else {
        return failure(StatusCode::CONFLICT, "the clock is the machine's: start the runner with --manual-clock");
    };
    let wanted: Result<Advance, _> = serde_json::from_slice(body);
    let mut left = match wanted {
        Ok(Advance { ms }) if ms < 0 => return failure(StatusCode::BAD_REQUEST, "ms: the clock moves only forward"),
        Ok(Advance { ms }) if ms > LAST_TIMESTAMP.ms_since(clock.now()) => {
            return failure(StatusCode::BAD_REQUEST, "ms: must not lead beyond the year 9999");
        }
        Ok(Advance { ms }) => ms,
        Err(error) => {
            return failure(StatusCode::BAD_REQUEST, format!("the body must be like {{\"ms\": 1000}}: {error}"));
        }
    };
    while left > 0 {
        let step = u32::try_from(left).unwrap_or(u32::MAX);
        manual.advance(step);
        left -= i64::from(step);
    }
    now(clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use punctual_core::clock::ManualClock;
    use punctual_core::time::Timestamp;

    #[test]
    fn a_manual_clock_is_moved_as_far_as_asked() {
        let clock = Clock::Manual(ManualClock::new(Timestamp::from_ms(1_000)));
        assert_eq!(advance(&clock, b"{\"ms\":500}"), (StatusCode::OK, json!({"now": 1_500})));
        assert_eq!(advance(&clock, b"{\"ms\":0}").1, json!({"now": 1_500}));
        let quarter = 90 * 24 * 3_600_000_i64;
        let body = json!({"ms": quarter}).to_string();
        assert_eq!(advance(&clock, body.as_bytes()).1, json!({"now": 1_500 + quarter}));
        assert_eq!(clock.now().as_ms(), 1_500 + quarter);
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_moves_nothing() {
        let clock = Clock::Manual(ManualClock::new(Timestamp::from_ms(1_000)));
        for body in [
            "",
            "{}",
            "{\"ms\":-1}",
            "{\"ms\":1.5}",
            "{\"ms\":\"1\"}",
            "{\"ms\":1,\"s\":2}",
            "5",
            "{\"ms\":9223372036854775807}",
        ] {
            let (status, answer) = advance(&clock, body.as_bytes());
            assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
            assert!(answer["error"].is_string(), "{body}");
        }
        assert_eq!(clock.now().as_ms(), 1_000);
        assert_eq!(advance(&Clock::System, b"{\"ms\":1}").0, StatusCode::CONFLICT);
    }
}
