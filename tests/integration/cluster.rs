//! Redis Cluster: three masters on loopback, and everything through the handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use punctual_core::clock::Clock;
use punctual_core::config::DispatchConfig;
use punctual_core::due_index::Partition;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::Service;
use punctual_core::task::Lane;
use serde_json::{Value, json};
use tests::{RedisCluster, Settings, World, call, ids, sorted_ids, until};

/// Types and priorities of the 50 queues.
const TYPES: usize = 5;
const PRIORITIES: usize = 10;
const QUEUES: usize = TYPES * PRIORITIES;
const MASTERS: usize = 3;

async fn world_on(cluster: &RedisCluster) -> World {
    World::with(Settings { queue_partitions: 2, redis_urls: cluster.urls(), ..Settings::default() }).await
}

/// The `n`-th queue's type and priority.
fn queue(n: usize) -> (String, usize) {
    (format!("type{}", n / PRIORITIES), n % PRIORITIES)
}

/// The id of a task of the `n`-th queue.
fn id(name: &str, n: usize) -> String {
    format!("{name}-{n}")
}

/// A task in each queue.
async fn add_to_each(world: &World, name: &str, delay_ms: u64) {
    let task = |n| {
        let (task_type, priority) = queue(n);
        json!({"taskId": id(name, n), "taskType": task_type, "priority": priority, "delay": delay_ms})
    };
    let added = world.add((0..QUEUES).map(task).collect()).await;
    assert!(added.as_array().expect("an array").iter().all(|item| item["created"] == true), "{added}");
}

/// The ids of `name` in a type's queues, the most urgent first.
fn of_type(name: &str, task_type: usize) -> Vec<String> {
    (0..PRIORITIES).map(|priority| id(name, task_type * PRIORITIES + priority)).collect()
}

/// Polls each type, without a priority, and returns what it gave.
async fn poll_each_type(world: &World) -> Vec<Vec<Value>> {
    let mut polled = Vec::new();
    for task_type in 0..TYPES {
        polled.push(world.poll(&format!("type{task_type}"), 100).await);
    }
    polled
}

async fn ack_all(world: &World, tasks: &[Value]) {
    for tasks in tasks.chunks(100) {
        let pairs = tasks.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]}));
        let acked = world.call("POST", "/api/v1/task/ack", pairs.collect()).await;
        assert!(acked.data().as_array().expect("an array").iter().all(|item| item["ok"] == true), "{}", acked.body);
    }
}

