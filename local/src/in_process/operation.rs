//! What a request of the SDK asks of the embedded DynamoDB.

use aws_sdk_dynamodb::config::http::HttpRequest;
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::shared_commit::SharedWrite;

const TARGET: &str = "x-amz-target";
const TARGET_PREFIX: &str = "DynamoDB_20120810.";

/// What a request came to.
pub type Answer = Result<Body, DynoxideError>;
/// Writes a response as JSON, which is done where it is awaited: the database's thread has enough to do.
pub type Body = Box<dyn FnOnce() -> Result<String, DynoxideError> + Send>;
type Run = Box<dyn FnOnce(&Database) -> Answer + Send>;

/// A request.
pub enum Operation {
    /// A write that may share its commit.
    Shared(Box<SharedWrite>),
    /// What is done by itself.
    Alone {
        /// Whether it writes.
        writes: bool,
        /// Does it.
        run: Run,
    },
}

impl Operation {
    /// Reads a request.
    pub fn read(request: &HttpRequest) -> Result<Self, DynoxideError> {
        let operation = request.headers().get(TARGET).and_then(|target| target.strip_prefix(TARGET_PREFIX));
        let body = request.body().bytes().unwrap_or_default();
        Ok(match operation.unwrap_or_default() {
            "PutItem" => match SharedWrite::put(understand(body)?) {
                Ok(write) => Self::Shared(Box::new(write)),
                Err(request) => Self::Alone { writes: true, run: doing(*request, Database::put_item) },
            },
            "UpdateItem" => match SharedWrite::update(understand(body)?) {
                Ok(write) => Self::Shared(Box::new(write)),
                Err(request) => Self::Alone { writes: true, run: doing(*request, Database::update_item) },
            },
            "DeleteItem" => Self::Alone { writes: true, run: doing(understand(body)?, Database::delete_item) },
            "GetItem" => Self::Alone { writes: false, run: doing(understand(body)?, Database::get_item) },
            "Query" => Self::Alone { writes: false, run: doing(understand(body)?, Database::query) },
            "Scan" => Self::Alone { writes: false, run: doing(understand(body)?, Database::scan) },
            "BatchGetItem" => Self::Alone { writes: false, run: doing(understand(body)?, Database::batch_get_item) },
            "BatchWriteItem" => Self::Alone { writes: true, run: doing(understand(body)?, Database::batch_write_item) },
            "TransactGetItems" => {
                Self::Alone { writes: false, run: doing(understand(body)?, Database::transact_get_items) }
            }
            "TransactWriteItems" => {
                Self::Alone { writes: true, run: doing(understand(body)?, Database::transact_write_items) }
            }
            "CreateTable" => Self::Alone { writes: true, run: doing(understand(body)?, Database::create_table) },
            "DescribeTable" => Self::Alone { writes: false, run: doing(understand(body)?, Database::describe_table) },
            "UpdateTimeToLive" => {
                Self::Alone { writes: true, run: doing(understand(body)?, Database::update_time_to_live) }
            }
            "DescribeTimeToLive" => {
                Self::Alone { writes: false, run: doing(understand(body)?, Database::describe_time_to_live) }
            }
            other => {
                let reason = format!("the embedded DynamoDB of the runner does not know the operation '{other}'");
                return Err(DynoxideError::ValidationException(reason));
            }
        })
    }

    /// It as a write that may share its commit, if it is one.
    pub fn shared(&self) -> Option<&SharedWrite> {
        match self {
            Self::Shared(write) => Some(write),
            Self::Alone { .. } => None,
        }
    }

    /// Whether it writes.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Shared(_) | Self::Alone { writes: true, .. })
    }

    /// Does it in a commit of its own.
    pub fn run(self, database: &Database) -> Answer {
        match self {
            Self::Shared(write) => write.alone(database),
            Self::Alone { run, .. } => run(database),
        }
    }
}

fn understand<Request: DeserializeOwned>(body: &[u8]) -> Result<Request, DynoxideError> {
    serde_json::from_slice(body).map_err(|error| DynoxideError::SerializationException(error.to_string()))
}

fn doing<Request: Send + 'static, Response: Serialize + Send + 'static>(
    request: Request,
    operation: fn(&Database, Request) -> Result<Response, DynoxideError>,
) -> Run {
    Box::new(move |database| operation(database, request).map(written))
}

/// A response, to be written as JSON.
pub fn written(response: impl Serialize + Send + 'static) -> Body {
    Box::new(move || {
        serde_json::to_string(&response).map_err(|error| DynoxideError::InternalServerError(error.to_string()))
    })
}
