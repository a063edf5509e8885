//! The core of Punctual, a delayed-task service.
//!
//! - [`task`], [`state`], [`backoff`], [`time`]: the domain. No I/O, no clock.
//! - [`table`]: DynamoDB, the truth. [`due_index`]: Redis, which makes it quick.
//! - [`service`]: what the functions do, in terms of the two.
//! - [`handler`]: what dispatch runs by itself.
//! - [`api`]: API Gateway events in, the envelope out. [`lambda`]: the Lambda runtime around it.
//! - [`config`], [`clock`], [`error`]: what everything is given.

pub mod api;
pub mod backoff;
pub mod clock;
pub mod config;
pub mod due_index;
pub mod error;
pub mod handler;
pub mod lambda;
pub mod service;
pub mod state;
pub mod table;
pub mod task;
pub mod time;
