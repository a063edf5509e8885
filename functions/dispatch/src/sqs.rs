//! The handler `sqs`: sends a message to a queue of this account.

use aws_config::BehaviorVersion;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::MessageAttributeValue;
use punctual_core::handler::{Context, Handler, HandlerError};
use serde::Deserialize;
use serde_json::value::RawValue;

/// The task's `parameters`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Parameters {
    queue_url: String,
    /// The message: a text as it is, any other JSON as its text.
    body: Box<RawValue>,
    /// The message group of a FIFO queue; the task's id when left out.
    group_id: Option<String>,
}

/// Sends messages to queues whose names begin with a configured prefix.
pub struct Sqs {
    prefix: String,
    client: Client,
}

impl Sqs {
    /// A handler for queues named `prefix...`.
    pub async fn new(prefix: String) -> Self {
        let config = aws_config::load_defaults(BehaviorVersion::latest()).await;
        Self { prefix, client: Client::new(&config) }
    }
}

impl Handler for Sqs {
    const NAME: &'static str = "sqs";
    type Parameters = Parameters;

    /// The message carries the task's id and the attempt as attributes; a FIFO queue drops repeats by the id.
    async fn handle(&self, parameters: Parameters, context: &Context) -> Result<(), HandlerError> {
        let url = &parameters.queue_url;
        let name = url.rsplit('/').next().unwrap_or_default();
        if !name.starts_with(&self.prefix) {
            let reason = format!("queueUrl must lead to a queue whose name begins with {}", self.prefix);
            return Err(HandlerError::permanent(reason));
        }
        let raw = parameters.body.get();
        let body = if raw.starts_with('"') {
            serde_json::from_str(raw).map_err(|error| HandlerError::permanent(format!("body: {error}")))?
        } else {
            raw.to_owned()
        };
        let mut message = self.client.send_message().queue_url(url).message_body(body);
        for (name, value) in [("taskId", context.task_id.clone()), ("attempt", context.attempt.to_string())] {
            let value = MessageAttributeValue::builder()
                .data_type("String")
                .string_value(value)
                .build()
                .expect("a data type is given");
            message = message.message_attributes(name, value);
        }
        if name.ends_with(".fifo") {
            message = message
                .message_group_id(parameters.group_id.as_ref().unwrap_or(&context.task_id))
                .message_deduplication_id(&context.task_id);
        }
        match message.send().await {
            Ok(_) => Ok(()),
            Err(error) => {
                let permanent = error
                    .as_service_error()
                    .is_some_and(|error| error.is_queue_does_not_exist() || error.is_invalid_message_contents());
                let reason = aws_sdk_sqs::error::DisplayErrorContext(error).to_string();
                Err(if permanent { HandlerError::permanent(reason) } else { HandlerError::retry(reason) })
            }
        }
    }
}
