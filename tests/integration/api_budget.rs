//! What the happy life of a small task costs: DynamoDB's own account of it, and Redis's round trips.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::{World, call};

use crate::api_common::ADD;

fn small(id: &str) -> Value {
    // 100 bytes of parameters.
    json!({"taskId": id, "taskType": "call", "priority": 1, "delay": 60_000, "parameters": "x".repeat(98)})
}

#[tokio::test]
async fn add_lease_and_ack_cost_one_request_each_and_5_write_units_together() {
    let world = World::new().await;
    let mut before = world.service.table.usage();
    let mut spent = Vec::new();
    let mut spend = |what: &'static str| {
        let now = world.service.table.usage();
        spent.push((what, now.write_units - before.write_units));
        assert_eq!(now.requests - before.requests, 1, "{what}");
        assert!((now.read_units - before.read_units).abs() < f64::EPSILON, "{what} reads nothing");
        before = now;
    };
    world.add(small("a")).await;
    spend("add");
    world.advance(60_000);
    let polled = world.poll("call/1", 1).await;
    assert_eq!(polled.len(), 1);
    spend("lease");
    assert_eq!(world.settle("ack", &polled[0], json!({})).await.data(), true);
    spend("ack");
    let all: f64 = spent.iter().map(|(_, units)| units).sum();
    println!("write units: {spent:?}");
    assert!(all >= 3.0, "the emulator counts: {spent:?}");
    assert!(all <= 5.0, "{spent:?}");
}

#[tokio::test]
async fn a_batch_costs_one_request_a_task() {
    let world = World::new().await;
    let before = world.service.table.usage().requests;
    world.add((0..50).map(|i| small(&i.to_string())).collect()).await;
    world.advance(60_000);
    let polled = world.poll("call/1", 100).await;
    let acks: Vec<Value> =
        polled.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]})).collect();
    assert_eq!(acks.len(), 50);
    world.call("POST", "/api/v1/task/ack", json!(acks)).await.data();
    assert_eq!(world.service.table.usage().requests - before, 150);
}

/// A proxy before Redis that counts round trips: each time the client sends something after Redis has answered all
/// that it sent before, one begins. A batch that is sent at once is one, in however many pieces it arrives; a second
/// batch that waited for the first one's answers is another.
struct RoundTrips {
    count: Arc<AtomicU64>,
    socket: PathBuf,
}

impl RoundTrips {
    fn before(redis_url: &str, folder: &Path) -> Self {
        let target = PathBuf::from(redis_url.trim_start_matches("redis+unix://"));
        let socket = folder.join("proxy.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let count = Arc::new(AtomicU64::new(0));
        let counted = count.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let server = UnixStream::connect(&target).expect("Redis");
                serve(client.expect("a client"), server, &counted);
            }
        });
        Self { count, socket }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }

    /// How many round trips there were since the last call of this.
    fn take(&self) -> u64 {
        self.count.swap(0, Ordering::SeqCst)
    }
}

fn serve(client: UnixStream, server: UnixStream, count: &Arc<AtomicU64>) {
    let clone = |stream: &UnixStream| stream.try_clone().expect("a second handle");
    let answered = Arc::new(AtomicBool::new(true));
    // Held from before an answer is passed on until it counts as passed on, so that the request that follows it is
    // seen after it.
    let turn = Arc::new(Mutex::new(()));
    let (to_server, to_client) = (clone(&server), clone(&client));
    std::thread::spawn({
        let (count, answered, turn) = (count.clone(), answered.clone(), turn.clone());
        move || {
            pass_on(client, to_server, |write| {
                let _turn = turn.lock();
                if answered.swap(false, Ordering::SeqCst) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
                write();
            });
        }
    });
    std::thread::spawn(move || {
        pass_on(server, to_client, |write| {
            let _turn = turn.lock();
            answered.store(true, Ordering::SeqCst);
            write();
        });
    });
}

fn pass_on(mut from: UnixStream, mut to: UnixStream, around: impl Fn(&mut dyn FnMut())) {
    let mut buffer = [0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        around(&mut || to.write_all(&buffer[..length]).expect("the other side is there"));
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[tokio::test]
async fn add_lease_and_ack_cost_redis_one_round_trip_each_whatever_the_batch() {
    for tasks in [1, 100] {
        let world = World::new().await;
        let folder = tempfile::TempDir::new().expect("a folder");
        let trips = RoundTrips::before(&world.redis.url(), folder.path());
        let mut config = world.service.config.clone();
        config.redis_urls = vec![trips.url()];
        let clock = Clock::Manual(world.clock.clone());
        let service = Service::new(connect_to(&world.endpoint).await, clock, config).expect("valid");
        let send = async |path: &str, body: Value| call(&service, "POST", path, body).await.data().clone();

        // The first calls open the connection and load the scripts.
        send(ADD, small("warm-up")).await;
        world.advance(60_000);
        let polled = send("/api/v1/task/poll/call/1", json!({})).await;
        send("/api/v1/task/ack/warm-up", json!({"leaseToken": polled[0]["leaseToken"]})).await;
        assert!(trips.take() > 2, "the proxy counts");

        send(ADD, (0..tasks).map(|i| small(&i.to_string())).collect()).await;
        assert_eq!(trips.take(), 1, "add of {tasks}");
        world.advance(60_000);
        let polled = send("/api/v1/task/poll/call/1", json!({"max": tasks})).await;
        let polled = polled.as_array().expect("an array");
        assert_eq!(polled.len(), tasks);
        assert_eq!(trips.take(), 1, "lease of {tasks}");
        let acks: Vec<Value> =
            polled.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]})).collect();
        send("/api/v1/task/ack", json!(acks)).await;
        assert_eq!(trips.take(), 1, "ack of {tasks}");
    }
}
