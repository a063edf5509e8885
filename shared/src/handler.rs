//! What the service runs by itself: handlers, each for the tasks that name it.
//!
//! A handler is a type with a name and typed parameters:
//!
//! ```
//! use punctual_core::handler::{Context, Handler, HandlerError, Registry};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct Order {
//!     id: u64,
//! }
//!
//! struct CancelOrder;
//!
//! impl Handler for CancelOrder {
//!     const NAME: &'static str = "cancel-order";
//!     type Parameters = Order;
//!
//!     async fn handle(&self, order: Order, context: &Context) -> Result<(), HandlerError> {
//!         if order.id == 0 {
//!             return Err(HandlerError::permanent("there is no order 0"));
//!         }
//!         println!("attempt {} of task {}: cancel order {}", context.attempt, context.task_id, order.id);
//!         Ok(())
//!     }
//! }
//!
//! let registry = Registry::default().with(CancelOrder).expect("no other handler has this name");
//! assert!(registry.names().any(|name| name == "cancel-order"));
//! ```

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::types::TransactWriteItem;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use thiserror::Error;

use crate::table::TaskTable;
use crate::time::Timestamp;

/// Why an attempt failed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HandlerError {
    /// Try again, while the task has attempts left.
    #[error("{reason}")]
    Retry {
        /// After this time; `None`: by the task's backoff.
        after: Option<Duration>,
        /// What went wrong; kept with the task.
        reason: String,
    },
    /// Never try again: the task is dead.
    #[error("{reason}")]
    Permanent {
        /// What went wrong; kept with the task.
        reason: String,
    },
}

impl HandlerError {
    /// A failure after which the task's backoff decides when to try again.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Retry { after: None, reason: reason.into() }
    }

    /// A failure after which nothing is tried again.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self::Permanent { reason: reason.into() }
    }
}

/// What a handler is told of the attempt that it makes.
#[derive(Clone)]
pub struct Context {
    /// The task's id: the same on every attempt, so what receives the effect can tell repeats by it.
    pub task_id: String,
    /// Which attempt this is, 1-based.
    pub attempt: u32,
    /// When the attempt is broken off, by the service's clock.
    pub deadline: Timestamp,
    /// The service's clock when the attempt began.
    pub now: Timestamp,
    pub(crate) lease_token: String,
    pub(crate) table: TaskTable,
}

impl Context {
    /// The task's completion as a part of the handler's own transaction: put it into the `TransactWriteItems` that
    /// writes the effect, and both happen or neither, however often the task is tried.
    ///
    /// The transaction is refused when the lease is lost (another consumer has the task, or it is cancelled) or the
    /// task is done: then the effect has happened or must not happen.
    pub fn completion(&self) -> TransactWriteItem {
        self.table.completion(&self.task_id, &self.lease_token, self.now)
    }
}

/// Runs the tasks that name it.
pub trait Handler: Send + Sync + 'static {
    /// The name that a task gives in `handler`.
    const NAME: &'static str;
    /// What the task's `parameters` are read as. Unreadable ones are a failed attempt.
    type Parameters: DeserializeOwned + Send;

    /// Runs one attempt. Dropped at the deadline.
    fn handle(
        &self,
        parameters: Self::Parameters,
        context: &Context,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// The most tasks of this handler that one dispatcher runs at once; `None`: half of what it runs in all, so that
    /// a slow handler leaves room for the others.
    fn concurrency(&self) -> Option<usize> {
        None
    }
}

/// A handler whose parameters' type is out of sight.
pub(crate) trait AnyHandler: Send + Sync {
    fn run<'a>(
        &'a self,
        parameters: &'a RawValue,
        context: &'a Context,
    ) -> Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>>;

    fn limit(&self) -> Option<usize>;
}

impl<H: Handler> AnyHandler for H {
    fn run<'a>(
        &'a self,
        parameters: &'a RawValue,
        context: &'a Context,
    ) -> Pin<Box<dyn Future<Output = Result<(), HandlerError>> + Send + 'a>> {
        Box::pin(async move {
            // A newer deployment may read what this one cannot, so it is tried again like any failure.
            let parameters = serde_json::from_str(parameters.get())
                .map_err(|error| HandlerError::retry(format!("the parameters are not readable: {error}")))?;
            self.handle(parameters, context).await
        })
    }

    fn limit(&self) -> Option<usize> {
        self.concurrency()
    }
}

/// Two handlers have one name.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("two handlers are named {0}")]
pub struct DuplicateHandler(pub &'static str);

/// The handlers of one deployment, by name.
#[derive(Clone, Default)]
pub struct Registry(HashMap<&'static str, Arc<dyn AnyHandler>>);

impl Registry {
    /// Adds a handler; an error when another one has its name.
    pub fn with<H: Handler>(mut self, handler: H) -> Result<Self, DuplicateHandler> {
        match self.0.insert(H::NAME, Arc::new(handler)) {
            None => Ok(self),
            Some(_) => Err(DuplicateHandler(H::NAME)),
        }
    }

    /// The names of all handlers.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }

    pub(crate) fn entry(&self, name: &str) -> Option<(&'static str, &Arc<dyn AnyHandler>)> {
        self.0.get_key_value(name).map(|(name, handler)| (*name, handler))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn AnyHandler>> {
        self.0.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Handler for Nothing {
        const NAME: &'static str = "nothing";
        type Parameters = ();

        async fn handle(&self, (): (), _: &Context) -> Result<(), HandlerError> {
            Ok(())
        }
    }

    #[test]
    fn two_handlers_of_one_name_are_refused() {
        let registry = Registry::default().with(Nothing).expect("the first");
        assert_eq!(registry.with(Nothing).err(), Some(DuplicateHandler("nothing")));
    }
}
