//! The handler `lambda`: invokes a function by name and waits for its result.

use aws_config::BehaviorVersion;
use aws_sdk_lambda::Client;
use aws_sdk_lambda::primitives::Blob;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use punctual_core::handler::{Context, Handler, HandlerError};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

/// The task's `parameters`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    function: String,
    /// The function's event; `null` when left out.
    payload: Option<Box<RawValue>>,
}

/// Invokes functions whose names begin with a configured prefix.
pub struct Lambda {
    prefix: String,
    client: Client,
}

impl Lambda {
    /// A handler for functions named `prefix...`.
    pub async fn new(prefix: String) -> Self {
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        Self { prefix, client: Client::new(&config) }
    }
}

impl Handler for Lambda {
    const NAME: &'static str = "lambda";
    type Parameters = Parameters;

    /// The function is told the task's id and the attempt in its client context, so that it can tell repeats.
    async fn handle(&self, parameters: Parameters, context: &Context) -> Result<(), HandlerError> {
        let name = &parameters.function;
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        if !plain || !name.starts_with(&self.prefix) {
            let reason = format!("function must be a plain name that begins with {}", self.prefix);
            return Err(HandlerError::permanent(reason));
        }
        let told = json!({"custom": {"taskId": context.task_id, "attempt": context.attempt.to_string()}});
        let payload = parameters.payload.as_deref().unwrap_or(RawValue::NULL).get();
        let invoked = self
            .client
            .invoke()
            .function_name(name)
            .client_context(STANDARD.encode(told.to_string()))
            .payload(Blob::new(payload.as_bytes()))
            .send()
            .await;
        match invoked {
            Ok(answer) => match answer.function_error() {
                None => Ok(()),
                Some(kind) => Err(HandlerError::retry(format!("the function {name} failed: {kind}"))),
            },
            Err(error) => {
                let permanent = error.as_service_error().is_some_and(|error| {
                    error.is_resource_not_found_exception() || error.is_request_too_large_exception()
                });
                let reason = aws_sdk_lambda::error::DisplayErrorContext(error).to_string();
                Err(if permanent { HandlerError::permanent(reason) } else { HandlerError::retry(reason) })
            }
        }
    }
}
