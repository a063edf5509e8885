//! The connection to Redis itself: certificates are checked, and a Redis that comes back is not trampled.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use punctual_core::clock::Clock;
use punctual_core::due_index::DueIndex;
use serde_json::json;
use tempfile::TempDir;
use tests::{RedisCluster, Settings, Watched, World, call, free_port, until, until_listening};
use tokio::net::TcpListener;

/// Calls at once.
const CALLERS: usize = 100;

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_a_rediss_url_is_checked_and_the_check_cannot_be_turned_off() {
    let folder = TempDir::new().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-keyout", &key, "-out", &certificate])
        .stderr(Stdio::null())
        .status();
    assert!(made.expect("openssl runs").success());
    let port = free_port();
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--tls-port", &port.to_string(), "--tls-auth-clients", "no", "--save", ""]);
    command.args(["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &certificate]);
    command.args(["--bind", "127.0.0.1", "--loglevel", "warning", "--dir", &folder.path().display().to_string()]);
    let _server = Watched::start(&command, Stdio::null());
    until_listening(port).await;
    for (fragment, cluster) in [("", false), ("", true), ("#insecure", false), ("#insecure", true)] {
        let urls = [format!("rediss://localhost:{port}/{fragment}")];
        let refusal = match DueIndex::new(&urls, cluster) {
            Ok(index) => {
                assert!(index.wake_ups.subscribe("wake:t".to_owned()).await.is_none(), "{fragment} {cluster}");
                let refusal = index.ping().await.expect_err("nobody vouches for the certificate").to_string();
                println!("{refusal}");
                refusal
            }
            Err(error) => error.to_string(),
        };
        let reason = if fragment.is_empty() { "invalid peer certificate" } else { "insecure" };
        assert!(refusal.contains(reason), "{fragment} {cluster}: {refusal}");
    }
}

/// A port that takes connections and closes them at once, and how many it had.
async fn refusing() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    });
    (url, count)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_fails_is_knocked_at_a_few_times_a_second_whatever_the_load() {
    let world = World::new().await;
    let (url, knocks) = refusing().await;
    let settings = Settings { redis_urls: vec![url], ..Settings::default() };
    let service = world.another(Clock::Manual(world.clock.clone()), &settings).await;
    let started = Instant::now();
    // Polls that wait, and adds, again and again.
    let polls = (0..CALLERS).map(|n| {
        let service = service.clone();
        async move {
            let path = format!("/api/v1/task/poll/t{n}");
            call(&service, "POST", &path, json!({"waitSeconds": 3})).await.data();
        }
    });
    let adds = (0..10).map(|n| {
        let service = service.clone();
        async move {
            for k in 0..50 {
                let task = json!({"taskId": format!("{n}-{k}"), "taskType": "other", "delay": 60_000});
                call(&service, "POST", "/api/v1/task/add", task).await.data();
            }
        }
    });
    tokio::join!(futures::future::join_all(polls), futures::future::join_all(adds));
    let most = 8 * (started.elapsed().as_millis() / 1_000 + 1);
    let knocks = knocks.load(Ordering::SeqCst);
    println!("{knocks} knocks in {:?}", started.elapsed());
    assert!(knocks >= 2 && (knocks as u128) <= most, "{knocks} knocks in {:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_gets_few_connections_whatever_the_load() {
    let mut cluster = RedisCluster::start(3, false);
    let settings = Settings { redis_urls: cluster.urls(), ..Settings::default() };
    let world = World::with(settings.clone()).await;
    let service = world.another(Clock::Manual(world.clock.clone()), &settings).await;
    let calls = async |name: &str| {
        let adds = (0..CALLERS).map(|n| {
            let (service, id) = (service.clone(), format!("{name}-{n}"));
            async move {
                let task = json!({"taskId": id, "taskType": format!("t{n}"), "delay": 1_000});
                call(&service, "POST", "/api/v1/task/add", task).await.data();
                call(&service, "POST", &format!("/api/v1/task/poll/t{n}"), json!({})).await.data();
            }
        });
        futures::future::join_all(adds).await;
    };
    calls("before").await;
    let node = cluster.owner("partitions");
    cluster.kill(node);
    calls("meanwhile").await;
    cluster.launch(node);
    let own = cluster.connections(node);
    // A node that has just failed is left alone for a moment.
    let mut round = 0;
    until("the node in use again", async || {
        round += 1;
        calls(&format!("back{round}")).await;
        cluster.connections(node) > own
    })
    .await;
    for n in 0..2 {
        calls(&format!("after{n}")).await;
    }
    let connections = cluster.connections(node) - own;
    println!("{connections} connections");
    assert!(connections <= 20, "{connections} connections for {CALLERS} callers");
}
