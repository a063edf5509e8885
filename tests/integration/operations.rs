//! docs/operations.md: a change of shards and partitions loses no task and gives none out twice; each alarm is explained.

use std::collections::BTreeSet;
use std::sync::Arc;

use punctual_core::clock::Clock;
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, sorted_ids, task};

fn of(index_shards: u16, queue_partitions: u16) -> Settings {
    Settings { index_shards, queue_partitions, ..Settings::default() }
}

async fn both_ticks(world: &World, service: &Arc<Service>) {
    service.recover(&world.tick()).await.expect("a recovery");
    service.refresh(&world.tick()).await.expect("a refresh");
}

/// All that polls give, each acknowledged.
async fn work(service: &Arc<Service>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        let polled = call(service, "POST", "/api/v1/task/poll/t/0", json!({"max": 100})).await.data().clone();
        let polled = polled.as_array().expect("an array");
        if polled.is_empty() {
            return all;
        }
        let acks: Vec<Value> =
            polled.iter().map(|task| json!({"taskId": task["taskId"], "leaseToken": task["leaseToken"]})).collect();
        for ack in call(service, "POST", "/api/v1/task/ack", Value::Array(acks)).await.data().as_array().expect("acks")
        {
            assert_eq!(ack["ok"], true, "{ack}");
        }
        all.extend(ids(polled));
    }
}

async fn add(service: &Arc<Service>, prefix: &str, count: usize, delay_ms: i64) {
    let tasks = (0..count).map(|n| task(&format!("{prefix}{n}"), delay_ms)).collect();
    call(service, "POST", "/api/v1/task/add", Value::Array(tasks)).await.data();
}

async fn dead(service: &Arc<Service>) -> Vec<String> {
    let reply = call(service, "GET", "/api/v1/task?status=dead&limit=100", Value::Null).await;
    sorted_ids(reply.data()["tasks"].as_array().expect("an array"))
}

#[tokio::test]
async fn shards_and_partitions_grow_with_tasks_pending_while_old_and_new_functions_run_side_by_side() {
    let old_settings = of(4, 1);
    let world = World::with(old_settings.clone()).await;
    let old = &world.service;
    let mut expected = BTreeSet::new();
    let mut expect = |prefix: &str, count: usize| expected.extend((0..count).map(|n| format!("{prefix}{n}")));

    // Before: tasks in every state.
    world.add_many("dead", 9, 0).await;
    for task in world.drain("t/0").await {
        world.settle("nack", &task, json!({"permanent": true})).await.data();
    }
    world.add_many("leased", 9, 0).await;
    assert_eq!(world.drain("t/0").await.len(), 9);
    world.add_many("retried", 9, 0).await;
    for task in world.drain("t/0").await {
        world.settle("nack", &task, json!({"delay": 400_000})).await.data();
    }
    for (prefix, delay_ms) in [("ready", 0), ("soon", 60_000), ("far", 600_000)] {
        world.add_many(prefix, 20, delay_ms).await;
        expect(prefix, 20);
    }
    expect("leased", 9);
    expect("retried", 9);

    // Meanwhile: both add, both tick, both poll.
    let new = &world.another(Clock::Manual(world.clock.clone()), &of(8, 3)).await;
    for (prefix, service) in [("by-old-", old), ("by-new-", new)] {
        add(service, &format!("{prefix}soon"), 20, 1_000).await;
        add(service, &format!("{prefix}far"), 20, 900_000).await;
        expect(&format!("{prefix}soon"), 20);
        expect(&format!("{prefix}far"), 20);
    }
    both_ticks(&world, new).await;
    both_ticks(&world, old).await;
    both_ticks(&world, new).await;
    world.advance(1_000);
    let mut delivered = work(old).await;
    delivered.extend(work(new).await);

    // After: the new ones alone, once even after Redis was lost.
    for (step, lost) in [(60_000, false), (300_000, true), (300_000, false), (300_000, true)] {
        world.advance(step);
        if lost {
            world.redis.run("FLUSHALL");
        }
        both_ticks(&world, new).await;
        delivered.extend(work(new).await);
    }
    let distinct: BTreeSet<String> = delivered.iter().cloned().collect();
    assert_eq!(distinct, expected);
    assert_eq!(delivered.len(), expected.len(), "none is delivered twice");

    // The dead ones are still found, and can be sent round again.
    assert_eq!(dead(new).await.len(), 9);
    let reply = call(new, "POST", "/api/v1/task/redrive", json!({"taskType": "t"})).await;
    assert_eq!(reply.data(), &json!({"redriven": 9, "more": false}));
    assert_eq!(work(new).await.len(), 9);
}

#[tokio::test]
async fn with_fewer_shards_tasks_are_out_of_sight_until_there_are_as_many_again() {
    let world = World::with(of(8, 1)).await;
    world.add_many("a", 60, 400_000).await;
    world.advance(390_000);
    let fewer = world.another(Clock::Manual(world.clock.clone()), &of(4, 1)).await;
    both_ticks(&world, &fewer).await;
    world.advance(10_000);
    let mut delivered = work(&fewer).await;
    assert!((1..60).contains(&delivered.len()), "that is why the number may only grow: {}", delivered.len());
    both_ticks(&world, &world.service).await;
    delivered.extend(work(&world.service).await);
    assert_eq!((delivered.len(), delivered.iter().collect::<BTreeSet<_>>().len()), (60, 60), "none is lost");
}

#[test]
fn each_alarm_of_the_template_is_explained() {
    const PAGE: &str = include_str!("../../docs/operations.md");
    let named = |line: &&str| line.starts_with("| `") && line.contains("Alarm` |");
    let explained: BTreeSet<&str> =
        PAGE.lines().filter(named).map(|line| &line[3..line[3..].find('`').expect("two") + 3]).collect();
    let lines: Vec<&str> = local::template::TEXT.lines().collect();
    let alarms: BTreeSet<&str> = lines
        .windows(2)
        .filter(|pair| pair[1].trim() == "Type: AWS::CloudWatch::Alarm")
        .map(|pair| pair[0].trim().trim_end_matches(':'))
        .collect();
    assert_eq!(explained, alarms);
    assert!(alarms.len() >= 10);
}
