//! One test's own service: a table, a Redis, a clock that stands still, and the functions on top.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection,
    ProjectionType, ScalarAttributeType,
};
use local::in_process::InProcess;
use punctual_core::clock::{Clock, ManualClock};
use punctual_core::config::{Config, TickConfig};
use punctual_core::service::{RecoverReport, RefreshReport, Service};
use punctual_core::table::attributes::{BUCKET, INDEX, LANE, TASK_ID, WAKE};
use punctual_core::table::{connect_to, to_item};
use punctual_core::time::Timestamp;
use serde_json::{Value, json};

use crate::RedisServer;

/// Where each test's clock stands at first: 2027-01-15T08:00:00Z.
pub const START_MS: i64 = 1_800_000_000_000;

/// What a test may set.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Partitions of each queue.
    pub queue_partitions: u16,
    /// Shards of the index.
    pub index_shards: u16,
    /// The look-ahead, in milliseconds.
    pub window_ms: i64,
    /// A lease when the caller does not say, in milliseconds.
    pub lease_ms: i64,
    /// How long a tick may work.
    pub tick_budget: Duration,
    /// The nodes of a cluster; none: the world's own Redis.
    pub redis_urls: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue_partitions: 1,
            index_shards: 4,
            window_ms: 300_000,
            lease_ms: 30_000,
            tick_budget: Duration::from_secs(40),
            redis_urls: Vec::new(),
        }
    }
}

/// An answer: the HTTP status and the envelope.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The envelope.
    pub body: Value,
}

impl Reply {
    /// What stands behind `data`, of a call that must have succeeded.
    #[track_caller]
    pub fn data(&self) -> &Value {
        assert_eq!(self.status, 200, "{}", self.body);
        &self.body["data"]
    }

    /// The status and the machine word of an error.
    pub fn error(&self) -> (u16, &str) {
        (self.status, self.body["error"].as_str().unwrap_or_default())
    }
}

/// Items in memory at once while many are imported.
const IMPORT_AT_ONCE: usize = 50_000;

/// One test's own service.
pub struct World {
    /// Its Redis.
    pub redis: RedisServer,
    /// Its emulated DynamoDB.
    pub database: dynoxide::Database,
    /// A client of that, within this process.
    client: Client,
    /// The address of that.
    pub endpoint: String,
    /// Its clock.
    pub clock: ManualClock,
    /// The service.
    pub service: Arc<Service>,
    settings: Settings,
}

impl World {
    /// A service with empty stores.
    pub async fn new() -> Self {
        Self::with(Settings::default()).await
    }

    /// The same with other settings.
    pub async fn with(settings: Settings) -> Self {
        let redis = RedisServer::start();
        let database = dynoxide::Database::memory().expect("an emulator");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(dynoxide::server::serve_on(listener, database.clone()));
        let client = InProcess::new(database.clone(), None).expect("a thread").client().await;
        create_table(&client, "tasks").await;
        let clock = ManualClock::new(Timestamp::from_ms(START_MS));
        let service = service(client.clone(), &redis.url(), Clock::Manual(clock.clone()), &settings);
        // As each process that ticks does at its start: from here on Redis knows all that is due.
        service.refresh(&TickConfig { budget: settings.tick_budget }).await.expect("a refresh");
        Self { redis, database, client, endpoint, clock, service: Arc::new(service), settings }
    }

    /// Another process of the service on the same stores, with another clock or other settings.
    pub async fn another(&self, clock: Clock, settings: &Settings) -> Arc<Service> {
        Arc::new(service(self.client.clone(), &self.redis.url(), clock, settings))
    }

    /// Another process on the same clock that reaches DynamoDB at another address, such as that of a proxy.
    pub async fn through(&self, endpoint: &str) -> Arc<Service> {
        let clock = Clock::Manual(self.clock.clone());
        Arc::new(service(connect_to(endpoint).await, &self.redis.url(), clock, &self.settings))
    }

    /// Sets one attribute of an item behind the service's back, or removes it.
    pub async fn spoil(&self, id: &str, name: &str, value: Option<AttributeValue>) {
        let update = self.client.update_item().table_name("tasks").key(TASK_ID, AttributeValue::S(id.to_owned()));
        let update = update.expression_attribute_names("#name", name);
        let update = match value {
            Some(value) => update.update_expression("SET #name = :value").expression_attribute_values(":value", value),
            None => update.update_expression("REMOVE #name"),
        };
        update.send().await.expect("the item is changed");
    }

