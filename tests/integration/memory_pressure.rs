//! A Redis with too little memory: one that evicts whichever keys it likes, and one that is full. Both only cost time.

use std::collections::{BTreeMap, BTreeSet};

use punctual_core::clock::Clock;
use serde_json::json;
use tests::{Settings, World, call};

const QUEUES: usize = 12;
/// Tasks that one round adds to each queue.
const A_ROUND: usize = 40;
const ROUNDS: usize = 3;
/// What Redis has beyond what it uses when empty: rather more than half of what the rounds need.
const SPARE_BYTES: usize = 320_000;

fn stat(world: &World, section: &str, name: &str) -> usize {
    let info: String = redis::from_redis_value(world.redis.run(&format!("INFO {section}"))).expect("text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect(name);
    line.trim().parse().expect("a number")
}

/// Limits the memory to a little more than is used now.
fn limit_memory(world: &World, policy: &str) {
    let limit = stat(world, "memory", "used_memory") + SPARE_BYTES;
    // Each id costs what it does in a long queue.
    world.redis.run("CONFIG SET zset-max-ziplist-entries 0");
    world.redis.run(&format!("CONFIG SET maxmemory-policy {policy}"));
    world.redis.run(&format!("CONFIG SET maxmemory {limit}"));
}

/// Who adds and takes, and what they know.
struct Ledger {
    added: BTreeSet<String>,
    /// The attempts given out, by id. The clock stands still within a round.
    given: BTreeMap<String, u64>,
    acked: BTreeSet<String>,
}

/// Three processes at once: each adds to all queues and polls them, acknowledges most and forgets some.
async fn load(world: &World, ledger: &mut Ledger, round: usize) {
    let process = async |n: usize| {
        let service = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
        let (mut added, mut given, mut acked) = (Vec::new(), Vec::new(), Vec::new());
        for queue in (n..QUEUES).step_by(3) {
            let id = |k| format!("{round}-{queue}-{k}-{}", "x".repeat(90));
            // Some are due now, most within the window.
            let task = |k: usize| {
                let delay = [0, 20_000, 20_000, 20_000][k % 4];
                json!({"taskId": id(k), "taskType": format!("t{queue}"), "delay": delay})
            };
            let answer = call(&service, "POST", "/api/v1/task/add", (0..A_ROUND).map(task).collect()).await;
            assert!(answer.data().as_array().expect("an array").iter().all(|item| item["created"] == true));
            added.extend((0..A_ROUND).map(id));
            let path = format!("/api/v1/task/poll/t{}", (queue * 7) % QUEUES);
            let polled = call(&service, "POST", &path, json!({"max": 10})).await;
            for (k, task) in polled.data().as_array().expect("an array").iter().enumerate() {
                let id = task["taskId"].as_str().expect("an id").to_owned();
                given.push((id.clone(), task["attempt"].as_u64().expect("a number")));
                if k % 3 != 0 {
                    let token = json!({"leaseToken": task["leaseToken"]});
                    let answer = call(&service, "POST", &format!("/api/v1/task/ack/{id}"), token).await;
                    assert_eq!(answer.data(), true);
                    acked.push(id);
                }
            }
        }
        (added, given, acked)
    };
    let (first, second, third) = tokio::join!(process(0), process(1), process(2));
    let mut in_round = BTreeSet::new();
    for (added, given, acked) in [first, second, third] {
        ledger.added.extend(added);
        for (id, attempt) in given {
            assert!(in_round.insert(id.clone()), "{id} was given twice while its lease lived");
            note(ledger, &id, attempt);
        }
        ledger.acked.extend(acked);
    }
}

fn note(ledger: &mut Ledger, id: &str, attempt: u64) {
    assert!(ledger.added.contains(id) || attempt == 1, "{id}");
    assert!(!ledger.acked.contains(id), "{id} came again after its acknowledgement");
    let before = ledger.given.insert(id.to_owned(), attempt);
    assert!(before.is_none_or(|before| before < attempt), "{id}: attempt {attempt} after {before:?}");
}

/// Load in rounds, with ticks and time between them.
async fn rounds(world: &World) -> Ledger {
    let mut ledger = Ledger { added: BTreeSet::new(), given: BTreeMap::new(), acked: BTreeSet::new() };
    for round in 0..ROUNDS {
        load(world, &mut ledger, round).await;
        world.advance(15_000);
        // They may fail where Redis takes nothing, and say so.
        let _ = world.service.refresh(&world.tick()).await;
        let _ = world.service.recover(&world.tick()).await;
    }
    ledger
}

/// Every queue polled until it gives nothing.
async fn drain(world: &World, ledger: &mut Ledger) {
    for queue in 0..QUEUES {
        for task in world.drain(&format!("t{queue}")).await {
            let id = task["taskId"].as_str().expect("an id").to_owned();
            note(ledger, &id, task["attempt"].as_u64().expect("a number"));
            assert_eq!(world.settle("ack", &task, json!({})).await.data(), true);
            ledger.acked.insert(id);
        }
    }
}

fn lost(ledger: &Ledger) -> Vec<&String> {
    ledger.added.difference(&ledger.acked).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_evicts_keys_under_load_loses_no_task() {
    let world = World::new().await;
    limit_memory(&world, "allkeys-lru");
    let mut ledger = rounds(&world).await;
    let evicted = stat(&world, "stats", "evicted_keys");
    assert!(evicted > 20, "it was under pressure: {evicted} evicted keys");
    // Everything is due, every lease has ended.
    world.advance(60_000);
    // What is loaded may be evicted at once; but each drained queue makes room, so a few minutes' ticks suffice.
    let mut minutes = 0;
    while !lost(&ledger).is_empty() {
        minutes += 1;
        assert!(minutes <= 12, "lost {} of {}", lost(&ledger).len(), ledger.added.len());
        // It fails when even an eviction makes no room at that moment, and says so.
        let _ = world.service.refresh(&world.tick()).await;
        drain(&world, &mut ledger).await;
        world.advance(60_000);
    }
    println!("{} evicted keys, all delivered after {minutes} refreshes", stat(&world, "stats", "evicted_keys"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_redis_under_load_loses_no_task() {
    let world = World::new().await;
    limit_memory(&world, "noeviction");
    let mut ledger = rounds(&world).await;
    let errors: String = redis::from_redis_value(world.redis.run("INFO errorstats")).expect("text");
    assert!(errors.contains("errorstat_OOM"), "it was full: {errors}");
    world.advance(60_000);
    // While it is full, by DynamoDB's index; what its ids say is not lost either.
    let half = format!("t{}", QUEUES / 2);
    for task in world.drain(&half).await {
        let id = task["taskId"].as_str().expect("an id").to_owned();
        note(&mut ledger, &id, task["attempt"].as_u64().expect("a number"));
        assert_eq!(world.settle("ack", &task, json!({})).await.data(), true);
        ledger.acked.insert(id);
    }
    // One refresh after it has room again.
    world.redis.run("CONFIG SET maxmemory 0");
    world.refresh().await;
    drain(&world, &mut ledger).await;
    assert!(lost(&ledger).is_empty(), "lost {} of {}", lost(&ledger).len(), ledger.added.len());
}
