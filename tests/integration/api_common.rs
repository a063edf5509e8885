//! What the tests of the API's calls share.

use std::collections::{BTreeMap, HashMap};

use punctual_core::api::Answer;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tests::{Reply, World, event};

pub const ADD: &str = "/api/v1/task/add";
pub const POLL: &str = "/api/v1/task/poll";

/// All that both stores hold, to the byte.
#[derive(Debug, PartialEq, Eq)]
pub struct Stored {
    items: BTreeMap<String, BTreeMap<String, String>>,
    redis: BTreeMap<String, Vec<u8>>,
}

impl Stored {
    pub fn is_empty(&self) -> bool {
        self.items.is_empty() && self.redis.is_empty()
    }
}

pub async fn stored(world: &World) -> Stored {
    let (client, table) = world.service.table.client();
    let scan = client.scan().table_name(table).into_paginator().items().send();
    let items = scan.try_collect().await.expect("a scan");
    let items = items.into_iter().map(|item| {
        let id = item["taskId"].as_s().expect("a text").clone();
        (id, item.into_iter().map(|(name, value)| (name, format!("{value:?}"))).collect())
    });
    let mut connection = world.redis.connection();
    let dump = |key: String| {
        let bytes = redis::cmd("DUMP").arg(&key).query(&mut connection).expect("DUMP");
        (key, bytes)
    };
    Stored { items: items.collect(), redis: world.redis.keys().into_iter().map(dump).collect() }
}

/// A call that must be refused with `status` and `word`, in the whole envelope, and must leave both stores as they
/// were.
pub async fn refused(world: &World, method: &str, path: &str, body: &str, status: u16, word: &str) -> String {
    let before = stored(world).await;
    let reply = world.call_raw(method, path, body).await;
    let call = format!("{method} {path} {}", body.chars().take(200).collect::<String>());
    assert_eq!(reply.error(), (status, word), "{call}: {}", reply.body);
    assert_eq!(reply.body["code"], status, "{call}");
    assert!(reply.body.get("data").is_some(), "{call}: {}", reply.body);
    assert!(stored(world).await == before, "{call} changed a store");
    reply.body["errorMessage"].as_str().expect("errors have a message").to_owned()
}

/// A refused call with a JSON body.
pub async fn refused_json(world: &World, path: &str, body: &Value, status: u16, word: &str) -> String {
    refused(world, "POST", path, &body.to_string(), status, word).await
}

/// The function that serves a route of the design's table, by the route's first words.
pub async fn answer_of(function: &str, world: &World, event: &str) -> Answer {
    match function {
        "add" => Box::pin(add::handle(&world.service, event)).await,
        "cancel" => Box::pin(cancel::handle(&world.service, event)).await,
        "poll" => Box::pin(poll::handle(&world.service, event)).await,
        "settle" => Box::pin(settle::handle(&world.service, event)).await,
        "inspect" => Box::pin(inspect::handle(&world.service, event)).await,
        other => panic!("no function {other}"),
    }
}

/// The same as a reply whose body is read.
pub async fn reply_of(function: &str, world: &World, event: &str) -> Reply {
    let answer = answer_of(function, world, event).await;
    Reply { status: answer.status_code, body: serde_json::from_str(&answer.body).expect("the envelope is JSON") }
}

/// An object's members as they stand in the text.
pub type Members = HashMap<String, Box<RawValue>>;

/// The raw JSON behind `data` of a call that must succeed.
pub async fn raw_data(function: &str, world: &World, method: &str, path: &str, body: &str) -> Box<RawValue> {
    let answer = answer_of(function, world, &event(method, path, body)).await;
    assert_eq!(answer.status_code, 200, "{method} {path}: {}", answer.body);
    let mut envelope: Members = serde_json::from_str(&answer.body).expect("an envelope");
    envelope.remove("data").expect("data")
}

/// A task of type `t`, due now, with an id.
pub fn due(id: &str) -> Value {
    json!({"taskId": id, "taskType": "t", "delay": 0})
}

/// `base` with the members of `more`.
pub fn with(mut base: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        base[name] = value.clone();
    }
    base
}

/// Adds a due task and leases it.
pub async fn leased(world: &World, task: Value) -> Value {
    let id = world.add(task.clone()).await;
    let lane = format!("{}/{}", task["taskType"].as_str().expect("a name"), task["priority"].as_u64().unwrap_or(0));
    let polled = world.poll(&lane, 1).await;
    assert_eq!(polled.len(), 1, "{id}");
    assert_eq!(polled[0]["taskId"], id);
    polled[0].clone()
}

/// A task in each state, under the name of that state; the leased one as polled.
pub async fn one_of_each_state(world: &World) -> Value {
    let succeeded = leased(world, due("succeeded")).await;
    world.settle("ack", &succeeded, json!({})).await.data();
    let dead = leased(world, due("dead")).await;
    world.settle("nack", &dead, json!({"permanent": true, "error": "beyond help"})).await.data();
    let cancelled = leased(world, due("cancelled")).await;
    world.call("DELETE", "/api/v1/task/cancel/cancelled", Value::Null).await.data();
    let leased = leased(world, due("leased")).await;
    world.add(json!({"taskId": "scheduled", "taskType": "t", "delay": 60_000})).await;
    json!({"succeeded": succeeded, "dead": dead, "cancelled": cancelled, "leased": leased})
}