    /// Polls a queue until it gives nothing more, and returns all that it gave, in order.
    pub async fn drain(&self, queue: &str) -> Vec<Value> {
        let mut all = Vec::new();
        loop {
            let some = self.poll(queue, 100).await;
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    /// Adds tasks of one type, due after `delay_ms`, with the ids `{prefix}{0..count}`.
    pub async fn add_many(&self, prefix: &str, count: usize, delay_ms: i64) -> Vec<String> {
        let ids: Vec<String> = (0..count).map(|n| format!("{prefix}{n}")).collect();
        for batch in ids.chunks(100) {
            let tasks: Vec<Value> = batch.iter().map(|id| task(id, delay_ms)).collect();
            let added = self.add(Value::Array(tasks)).await;
            assert!(added.as_array().expect("an array").iter().all(|item| item["created"] == true), "{added}");
        }
        ids
    }

    /// The same quickly, for very many: past the service, into DynamoDB only.
    pub async fn import_many(&self, prefix: &str, count: usize, delay_ms: i64) {
        let first = format!("{prefix}0");
        self.add(task(&first, delay_ms)).await;
        self.import_like(&first, (1..count).map(|n| (format!("{prefix}{n}"), self.now() + delay_ms))).await;
    }

    /// Stores copies of the task `sample` with other ids and due times, past the service, into DynamoDB only.
    pub async fn import_like(&self, sample: &str, copies: impl Iterator<Item = (String, i64)>) {
        use dynoxide::AttributeValue::{BOOL, N, S};
        let mut sample = self.service.get(sample, Timestamp::from_ms(self.now())).await.expect("it is stored");
        let items = copies.map(|(id, due_ms)| {
            sample.id = id;
            sample.execute_time = Timestamp::from_ms(due_ms);
            let item = to_item(&sample, self.settings.index_shards).into_iter();
            item.map(|(name, value)| match value {
                AttributeValue::S(text) => (name, S(text)),
                AttributeValue::N(digits) => (name, N(digits)),
                AttributeValue::Bool(flag) => (name, BOOL(flag)),
                other => panic!("{name} is {other:?}"),
            })
            .collect()
        });
        let mut items = items.peekable();
        while items.peek().is_some() {
            let chunk = items.by_ref().take(IMPORT_AT_ONCE).collect();
            self.database.import_items("tasks", chunk, dynoxide::ImportOptions::default()).expect("they are stored");
        }
    }

    /// The time now.
    pub fn now(&self) -> i64 {
        Clock::Manual(self.clock.clone()).now().as_ms()
    }

    /// Moves the clock.
    pub fn advance(&self, ms: u32) {
        self.clock.advance(ms);
    }

    /// A call as API Gateway makes it.
    pub async fn call(&self, method: &str, path: &str, body: Value) -> Reply {
        call(&self.service, method, path, body).await
    }

    /// A call with a body that need not be JSON.
    pub async fn call_raw(&self, method: &str, path: &str, body: &str) -> Reply {
        call_event(&self.service, path, &event(method, path, body)).await
    }

    /// `GET path`.
    pub async fn get(&self, path: &str) -> Reply {
        self.call_raw("GET", path, "").await
    }

    /// Adds tasks, which must succeed.
    #[track_caller]
    pub fn add(&self, task: Value) -> impl Future<Output = Value> {
        let service = self.service.clone();
        async move {
            let reply = call(&service, "POST", "/api/v1/task/add", task).await;
            reply.data().clone()
        }
    }

    /// Polls one queue once, for as many as there are up to `most`.
    pub async fn poll(&self, queue: &str, most: usize) -> Vec<Value> {
        let reply = self.call("POST", &format!("/api/v1/task/poll/{queue}"), json!({"max": most})).await;
        reply.data().as_array().expect("an array").clone()
    }

    /// The ids that one poll gives.
    pub async fn poll_ids(&self, queue: &str, most: usize) -> Vec<String> {
        ids(&self.poll(queue, most).await)
    }

    /// `verb` (ack, nack, extend) for a task that a poll gave, with more fields.
    pub async fn settle(&self, verb: &str, task: &Value, more: Value) -> Reply {
        let id = task["taskId"].as_str().expect("an id");
        let mut body = more;
        body["leaseToken"] = task["leaseToken"].clone();
        self.call("POST", &format!("/api/v1/task/{verb}/{id}"), body).await
    }

    /// A task as `GET` shows it, or null.
    pub async fn task(&self, id: &str) -> Value {
        self.get(&format!("/api/v1/task/{id}")).await.body["data"].clone()
    }

    /// A task's status.
    pub async fn status(&self, id: &str) -> String {
        self.task(id).await["status"].as_str().unwrap_or("unknown").to_owned()
    }

    /// One refresh.
    pub async fn refresh(&self) -> RefreshReport {
        refresh::handle(&self.service, &self.tick()).await.expect("a refresh")
    }

    /// One recovery.
    pub async fn recover(&self) -> RecoverReport {
        recover::handle(&self.service, &self.tick()).await.expect("a recovery")
    }

    /// How the ticks are configured.
    pub fn tick(&self) -> TickConfig {
        TickConfig { budget: self.settings.tick_budget }
    }
}

/// A task of type `t`, priority 0, due after `delay_ms`.
pub fn task(id: &str, delay_ms: i64) -> Value {
    json!({"taskId": id, "taskType": "t", "delay": delay_ms, "parameters": {"n": 1}})
}

/// The ids of polled or listed tasks, sorted.
pub fn sorted_ids(tasks: &[Value]) -> Vec<String> {
    let mut ids = ids(tasks);
    ids.sort();
    ids
}

/// The ids of polled or listed tasks.
pub fn ids(tasks: &[Value]) -> Vec<String> {
    tasks.iter().map(|task| task["taskId"].as_str().expect("an id").to_owned()).collect()
}

/// A call of one service as API Gateway makes it.
pub async fn call(service: &Service, method: &str, path: &str, body: Value) -> Reply {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    call_event(service, path, &event(method, path, &body)).await
}

/// Hands an event to the function that serves `path`.
pub async fn call_event(service: &Service, path: &str, event: &str) -> Reply {
    let rest = path.split_once("/api/v1/").map_or(path, |(_, rest)| rest);
    let words: Vec<&str> = rest.split(['/', '?']).collect();
    let answer = match words[..] {
        ["task", "add", ..] => Box::pin(add::handle(service, event)).await,
        ["task", "cancel", ..] => Box::pin(cancel::handle(service, event)).await,
        ["task", "poll", ..] => Box::pin(poll::handle(service, event)).await,
        ["task", "ack" | "nack" | "extend" | "reschedule" | "redrive", ..] => {
            Box::pin(settle::handle(service, event)).await
        }
        _ => Box::pin(inspect::handle(service, event)).await,
    };
    Reply { status: answer.status_code, body: serde_json::from_str(&answer.body).expect("the envelope is JSON") }
}

/// An HTTP API event.
pub fn event(method: &str, path: &str, body: &str) -> String {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    json!({
        "version": "2.0", "rawPath": path, "rawQueryString": query, "body": body, "isBase64Encoded": false,
        "requestContext": {"http": {"method": method, "path": path}, "stage": "$default"},
    })
    .to_string()
}

fn service(client: Client, redis_url: &str, clock: Clock, settings: &Settings) -> Service {
    let own = || vec![redis_url.to_owned()];
    let config = Config {
        table_name: "tasks".to_owned(),
        redis_urls: if settings.redis_urls.is_empty() { own() } else { settings.redis_urls.clone() },
        redis_cluster: false,
        window_ms: settings.window_ms,
        index_shards: settings.index_shards,
        queue_partitions: settings.queue_partitions,
        lease_ms: settings.lease_ms,
        retention_ms: 7 * 24 * 60 * 60 * 1_000,
    };
    Service::new(client, clock, config).expect("a valid configuration")
}

/// Makes the table as template.yaml describes it.
pub async fn create_table(client: &Client, name: &str) {
    let key = |name: &str, kind: KeyType| KeySchemaElement::builder().attribute_name(name).key_type(kind).build();
    let text =
        |name: &str| AttributeDefinition::builder().attribute_name(name).attribute_type(ScalarAttributeType::S).build();
    let projection = Projection::builder().projection_type(ProjectionType::Include).non_key_attributes(LANE).build();
    let index = GlobalSecondaryIndex::builder()
        .index_name(INDEX)
        .key_schema(key(BUCKET, KeyType::Hash).expect("valid"))
        .key_schema(key(WAKE, KeyType::Range).expect("valid"))
        .projection(projection)
        .build();
    client
        .create_table()
        .table_name(name)
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key(TASK_ID, KeyType::Hash).expect("valid"))
        .attribute_definitions(text(TASK_ID).expect("valid"))
        .attribute_definitions(text(BUCKET).expect("valid"))
        .attribute_definitions(text(WAKE).expect("valid"))
        .global_secondary_indexes(index.expect("valid"))
        .send()
        .await
        .expect("the table is made");
}
