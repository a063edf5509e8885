//! What a call can fail with, and how each failure is told to the caller.

use thiserror::Error;

use crate::due_index::Down;
use crate::state::Refusal;
use crate::task::Status;

/// The cause of a failure of a store, kept for the log.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A call's failure. [`Error::status`] and [`Error::word`] map it to HTTP, once, at the edge.
#[derive(Debug, Error)]
pub enum Error {
    /// The request is wrong; nothing was stored.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field, parameter or part of the request that is wrong.
        field: String,
        /// What it must be.
        reason: String,
    },
    /// The request or one of its fields is larger than the limit.
    #[error("{field}: must be at most {limit_bytes} bytes")]
    TooLarge {
        /// What is too large.
        field: &'static str,
        /// The most bytes that it may have.
        limit_bytes: usize,
    },
    /// The bearer key is missing or wrong.
    #[error("the Authorization header must carry the key: Bearer <key>")]
    Unauthorized,
    /// No such task.
    #[error("there is no task {0}")]
    NotFound(String),
    /// No such path.
    #[error("there is nothing at this path")]
    NoSuchPath,
    /// The path does not take this method.
    #[error("this path takes only {0}")]
    MethodNotAllowed(&'static str),
    /// The id is taken by a task with other content.
    #[error("a task {0} with other content exists")]
    TaskExists(String),
    /// The task is over.
    #[error("the task is already {}", .0.as_str())]
    TaskFinished(Status),
    /// The token is not that of the current lease.
    #[error("the lease is lost: the token is not that of the current lease")]
    LeaseLost,
    /// The task is in a state that this call is not for.
    #[error("the task is {}: this call is not for it", .0.as_str())]
    WrongState(Status),
    /// DynamoDB asked for a pause.
    #[error("DynamoDB throttles: try again later")]
    Throttled(#[source] Cause),
    /// DynamoDB does not answer.
    #[error("DynamoDB is not reached: try again later")]
    Unavailable(#[source] Cause),
    /// The call took longer than it may.
    #[error("the answer took too long: try again later")]
    TooSlow,
    /// Redis does not answer, and the call needs it.
    #[error("Redis is not reached: try again later")]
    RedisUnavailable(#[source] Down),
    /// A fault of ours.
    #[error("internal error")]
    Internal(#[source] Cause),
}

impl Error {
    /// An [`Error::Invalid`] for `field`.
    pub fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), reason: reason.into() }
    }

    /// An [`Error::RedisUnavailable`].
    pub fn redis(down: Down) -> Self {
        Self::RedisUnavailable(down)
    }

    /// The HTTP status of this error.
    pub fn status(&self) -> u16 {
        match self {
            Self::Invalid { .. } => 400,
            Self::Unauthorized => 401,
            Self::NotFound(_) | Self::NoSuchPath => 404,
            Self::MethodNotAllowed(_) => 405,
            Self::TaskExists(_) | Self::TaskFinished(_) | Self::LeaseLost | Self::WrongState(_) => 409,
            Self::TooLarge { .. } => 413,
            Self::Throttled(_) => 429,
            Self::Internal(_) => 500,
            Self::Unavailable(_) | Self::TooSlow | Self::RedisUnavailable(_) => 503,
        }
    }

    /// The stable word for this error in the envelope's `error`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid",
            Self::Unauthorized => "unauthorized",
            Self::NotFound(_) | Self::NoSuchPath => "not_found",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::TaskExists(_) => "task_exists",
            Self::TaskFinished(_) => "task_finished",
            Self::LeaseLost => "lease_lost",
            Self::WrongState(_) => "wrong_state",
            Self::TooLarge { .. } => "too_large",
            Self::Throttled(_) => "throttled",
            Self::Internal(_) => "internal",
            Self::Unavailable(_) | Self::TooSlow | Self::RedisUnavailable(_) => "unavailable",
        }
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::LeaseLost => Self::LeaseLost,
            Refusal::Finished(status) => Self::TaskFinished(status),
            Refusal::WrongState(status) => Self::WrongState(status),
            Refusal::NotDue(_) => Self::WrongState(Status::Scheduled),
            Refusal::Held(_) | Refusal::OtherLane | Refusal::AttemptsUsed => Self::WrongState(Status::Leased),
        }
    }
}
