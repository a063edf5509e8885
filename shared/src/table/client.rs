//! The DynamoDB client: its time limits, what its errors mean, what it used.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::{Credentials, Region};
use aws_sdk_dynamodb::error::{DisplayErrorContext, ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::types::ConsumedCapacity;

use crate::error::Error;

/// A DynamoDB that does not even accept a connection within this is down.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_000);
/// One try of a request.
const ATTEMPT_TIMEOUT: Duration = Duration::from_millis(1_500);
/// A request with its repeats: below the 5 seconds that a caller waits at most.
const OPERATION_TIMEOUT: Duration = Duration::from_millis(3_500);
/// Tries of one request.
const ATTEMPTS: u32 = 3;

/// A client by the environment of the process: region, credentials, endpoint.
pub async fn connect() -> Client {
    client(aws_config::defaults(BehaviorVersion::latest())).await
}

/// A client of the emulator at `endpoint`, which takes any credentials.
pub async fn connect_to(endpoint: &str) -> Client {
    let loader = aws_config::defaults(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::from_static("us-east-1"))
        .credentials_provider(Credentials::new("local", "local", None, None, "local"));
    client(loader).await
}

async fn client(loader: ConfigLoader) -> Client {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(OPERATION_TIMEOUT)
        .build();
    let config =
        loader.timeout_config(timeouts).retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS)).load().await;
    Client::new(&config)
}

/// What an SDK error means to the caller.
pub(super) fn classify<E>(error: SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let code = error.code().unwrap_or_default().to_owned();
    let server_fault = error.raw_response().is_some_and(|answer| answer.status().is_server_error());
    let answered = matches!(error, SdkError::ServiceError(_));
    // The context names causes and codes, never the item.
    let cause = format!("{}", DisplayErrorContext(error)).into();
    match code.as_str() {
        "ProvisionedThroughputExceededException" | "ThrottlingException" | "RequestLimitExceeded" => {
            Error::Throttled(cause)
        }
        _ if answered && !server_fault => Error::Internal(cause),
        _ => Error::Unavailable(cause),
    }
}

/// Counts requests and capacity units, in tenths of a unit.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    write_tenths: AtomicU64,
    read_tenths: AtomicU64,
}

/// What a [`Meter`] has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Requests that were answered.
    pub requests: u64,
    /// Write units, index included.
    pub write_units: f64,
    /// Read units, index included.
    pub read_units: f64,
}

impl Meter {
    /// Adds one write request with the units that its answer told.
    pub(super) fn wrote(&self, capacity: Option<&ConsumedCapacity>) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.write_tenths.fetch_add(tenths(capacity), Ordering::Relaxed);
    }

    /// Adds one read request with the units that its answer told.
    pub(super) fn read(&self, capacity: Option<&ConsumedCapacity>) {
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        self.0.read_tenths.fetch_add(tenths(capacity), Ordering::Relaxed);
    }

    /// The totals so far.
    pub fn usage(&self) -> Usage {
        let units = |tenths: &AtomicU64| tenths.load(Ordering::Relaxed) as f64 / 10.0;
        Usage {
            requests: self.0.requests.load(Ordering::Relaxed),
            write_units: units(&self.0.write_tenths),
            read_units: units(&self.0.read_tenths),
        }
    }
}

fn tenths(capacity: Option<&ConsumedCapacity>) -> u64 {
    let units = capacity.and_then(|c| c.capacity_units()).unwrap_or(0.0);
    (units * 10.0).round() as u64
}
