//! The functions by the names that the template gives them.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use punctual_core::api::Answer;
use punctual_core::config::{DispatchConfig, Environment, TickConfig, WrongVariable};
use punctual_core::error::Error;
use punctual_core::service::Service;
use serde::Serialize;
use serde_json::Value;

/// Answers one API Gateway event.
pub type ApiCall = Arc<dyn Fn(Arc<Service>, String) -> BoxFuture<'static, Answer> + Send + Sync>;
/// Runs one tick and gives its report.
pub type TickCall = Arc<dyn Fn(Arc<Service>, Occasion) -> BoxFuture<'static, Result<Value, Error>> + Send + Sync>;

/// Why a tick runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// Its schedule says so.
    Scheduled,
    /// Somebody asked for one step.
    Asked,
}

/// A function, configured.
#[derive(Clone)]
pub enum Function {
    /// It answers calls.
    Api(ApiCall),
    /// It runs by the minute.
    Tick(TickCall),
}

/// A function that cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// A variable is wrong.
    #[error(transparent)]
    Variable(#[from] WrongVariable),
    /// The handlers of `dispatch`.
    #[error(transparent)]
    Handlers(#[from] dispatch::RegistryError),
}

/// The function `name`, configured by its variables; `None` when the runner has no such function.
pub async fn function(name: &str, environment: &Environment<'_>) -> Result<Option<Function>, FunctionError> {
    Ok(Some(match name {
        "add" => api(|service, event| Box::pin(async move { add::handle(&service, &event).await })),
        "cancel" => api(|service, event| Box::pin(async move { cancel::handle(&service, &event).await })),
        "poll" => api(|service, event| Box::pin(async move { poll::handle(&service, &event).await })),
        "settle" => api(|service, event| Box::pin(async move { settle::handle(&service, &event).await })),
        "inspect" => api(|service, event| Box::pin(async move { inspect::handle(&service, &event).await })),
        "refresh" => {
            let tick_config = TickConfig::read(environment)?;
            tick(move |service, _| Box::pin(async move { report(refresh::handle(&service, &tick_config).await) }))
        }
        "recover" => {
            let tick_config = TickConfig::read(environment)?;
            tick(move |service, _| Box::pin(async move { report(recover::handle(&service, &tick_config).await) }))
        }
        "dispatch" => {
            let shift_config = DispatchConfig::read(environment)?;
            let registry = Arc::new(dispatch::registry(environment).await?);
            tick(move |service, occasion| {
                let registry = registry.clone();
                let shift = match occasion {
                    Occasion::Scheduled => shift_config.shift,
                    // One pass, so that whoever asked gets the report at once.
                    Occasion::Asked => Duration::ZERO,
                };
                let config = DispatchConfig { shift, ..shift_config };
                Box::pin(async move { report(dispatch::handle(&service, &registry, &config).await) })
            })
        }
        _ => return Ok(None),
    }))
}

fn api(call: impl Fn(Arc<Service>, String) -> BoxFuture<'static, Answer> + Send + Sync + 'static) -> Function {
    Function::Api(Arc::new(call))
}

fn tick(
    call: impl Fn(Arc<Service>, Occasion) -> BoxFuture<'static, Result<Value, Error>> + Send + Sync + 'static,
) -> Function {
    Function::Tick(Arc::new(call))
}

fn report(outcome: Result<impl Serialize, Error>) -> Result<Value, Error> {
    serde_json::to_value(outcome?).map_err(|error| Error::Internal(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::Template;

    #[tokio::test]
    async fn every_route_and_every_schedule_of_the_template_reaches_its_function() {
        let nothing = Environment(&|_| None);
        for definition in Template::embedded().expect("a template").functions {
            let known = function(&definition.name, &nothing).await.expect("configured");
            let (routes, schedules) = (definition.routes.len(), definition.schedules.len());
            match known.unwrap_or_else(|| panic!("{} is not known", definition.name)) {
                Function::Api(_) => assert!(routes > 0 && schedules == 0, "{}", definition.name),
                Function::Tick(_) => assert!(routes == 0 && schedules > 0, "{}", definition.name),
            }
        }
        assert!(function("nothing", &nothing).await.expect("configured").is_none());
    }

    #[tokio::test]
    async fn a_wrong_variable_of_a_function_is_named() {
        let wrong = Environment(&|name| (name == "TICK_SECONDS").then(|| "soon".to_owned()));
        let error = function("refresh", &wrong).await.err().expect("refused");
        assert!(error.to_string().starts_with("TICK_SECONDS: "), "{error}");
    }
}
