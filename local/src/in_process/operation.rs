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
pub struct Operation {
    /// Does it by itself.
    pub run: Run,
    /// Whether it writes.
    pub writes: bool,
    /// The same as a write that may share its commit.
    pub shared: Option<SharedWrite>,
}

impl Operation {
    /// Reads a request.
    pub fn read(request: &HttpRequest) -> Result<Self, DynoxideError> {
        let operation = request.headers().get(TARGET).and_then(|target| target.strip_prefix(TARGET_PREFIX));
        let body = request.body().bytes().unwrap_or_default();
        let (run, writes) = match operation.unwrap_or_default() {
            "PutItem" => (run(body, Database::put_item)?, true),
            "UpdateItem" => (run(body, Database::update_item)?, true),
            "DeleteItem" => (run(body, Database::delete_item)?, true),
            "GetItem" => (run(body, Database::get_item)?, false),
            "Query" => (run(body, Database::query)?, false),
            "Scan" => (run(body, Database::scan)?, false),
            "BatchGetItem" => (run(body, Database::batch_get_item)?, false),
            "BatchWriteItem" => (run(body, Database::batch_write_item)?, true),
            "TransactGetItems" => (run(body, Database::transact_get_items)?, false),
            "TransactWriteItems" => (run(body, Database::transact_write_items)?, true),
            "CreateTable" => (run(body, Database::create_table)?, true),
            "DescribeTable" => (run(body, Database::describe_table)?, false),
            "UpdateTimeToLive" => (run(body, Database::update_time_to_live)?, true),
            "DescribeTimeToLive" => (run(body, Database::describe_time_to_live)?, false),
            other => {
                let reason = format!("the embedded DynamoDB of the runner does not know the operation '{other}'");
                return Err(DynoxideError::ValidationException(reason));
            }
        };
        let shared = match operation {
            Some("PutItem" | "UpdateItem") => SharedWrite::read(body),
            _ => None,
        };
        Ok(Self { run, writes, shared })
    }
}

fn run<Request, Response>(
    body: &[u8],
    operation: fn(&Database, Request) -> Result<Response, DynoxideError>,
) -> Result<Run, DynoxideError>
where
    Request: DeserializeOwned + Send + 'static,
    Response: Serialize + Send + 'static,
{
    let request: Request =
        serde_json::from_slice(body).map_err(|error| DynoxideError::SerializationException(error.to_string()))?;
    Ok(Box::new(move |database| operation(database, request).map(written)))
}

/// A response, to be written as JSON.
pub fn written(response: impl Serialize + Send + 'static) -> Body {
    Box::new(move || {
        serde_json::to_string(&response).map_err(|error| DynoxideError::InternalServerError(error.to_string()))
    })
}
