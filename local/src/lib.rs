//! Punctual on one machine: the same functions that run in the cloud, over HTTP, on an embedded DynamoDB and a real
//! Redis, wired by `template.yaml`.
//!
//! - [`template`]: what `template.yaml` says. [`functions`]: the functions that it names.
//! - `server`: HTTP, as API Gateway does it, with [`routes`], [`event`] and `key`; `local_calls`: what only a runner
//!   has.
//! - `database`, `table`, `redis_server`: the stores; [`in_process`]: the way to the first. `ticks`: what runs by the
//!   minute.
//! - [`Options`]: how it is started. [`start()`]: all of it, in order.

mod body;
mod database;
pub mod event;
pub mod functions;
pub mod in_process;
mod key;
mod local_calls;
mod options;
mod redis_server;
pub mod routes;
mod server;
mod start;
mod table;
pub mod template;
mod ticks;

pub use database::{DatabaseError, EmbeddedDatabase};
pub use options::{Options, TABLE_NAME};
pub use redis_server::RedisServerError;
pub use start::{Running, StartError, start};
pub use table::TableError;
