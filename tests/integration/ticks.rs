//! The ticks: late, cut short, and with what they cannot read.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use punctual_core::due_index::TOPIC_LIMIT;
use serde_json::{Value, json};
use tests::{Proxy, Settings, World, ids, sorted_ids, task};

fn text(value: &str) -> Option<AttributeValue> {
    Some(AttributeValue::S(value.to_owned()))
}

#[tokio::test]
async fn ticks_on_empty_stores_do_nothing_and_leave_nothing() {
    let world = World::new().await;
    let refresh = world.refresh().await;
    assert_eq!((refresh.locked, refresh.load.read, refresh.promoted, refresh.partitions), (false, 0, 0, 0));
    let recover = world.recover().await;
    assert_eq!((recover.ended, recover.load.read, recover.struck_off), (0, 0, 0));
    assert!(world.redis.keys().is_empty(), "{:?}", world.redis.keys());
}

#[tokio::test]
async fn a_refresh_that_is_an_hour_late_makes_up_for_it_in_due_order() {
    let world = World::new().await;
    let mut expected = Vec::new();
    for minute in (10..60).rev() {
        world.add(task(&format!("m{minute}"), minute * 60_000)).await;
        expected.insert(0, format!("m{minute}"));
    }
    assert!(world.redis.keys().is_empty(), "far tasks cost Redis nothing");
    world.advance(3_600_000);
    let report = world.refresh().await;
    assert_eq!(report.load.loaded, 50);
    assert_eq!(ids(&world.drain("t/0").await), expected);
}

#[tokio::test]
async fn twenty_thousand_due_tasks_are_loaded_page_by_page_and_the_oldest_come_first() {
    const COUNT: usize = 20_000;
    let world = World::new().await;
    world.import_many("far", COUNT, 3_600_000).await;
    assert!(world.redis.keys().is_empty());
    world.advance(3_600_000 - 1);
    // The oldest ones become due a millisecond before all others.
    world.add_many("old", 3, 0).await;
    world.redis.run("FLUSHALL");
    world.advance(1);
    let report = world.recover().await;
    assert_eq!((report.load.read, report.load.loaded, report.load.more), (COUNT as u64 + 3, COUNT as u64 + 3, false));
    let report = world.refresh().await;
    assert_eq!((report.load.read, report.load.loaded, report.load.more), (COUNT as u64 + 3, 0, false));
    assert_eq!(report.promoted, TOPIC_LIMIT as u64);
    assert_eq!(world.redis.integer("ZCARD future:{t_0.0}"), (COUNT + 3 - TOPIC_LIMIT) as i64);
    let polled = world.poll("t/0", 100).await;
    assert_eq!(sorted_ids(&polled[..3]), ["old0", "old1", "old2"]);
    assert_eq!(polled.len(), 100);
}

#[tokio::test]
async fn a_tick_without_time_does_a_page_of_each_shard_says_so_and_the_next_goes_on() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 2, ..Settings::default() }).await;
    // More than a page in each shard, and less than two.
    const COUNT: usize = 300;
    world.add_many("a", COUNT, 1_000).await;
    world.advance(1_000);
    for tick in ["refresh", "recover"] {
        world.redis.run("FLUSHALL");
        let mut loaded = 0;
        for more in [true, false] {
            let load = if tick == "refresh" { world.refresh().await.load } else { world.recover().await.load };
            assert_eq!(load.more, more, "{tick}: {load:?}");
            assert!(load.read <= 200, "{tick}: {load:?}");
            loaded += load.loaded;
            assert_eq!(world.redis.keys().iter().any(|key| key.starts_with("cursor:")), more, "{tick}");
        }
        let known = world.redis.integer("LLEN topic:{t_0.0}") + world.redis.integer("ZCARD future:{t_0.0}");
        assert_eq!((known, loaded), (COUNT as i64, COUNT as u64), "{tick}");
    }
}

