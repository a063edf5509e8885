//! Each minute: a dispatcher that runs the tasks that name a handler until the next one takes over.
//!
//! To add a handler, write it in a file of its own beside `webhook.rs` and name it in [`registry`].

mod address;
mod lambda;
mod sqs;
mod webhook;

use std::sync::Arc;

use lambda_runtime::{LambdaEvent, service_fn};
use punctual_core::config::{DispatchConfig, Environment, WrongVariable};
use punctual_core::error::Error;
use punctual_core::handler::{DuplicateHandler, Registry};
use punctual_core::lambda::{log_as_json, log_tick, process_variable, service};
use punctual_core::service::{DispatchReport, Service};
use serde_json::value::RawValue;
use thiserror::Error;

pub use address::is_public;
pub use lambda::Lambda;
pub use sqs::Sqs;
pub use webhook::{Webhook, WebhookConfig};

/// Why the registry could not be made.
#[derive(Debug, Error)]
pub enum RegistryError {
    /// A variable is wrong.
    #[error(transparent)]
    Variable(#[from] WrongVariable),
    /// Two handlers have one name.
    #[error(transparent)]
    Duplicate(#[from] DuplicateHandler),
    /// The HTTP client could not be made.
    #[error("the HTTP client for webhooks: {0}")]
    Client(#[from] reqwest::Error),
}

/// The handlers of this deployment. Each is off unless it is configured.
pub async fn registry(environment: &Environment<'_>) -> Result<Registry, RegistryError> {
    let mut registry = Registry::default();
    if let Some(config) = WebhookConfig::read(environment)? {
        registry = registry.with(Webhook::new(config)?)?;
    }
    if let Some(prefix) = environment.text("LAMBDA_PREFIX") {
        registry = registry.with(Lambda::new(prefix).await)?;
    }
    if let Some(prefix) = environment.text("SQS_QUEUE_PREFIX") {
        registry = registry.with(Sqs::new(prefix).await)?;
    }
    Ok(registry)
}

/// Runs one shift; see [`Service::dispatch`].
pub async fn handle(
    service: &Arc<Service>,
    registry: &Registry,
    config: &DispatchConfig,
) -> Result<DispatchReport, Error> {
    service.dispatch(registry, config).await
}

/// Runs the function in the Lambda runtime.
pub async fn run() -> Result<(), lambda_runtime::Error> {
    log_as_json()?;
    let environment = Environment(&process_variable);
    let config = DispatchConfig::read(&environment)?;
    let registry = registry(&environment).await?;
    let service = Arc::new(service().await?);
    let (service, registry, config) = (&service, &registry, &config);
    lambda_runtime::run(service_fn(async |_event: LambdaEvent<Box<RawValue>>| {
        // Boxed: the future is large, and its layout deep.
        log_tick("dispatch", Box::pin(handle(service, registry, config))).await
    }))
    .await
}