/// The partition of a polled task's queue, out of two.
fn partition(n: usize, id: &str) -> Partition {
    let (task_type, priority) = queue(n);
    let lane = Lane { task_type, priority: u8::try_from(priority).expect("small"), handler: None };
    Partition::of(lane, id, 2)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_works_on_fifty_queues_across_the_masters() {
    let cluster = RedisCluster::start(MASTERS, false);
    let world = world_on(&cluster).await;
    for (name, delay_ms) in [("now", 0), ("soon", 60_000), ("late", 600_000)] {
        add_to_each(&world, name, delay_ms).await;
    }
    assert!(cluster.keys("future:").iter().all(|keys| keys.len() > QUEUES / 6), "each master has its part");
    assert_eq!(cluster.count("future"), 2 * QUEUES, "what is due within the window");
    let refreshed = world.refresh().await;
    assert!(refreshed.partitions >= QUEUES && !refreshed.load.more, "{refreshed:?}");
    assert_eq!((refreshed.promoted, cluster.count("topic")), (QUEUES as u64, QUEUES));

    // Queue by queue: poll and nack.
    for n in 0..QUEUES {
        let (task_type, priority) = queue(n);
        let polled = world.poll(&format!("{task_type}/{priority}"), 10).await;
        assert_eq!(ids(&polled), [id("now", n)]);
        assert_eq!(cluster.count("lease"), 1, "Redis has the lease: the poll did not go past it");
        assert_eq!(world.settle("extend", &polled[0], json!({"leaseSeconds": 60})).await.data(), true);
        assert_eq!(world.settle("nack", &polled[0], json!({"delay": 1_000})).await.data(), true);
        assert_eq!(cluster.count("lease"), 0);
    }
    // Type by type, the most urgent first; one type by the documented poll.
    world.advance(1_000);
    for task_type in 0..TYPES - 1 {
        let polled = world.poll(&format!("type{task_type}"), 100).await;
        assert_eq!(ids(&polled), of_type("now", task_type));
        assert!(polled.iter().all(|task| task["attempt"] == 2));
        ack_all(&world, &polled).await;
    }
    for (priority, id) in of_type("now", TYPES - 1).into_iter().enumerate() {
        let taken = world.get(&format!("/api/v1/task/poll/type{}/{priority}", TYPES - 1)).await;
        assert_eq!(taken.data()["taskId"], json!(id));
    }
    assert_eq!((cluster.count("lease"), cluster.count("topic")), (0, 0));

    // Cancelled, moved, and leases that run out.
    for n in 0..QUEUES {
        if n % 2 == 0 {
            let path = format!("/api/v1/task/cancel/{}", id("soon", n));
            assert_eq!(world.call("DELETE", &path, Value::Null).await.data(), true);
        } else {
            let path = format!("/api/v1/task/reschedule/{}", id("late", n));
            assert_eq!(world.call("POST", &path, json!({"delay": 60_000})).await.status, 200);
        }
    }
    world.advance(60_000);
    let polled = poll_each_type(&world).await.concat();
    let odd = |name: &str| (1..QUEUES).step_by(2).map(|n| id(name, n)).collect::<Vec<_>>();
    let mut expected = [odd("soon"), odd("late")].concat();
    expected.sort();
    assert_eq!(sorted_ids(&polled), expected);
    assert_eq!(cluster.count("lease"), QUEUES);
    world.advance(30_000);
    let recovered = world.recover().await;
    assert_eq!(recovered.ended, QUEUES as u64, "{recovered:?}");
    let again = poll_each_type(&world).await.concat();
    assert_eq!(sorted_ids(&again), expected);
    // Dead and redriven.
    for task in &again {
        assert_eq!(world.settle("nack", task, json!({"permanent": true})).await.data(), true);
    }
    assert!(poll_each_type(&world).await.concat().is_empty());
    for id in &expected {
        let redriven = world.call("POST", &format!("/api/v1/task/redrive/{id}"), Value::Null).await;
        assert_eq!(redriven.data()["status"], "scheduled");
    }
    let redriven = poll_each_type(&world).await.concat();
    assert_eq!(sorted_ids(&redriven), expected);
    let queues = world.get("/api/v1/queues").await;
    let queues = queues.data().as_array().expect("an array");
    assert_eq!(queues.len(), QUEUES / 2, "those with tasks within the window");
    assert_eq!(queues.iter().map(|queue| queue["leased"].as_u64().expect("a number")).sum::<u64>(), QUEUES as u64);
    ack_all(&world, &redriven).await;

    // Every node emptied: the rest comes from DynamoDB.
    for node in 0..MASTERS {
        cluster.run(node, "FLUSHALL");
    }
    world.advance(509_000 - 30_000);
    world.refresh().await;
    world.advance(30_000);
    let rest = poll_each_type(&world).await.concat();
    let mut even: Vec<String> = (0..QUEUES).step_by(2).map(|n| id("late", n)).collect();
    even.sort();
    assert_eq!(sorted_ids(&rest), even);
    ack_all(&world, &rest).await;
    for task in rest.iter().chain(&redriven) {
        assert_eq!(world.status(task["taskId"].as_str().expect("an id")).await, "succeeded");
    }
    world.advance(60_000);
    let recovered = world.recover().await;
    assert!(recovered.struck_off > 0, "{recovered:?}");
    assert!(cluster.keys("").concat().iter().all(|key| !key.contains('{')), "{:?}", cluster.keys(""));
    let health = world.get("/health").await;
    assert_eq!(health.data()["redis"], "ok");
    for word in ["CROSSSLOT", "WRONGTYPE", "TRYAGAIN", "EXECABORT"] {
        assert_eq!(cluster.errors(word), 0, "{word}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wake_ups_pass_between_all_nodes() {
    let cluster = RedisCluster::start(MASTERS, false);
    let world = world_on(&cluster).await;
    let mut heard = Vec::new();
    let mut polls = Vec::new();
    for n in 0..MASTERS {
        // Each process listens at another node.
        let mut redis_urls = cluster.urls();
        redis_urls.rotate_left(n);
        let settings = Settings { queue_partitions: 2, redis_urls, ..Settings::default() };
        let service = world.another(Clock::Manual(world.clock.clone()), &settings).await;
        heard.push(service.index.wake_ups.subscribe("wake:t".to_owned()).await.expect("a subscription"));
        polls.push(tokio::spawn(async move {
            call(&service, "POST", "/api/v1/task/poll/t", json!({"waitSeconds": 20})).await
        }));
    }
    // Wherever the messages start from.
    for n in 0..10 {
        world.add(json!({"taskId": format!("a{n}"), "taskType": "t", "priority": n, "delay": 5_000})).await;
        for (node, heard) in heard.iter_mut().enumerate() {
            let due = tokio::time::timeout(Duration::from_secs(5), heard.next()).await;
            let due = due.unwrap_or_else(|_| panic!("node {node} did not hear of a{n}"));
            assert_eq!(due.expect("connected").as_ms(), world.now() + 5_000);
        }
    }
    world.advance(5_000);
    let mut got = BTreeSet::new();
    for poll in polls {
        let reply = poll.await.expect("no panic");
        got.extend(ids(reply.data().as_array().expect("an array")));
    }
    assert_eq!(got.len(), MASTERS, "each waiting poll got one task: {got:?}");
}

/// Counts its runs.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Handler for Counting {
    const NAME: &'static str = "counting";
    type Parameters = Value;

    async fn handle(&self, _: Value, _: &Context) -> Result<(), HandlerError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dispatch_works_across_the_masters() {
    let cluster = RedisCluster::start(MASTERS, false);
    let world = world_on(&cluster).await;
    let tasks = (0..QUEUES).map(|n| {
        let (task_type, priority) = queue(n);
        json!({"taskType": task_type, "priority": priority, "delay": 0, "handler": "counting", "parameters": {}})
    });
    world.add(tasks.collect()).await;
    world.refresh().await;
    let counting = Counting::default();
    let registry = Registry::default().with(counting.clone()).expect("one handler");
    let pass = DispatchConfig { shift: Duration::ZERO, concurrency: 16 };
    let mut runs = 0;
    while runs < QUEUES {
        let report = dispatch::handle(&world.service, &registry, &pass).await.expect("a pass");
        assert!(report.succeeded > 0, "{report:?}");
        runs += usize::try_from(report.succeeded).expect("small");
    }
    assert_eq!(counting.0.load(Ordering::SeqCst), QUEUES);
    assert_eq!((cluster.count("future"), cluster.count("lease")), (0, 0));
    assert_eq!(cluster.errors("CROSSSLOT"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_node_has_forgotten_are_sent_again() {
    let cluster = RedisCluster::start(MASTERS, false);
    let world = world_on(&cluster).await;
    let forget = || (0..MASTERS).for_each(|node| drop(cluster.run(node, "SCRIPT FLUSH")));
    add_to_each(&world, "a", 0).await;
    forget();
    world.refresh().await;
    forget();
    let polled = poll_each_type(&world).await.concat();
    assert_eq!(polled.len(), QUEUES);
    assert_eq!(cluster.count("lease"), QUEUES, "the polls went through Redis");
    forget();
    ack_all(&world, &polled).await;
    assert_eq!(cluster.count("lease"), 0);
    world.advance(30_000);
    forget();
    world.recover().await;
    for node in 0..MASTERS {
        assert!(cluster.text(node, "INFO errorstats").contains("errorstat_NOSCRIPT"), "node {node}");
    }
}

/// What consumers were given: each id with its attempts, and each acknowledged id with its attempt.
#[derive(Default)]
struct Ledger {
    added: BTreeSet<String>,
    given: BTreeMap<String, Vec<u64>>,
    acked: BTreeMap<String, u64>,
}

impl Ledger {
    fn join(&mut self, other: Self) {
        self.added.extend(other.added);
        for (id, attempts) in other.given {
            self.given.entry(id).or_default().extend(attempts);
        }
        self.acked.extend(other.acked);
    }

    /// The clock stands still, so no lease ends: whatever was given once must not be given again.
    fn assert_one_live_lease(&self) {
        for (id, attempts) in &self.given {
            assert_eq!(attempts.len(), 1, "{id} was given out with attempts {attempts:?} while its first lease lived");
        }
    }
}

/// Adds to all queues and takes from them until told to stop, by processes of its own. No call may fail.
async fn load(service: Arc<Service>, name: String, stop: Arc<AtomicBool>) -> Ledger {
    let mut ledger = Ledger::default();
    let mut count = 0;
    while !stop.load(Ordering::SeqCst) {
        let batch: Vec<Value> = (0..10)
            .map(|n| {
                let (task_type, priority) = queue((count * 10 + n) % QUEUES);
                // A third is not due before the clock moves.
                let delay = if n % 3 == 0 { 5_000 } else { 0 };
                json!({"taskId": format!("{name}-{count}-{n}"), "taskType": task_type, "priority": priority, "delay": delay})
            })
            .collect();
        count += 1;
        let added = call(&service, "POST", "/api/v1/task/add", json!(batch)).await;
        assert!(added.data().as_array().expect("an array").iter().all(|item| item["created"] == true));
        ledger.added.extend(ids(&batch));
        let path = format!("/api/v1/task/poll/type{}", count % TYPES);
        let polled = call(&service, "POST", &path, json!({"max": 10})).await;
        for (n, task) in polled.data().as_array().expect("an array").iter().enumerate() {
            let id = task["taskId"].as_str().expect("an id");
            let attempt = task["attempt"].as_u64().expect("a number");
            ledger.given.entry(id.to_owned()).or_default().push(attempt);
            // The others are consumers that crash.
            if n % 4 != 0 {
                let token = json!({"leaseToken": task["leaseToken"]});
                let acked = call(&service, "POST", &format!("/api/v1/task/ack/{id}"), token).await;
                assert_eq!(acked.data(), true);
                ledger.acked.insert(id.to_owned(), attempt);
            }
        }
    }
    ledger
}

/// Runs `trouble` under the load of four processes; returns what they saw.
async fn under_load(world: &World, settings: &Settings, trouble: impl AsyncFnOnce()) -> Ledger {
    let stop = Arc::new(AtomicBool::new(false));
    let mut loads = Vec::new();
    for n in 0..4 {
        let service = world.another(Clock::Manual(world.clock.clone()), settings).await;
        loads.push(tokio::spawn(load(service, format!("p{n}"), stop.clone())));
    }
    trouble().await;
    stop.store(true, Ordering::SeqCst);
    let mut ledger = Ledger::default();
    for load in loads {
        ledger.join(load.await.expect("no panic"));
    }
    ledger.assert_one_live_lease();
    ledger
}

/// After one refresh, everything that was added and not acknowledged is given out, and nothing else.
async fn nothing_is_lost_after_one_refresh(world: &World, mut ledger: Ledger) {
    world.advance(30_000);
    let refreshed = world.refresh().await;
    assert!(!refreshed.load.more && !refreshed.locked, "{refreshed:?}");
    let open: BTreeSet<String> = ledger.added.iter().filter(|id| !ledger.acked.contains_key(*id)).cloned().collect();
    assert!(!ledger.acked.is_empty() && !open.is_empty());
    for task_type in 0..TYPES {
        for task in world.drain(&format!("type{task_type}")).await {
            let id = task["taskId"].as_str().expect("an id").to_owned();
            assert!(open.contains(&id), "{id} was acknowledged or never added");
            let attempt = task["attempt"].as_u64().expect("a number");
            assert!(ledger.given.get(&id).is_none_or(|before| before[0] < attempt));
            assert_eq!(ledger.acked.insert(id.clone(), attempt), None, "{id} came twice");
        }
    }
    let missing: Vec<&String> = ledger.added.iter().filter(|id| !ledger.acked.contains_key(*id)).collect();
    assert!(missing.is_empty(), "{missing:?} of {}", ledger.added.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_moves_under_load_takes_its_tasks_with_it() {
    let cluster = RedisCluster::start(MASTERS, false);
    let world = world_on(&cluster).await;
    let settings = Settings { queue_partitions: 2, redis_urls: cluster.urls(), ..Settings::default() };
    add_to_each(&world, "moved", 1_000).await;
    world.refresh().await;
    let moved: Vec<Partition> = (0..10).map(|n| partition(n, &id("moved", n))).collect();
    let ledger = under_load(&world, &settings, async || {
        let there_and_back = || {
            for _ in 0..2 {
                for partition in &moved {
                    let key = partition.future();
                    let to = (cluster.owner(&key) + 1) % MASTERS;
                    cluster.move_slot(&key, to, Duration::from_millis(20));
                    assert_eq!(cluster.owner(&key), to);
                }
                // The keys that all queues share.
                for key in ["partitions", "horizon", "lock:refresh"] {
                    cluster.move_slot(key, (cluster.owner(key) + 1) % MASTERS, Duration::from_millis(20));
                }
            }
        };
        tokio::task::block_in_place(there_and_back);
    })
    .await;
    let stray = ledger.given.keys().filter(|id| id.starts_with("moved")).count();
    assert_eq!(stray, 0, "none was early");
    assert_eq!(cluster.errors("CROSSSLOT"), 0);
    assert!(cluster.errors("MOVED") > 0, "{}", cluster.text(0, "INFO errorstats"));
    let mut ledger = ledger;
    ledger.added.extend((0..QUEUES).map(|n| id("moved", n)));
    nothing_is_lost_after_one_refresh(&world, ledger).await;
}

fn replication(cluster: &RedisCluster, node: usize, name: &str) -> i64 {
    let info = cluster.text(node, "INFO replication");
    let value = info.lines().find_map(|line| line.strip_prefix(name)).expect("a replication offset");
    value.trim().parse().expect("a number")
}

/// Waits until a master has taken so many more bytes of writes.
async fn written_to(cluster: &RedisCluster, master: usize, bytes: i64) {
    let offset = || tokio::task::block_in_place(|| replication(cluster, master, "master_repl_offset:"));
    let enough = offset() + bytes;
    until("the master has taken so many writes", async || offset() >= enough).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_writes_loses_no_task() {
    let mut cluster = RedisCluster::start(MASTERS, true);
    let world = world_on(&cluster).await;
    let settings = Settings { queue_partitions: 2, redis_urls: cluster.urls(), ..Settings::default() };
    add_to_each(&world, "early", 2_000).await;
    world.refresh().await;
    // The master that knows of all queues, so that all of them feel it.
    let failed = cluster.owner("partitions");
    let replica = MASTERS + failed;
    let mut ledger = under_load(&world, &settings, async || {
        written_to(&cluster, failed, 5_000).await;
        tokio::task::block_in_place(|| cluster.cut_off(replica));
        // What is written from here on is lost, ends of leases and new tasks alike.
        let offset = |node, name| tokio::task::block_in_place(|| replication(&cluster, node, name));
        until("the replica is behind", async || {
            offset(failed, "master_repl_offset:") - offset(replica, "slave_repl_offset:") >= 5_000
        })
        .await;
        tokio::task::block_in_place(|| {
            cluster.kill(failed);
            cluster.wait_until_missed(failed);
            cluster.promote(replica);
        });
        // The load has found the promoted one.
        written_to(&cluster, replica, 5_000).await;
    })
    .await;
    ledger.added.extend((0..QUEUES).map(|n| id("early", n)));
    // The promoted replica serves again: the polls of a new process, too, go through Redis.
    let service = world.another(Clock::Manual(world.clock.clone()), &settings).await;
    service.index.ping().await.expect("all nodes answer");
    service.index.partitions().await.expect("the promoted one answers");
    nothing_is_lost_after_one_refresh(&world, ledger).await;
}
