//! What the measurements share.

pub mod client;
pub mod process;
pub mod runner;
pub mod table;
