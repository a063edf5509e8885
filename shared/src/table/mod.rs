//! DynamoDB, the truth: every transition is one conditional write.

pub mod attributes;
mod client;
mod item;
mod read;
mod update;
mod write;

pub use client::{Meter, Usage, connect, connect_to};
pub use item::{Item, Malformed, from_item, to_item};
pub use read::{Page, Row};
pub use write::{Inserted, Refused};

/// The table of tasks.
#[derive(Clone)]
pub struct TaskTable {
    client: aws_sdk_dynamodb::Client,
    name: String,
    shards: u16,
    meter: Meter,
}

impl TaskTable {
    /// The table `name`, whose index has `shards` shards.
    pub fn new(client: aws_sdk_dynamodb::Client, name: String, shards: u16) -> Self {
        Self { client, name, shards, meter: Meter::default() }
    }

    /// The number of index shards.
    pub fn shards(&self) -> u16 {
        self.shards
    }

    /// What this table object has used so far.
    pub fn usage(&self) -> Usage {
        self.meter.usage()
    }

    /// The client and the table's name, for a handler's own transaction.
    pub fn client(&self) -> (&aws_sdk_dynamodb::Client, &str) {
        (&self.client, &self.name)
    }
}
