//! Helpers of the integration tests: real stores, one pair for each test, and calls as API Gateway makes them.

mod fault_proxy;
pub mod lambda_runtime;
mod proxy;
mod redis_cluster;
mod redis_server;
pub mod reference;
pub mod role;
mod runner;
mod until;
mod watched;
mod world;

pub use fault_proxy::{Break, FaultProxy, Plan, Store};
pub use proxy::{Fault, Proxy};
pub use redis_cluster::RedisCluster;
pub use redis_server::RedisServer;
pub use runner::Runner;
pub use until::{Patience, until, until_listening};
pub use watched::{Watched, free_port};
pub use world::{Reply, START_MS, Settings, World, call, call_event, create_table, event, ids, sorted_ids, task};