#[tokio::test]
async fn only_when_all_that_becomes_due_is_loaded_a_refresh_says_so() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 1, ..Settings::default() }).await;
    world.import_many("a", 250, 200_000).await;
    world.redis.run("FLUSHALL");
    for more in [true, true, false] {
        assert_eq!(world.refresh().await.load.more, more);
        assert_eq!(world.redis.integer("EXISTS horizon"), i64::from(!more));
    }
    assert_eq!(world.redis.integer("ZCARD future:{t_0.0}"), 250);
}

#[tokio::test]
async fn a_backlog_that_takes_many_ticks_does_not_make_what_becomes_due_late() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 1, ..Settings::default() }).await;
    world.add_many("old", 1_200, 0).await;
    world.add(task("new", 400_000)).await;
    world.redis.run("FLUSHALL");
    world.advance(400_000 - 1_000);
    let report = world.refresh().await;
    assert!(report.load.more, "the backlog is not done");
    assert_eq!(world.redis.integer(&format!("ZCOUNT future:{{t_0.0}} {} +inf", world.now())), 1);
}

#[tokio::test]
async fn a_shard_that_fails_holds_up_no_other_one() {
    let world = World::new().await;
    world.add_many("a", 60, 60_000).await;
    world.redis.run("FLUSHALL");
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.refuse_requests("pending#3", 1_000);
    assert!(service.refresh(&world.tick()).await.is_err(), "the failure is told");
    let loaded = world.redis.integer("ZCARD future:{t_0.0}");
    assert!((30..60).contains(&loaded), "{loaded}");
    proxy.refuse_requests("", 0);
    service.refresh(&world.tick()).await.expect("a refresh");
    assert_eq!(world.redis.integer("ZCARD future:{t_0.0}"), 60);
}

#[tokio::test]
async fn items_and_rows_that_are_not_readable_are_counted_and_hold_up_nobody() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    world.add_many("bad", 6, 0).await;
    world.add_many("good", 6, 1).await;
    world.spoil("bad0", "status", None).await;
    world.spoil("bad1", "status", text("flying")).await;
    world.spoil("bad2", "lane", text("nonsense")).await;
    world.spoil("bad3", "lane", None).await;
    world.spoil("bad4", "wake", text("00000000x")).await;
    world.spoil("bad5", "maxAttempts", text("many")).await;
    for lost in ["FLUSHALL", "PING"] {
        world.redis.run(lost);
        world.advance(1);
        let refresh = world.refresh().await;
        assert!(refresh.load.malformed >= 3, "{refresh:?}");
        let recover = world.recover().await;
        assert!(recover.load.malformed >= 3, "{recover:?}");
    }
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["good0", "good1", "good2", "good3", "good4", "good5"]);
    for tick in 0..3 {
        world.advance(60_000);
        world.recover().await;
        world.refresh().await;
        assert_eq!(world.drain("t/0").await.len(), 6, "{tick}");
    }
}

#[tokio::test]
async fn items_that_are_not_readable_in_redis_too_hold_up_no_poll() {
    let world = World::new().await;
    world.add_many("bad", 4, 0).await;
    world.add(task("good", 1)).await;
    world.spoil("bad0", "status", None).await;
    world.spoil("bad1", "maxAttempts", text("many")).await;
    world.spoil("bad2", "parameters", text("{not json")).await;
    world.spoil("bad3", "executeTime", None).await;
    world.advance(1);
    assert_eq!(world.poll_ids("t/0", 1).await, ["good"]);
    assert_eq!(world.get("/api/v1/task?status=leased").await.status, 200);
    assert_eq!(world.get("/api/v1/queues").await.status, 200);
}

#[tokio::test]
async fn rows_of_the_lagging_index_for_tasks_that_are_over_are_not_made_ready() {
    let world = World::new().await;
    world.add_many("a", 3, 0).await;
    let polled = world.poll("t/0", 2).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    world.settle("nack", &polled[1], json!({"delay": 100_000})).await.data();
    world.call("DELETE", "/api/v1/task/cancel/a2", Value::Null).await.data();
    // The index still says what it said before.
    for (n, shard) in [0, 1, 2].into_iter().flat_map(|n| (0..4).map(move |shard| (n, shard))) {
        let id = format!("a{n}");
        world.spoil(&id, "bucket", text(&format!("pending#{shard}"))).await;
        world.spoil(&id, "wake", text(&format!("{:015}#{id}", tests::START_MS))).await;
        world.spoil(&id, "lane", text("t_0")).await;
        world.advance(10);
        world.refresh().await;
        world.recover().await;
        assert!(world.poll("t/0", 10).await.is_empty());
    }
    assert_eq!((world.redis.places_of("a0"), world.redis.places_of("a2")), (0, 0));
}

#[tokio::test]
async fn tasks_at_the_edge_of_the_window_are_never_early_and_never_later_than_the_first_tick() {
    let window = Settings::default().window_ms;
    let world = World::new().await;
    let mut due = Vec::new();
    for (n, delay) in [window - 1, window, window + 1, 2 * window, 2 * window + 1].into_iter().enumerate() {
        world.add(task(&format!("a{n}"), delay)).await;
        due.push((format!("a{n}"), world.now() + delay));
    }
    assert_eq!((0..5).map(|n| world.redis.places_of(&format!("a{n}"))).collect::<Vec<_>>(), [1, 1, 0, 0, 0]);
    let mut delivered = BTreeSet::new();
    for step in [window - 7, 3, 4, 1, 20, window - 30, 10, 1, 1, 1, 60_000] {
        let before = world.now();
        world.advance(u32::try_from(step).expect("small"));
        world.refresh().await;
        for task in world.drain("t/0").await {
            let id = task["taskId"].as_str().expect("an id").to_owned();
            let due = due.iter().find(|(other, _)| *other == id).expect("known").1;
            assert!(before < due && due <= world.now(), "{id}");
            world.settle("ack", &task, json!({})).await.data();
            delivered.insert(id);
        }
    }
    assert_eq!(delivered.len(), 5);
}

#[tokio::test]
async fn the_list_holds_no_more_than_its_bound_and_the_rest_follows_in_due_order() {
    let world = World::new().await;
    let count = TOPIC_LIMIT + 350;
    for (n, batch) in (0..count).collect::<Vec<_>>().chunks(100).enumerate() {
        let tasks: Vec<Value> = batch.iter().map(|i| task(&format!("{i:05}"), n as i64)).collect();
        world.add(Value::Array(tasks)).await;
    }
    world.advance(1_000);
    assert_eq!(world.refresh().await.promoted, TOPIC_LIMIT as u64);
    assert_eq!(world.refresh().await.promoted, 0);
    assert_eq!(world.redis.integer("LLEN topic:{t_0.0}"), TOPIC_LIMIT as i64);
    let mut order = Vec::new();
    order.extend(world.poll_ids("t/0", 100).await);
    assert_eq!(world.refresh().await.promoted, 100);
    order.extend(ids(&world.drain("t/0").await));
    assert_eq!(order, (0..count).map(|i| format!("{i:05}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn far_tasks_cost_redis_nothing_however_many_ticks_run() {
    let world = World::new().await;
    world.add_many("far", 300, 6 * 3_600_000).await;
    for _ in 0..5 {
        assert!(world.redis.keys().is_empty(), "{:?}", world.redis.keys());
        world.advance(60_000);
        let report = world.refresh().await;
        assert_eq!(report.load.read, 0);
        world.recover().await;
    }
    // One that is put off leaves Redis, too.
    world.add(task("near", 1_000)).await;
    world.call("POST", "/api/v1/task/reschedule/near", json!({"delay": 3_600_000})).await.data();
    world.recover().await;
    assert!(world.redis.keys().is_empty(), "{:?}", world.redis.keys());
}
