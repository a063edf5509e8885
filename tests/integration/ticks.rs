//! The ticks: refresh and recover, alone, together, late, cut short, and with what they cannot read.

use std::collections::BTreeSet;
use std::time::Duration;

use aws_sdk_dynamodb::types::AttributeValue;
use punctual_core::clock::Clock;
use punctual_core::config::TickConfig;
use punctual_core::due_index::{Partition, Place, TOPIC_LIMIT};
use punctual_core::task::Lane;
use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::{Proxy, Settings, World, call, ids, sorted_ids, task};

fn partition() -> Partition {
    Partition { lane: Lane { task_type: "t".to_owned(), priority: 0, handler: None }, number: 0 }
}

fn integer(world: &World, command: &str) -> i64 {
    redis::from_redis_value(world.redis.run(command)).expect("an integer")
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ticks_at_once_from_several_processes_make_each_task_ready_once() {
    let world = World::new().await;
    world.add_many("a", 200, 1_000).await;
    world.redis.run("FLUSHALL");
    world.advance(1_000);
    let clock = || Clock::Manual(world.clock.clone());
    let (second, third) =
        (world.another(clock(), &Settings::default()).await, world.another(clock(), &Settings::default()).await);
    let tick = world.tick();
    let (a, b, c, d, e) = tokio::join!(
        world.service.refresh(&tick),
        second.refresh(&tick),
        world.service.recover(&tick),
        third.recover(&tick),
        third.refresh(&tick),
    );
    let ran = [a.expect("ok"), b.expect("ok"), e.expect("ok")].iter().filter(|report| !report.locked).count();
    assert!(ran >= 1);
    c.expect("ok");
    d.expect("ok");
    let polled = world.drain("t/0").await;
    assert_eq!((polled.len(), sorted_ids(&polled).into_iter().collect::<BTreeSet<_>>().len()), (200, 200));
    for n in 0..200 {
        assert_eq!(world.redis.places_of(&format!("a{n}")), 1);
    }
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
    assert_eq!(integer(&world, "ZCARD future:{t_0.0}"), (COUNT + 3 - TOPIC_LIMIT) as i64);
    let polled = world.poll("t/0", 100).await;
    assert_eq!(sorted_ids(&polled[..3]), ["old0", "old1", "old2"]);
    assert_eq!(polled.len(), 100);
}

#[tokio::test]
async fn a_tick_without_time_does_a_page_of_each_shard_says_so_and_the_next_goes_on() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 2, ..Settings::default() }).await;
    const COUNT: usize = 2_600;
    world.add_many("a", COUNT, 1_000).await;
    for (tick, lost) in [("refresh", "FLUSHALL"), ("recover", "DEL future:{t_0.0} partitions")] {
        world.redis.run(lost);
        if tick == "refresh" {
            world.advance(1_000);
        }
        let (mut loaded, mut runs) = (0, 0);
        loop {
            let load = if tick == "refresh" { world.refresh().await.load } else { world.recover().await.load };
            assert!(load.read <= 200, "{load:?}");
            loaded += load.loaded;
            runs += 1;
            assert_eq!(world.redis.keys().iter().any(|key| key.starts_with("cursor:")), load.more);
            if !load.more {
                break;
            }
            assert!(runs < 20, "shards of different lengths are done at some time: {load:?}");
        }
        assert!(runs >= 3, "{runs}");
        let in_list = integer(&world, "LLEN topic:{t_0.0}") + integer(&world, "ZCARD future:{t_0.0}");
        assert_eq!(in_list, COUNT as i64, "{tick}");
        assert!(loaded >= (COUNT - TOPIC_LIMIT) as u64, "{tick}: {loaded}");
    }
}

#[tokio::test]
async fn what_takes_several_ticks_to_load_is_all_loaded_and_promises_nothing_of_what_came_meanwhile() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 1, ..Settings::default() }).await;
    world.import_many("a", 250, 200_000).await;
    world.redis.run("FLUSHALL");
    for more in [true, true, false] {
        assert_eq!(world.refresh().await.load.more, more);
        assert_eq!(integer(&world, "EXISTS horizon"), 0, "the first ticks' part may have grown since");
    }
    assert_eq!(integer(&world, "ZCARD future:{t_0.0}"), 250);
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
    assert_eq!(integer(&world, &format!("ZCOUNT future:{{t_0.0}} {} +inf", world.now())), 1);
}

#[tokio::test]
async fn a_refresh_leaves_a_lock_alone_that_is_not_its_own() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    world.redis.run("FLUSHALL");
    world.redis.run("SET lock:refresh another PX 60000");
    let report = world.refresh().await;
    assert!(report.locked);
    assert_eq!(report.load.loaded, 0);
    assert_eq!(redis::from_redis_value::<String>(world.redis.run("GET lock:refresh")).expect("text"), "another");
    // The holder was killed, and its lock ended.
    world.redis.run("DEL lock:refresh");
    assert_eq!(world.refresh().await.load.loaded, 1);
    assert_eq!(integer(&world, "EXISTS lock:refresh"), 0);
}

#[tokio::test]
async fn a_lock_ends_by_itself_and_is_released_by_its_holder_only() {
    let world = World::new().await;
    let index = &world.service.index;
    let hold = Duration::from_secs(50);
    assert!(index.lock("x", "a", hold).await.expect("Redis"));
    assert!(!index.lock("x", "b", hold).await.expect("Redis"));
    assert!((1..=50_000).contains(&integer(&world, "PTTL lock:x")));
    // It ends while `a` still works.
    world.redis.run("DEL lock:x");
    assert!(index.lock("x", "b", hold).await.expect("Redis"));
    index.release("x", "a").await.expect("Redis");
    assert!(!index.lock("x", "c", hold).await.expect("Redis"), "b still holds it");
    index.release("x", "b").await.expect("Redis");
    assert!(index.lock("x", "c", hold).await.expect("Redis"));
}

#[tokio::test]
async fn a_refresh_that_fails_frees_its_lock() {
    let world = World::new().await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.set(tests::Fault::Refusing);
    assert!(service.refresh(&world.tick()).await.is_err());
    assert_eq!(integer(&world, "EXISTS lock:refresh"), 0);
    proxy.set(tests::Fault::None);
    assert!(!service.refresh(&world.tick()).await.expect("a refresh").locked);
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
    let loaded = integer(&world, "ZCARD future:{t_0.0}");
    assert!((30..60).contains(&loaded), "{loaded}");
    proxy.refuse_requests("", 0);
    service.refresh(&world.tick()).await.expect("a refresh");
    assert_eq!(integer(&world, "ZCARD future:{t_0.0}"), 60);
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
    assert_eq!(integer(&world, "LLEN topic:{t_0.0}"), TOPIC_LIMIT as i64);
    let mut order = Vec::new();
    order.extend(world.poll_ids("t/0", 100).await);
    assert_eq!(world.refresh().await.promoted, 100);
    order.extend(ids(&world.drain("t/0").await));
    assert_eq!(order, (0..count).map(|i| format!("{i:05}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_queue_may_get_more_or_fewer_partitions_with_tasks_in_it() {
    for (before, after) in [(4, 1), (1, 4), (4, 3)] {
        let of = |queue_partitions| Settings { queue_partitions, ..Settings::default() };
        let world = World::with(of(before)).await;
        world.add_many("leased", 12, 0).await;
        assert_eq!(world.drain("t/0").await.len(), 12);
        world.add_many("ready", 12, 0).await;
        world.refresh().await;
        world.add_many("soon", 12, 60_000).await;
        world.add_many("far", 12, 600_000).await;
        let service = world.another(Clock::Manual(world.clock.clone()), &of(after)).await;
        let tick = async || {
            service.recover(&world.tick()).await.expect("a recovery");
            service.refresh(&world.tick()).await.expect("a refresh");
        };
        let drain = async || {
            let mut all = Vec::new();
            loop {
                let reply = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 100})).await;
                let polled = reply.data().as_array().expect("an array").clone();
                if polled.is_empty() {
                    return all;
                }
                for task in &polled {
                    let body = json!({"leaseToken": task["leaseToken"]});
                    let id = task["taskId"].as_str().expect("an id");
                    let reply = call(&service, "POST", &format!("/api/v1/task/ack/{id}"), body).await;
                    assert_eq!(reply.data(), true);
                }
                all.extend(ids(&polled));
            }
        };
        tick().await;
        let mut delivered = drain().await;
        for step in [60_000, 300_000, 60_000, 180_000] {
            world.advance(step);
            tick().await;
            delivered.extend(drain().await);
        }
        let distinct: BTreeSet<&String> = delivered.iter().collect();
        assert_eq!((delivered.len(), distinct.len()), (48, 48), "{before} to {after}");
        world.advance(120_000);
        tick().await;
        tick().await;
        assert!(world.redis.keys().is_empty(), "{before} to {after}: {:?}", world.redis.keys());
    }
}

#[tokio::test]
async fn a_polled_queue_rids_itself_of_ids_that_lie_in_the_wrong_partition() {
    let world = World::new().await;
    world.add_many("a", 40, 0).await;
    let four = Settings { queue_partitions: 4, ..Settings::default() };
    let service = world.another(Clock::Manual(world.clock.clone()), &four).await;
    let mut polled = Vec::new();
    loop {
        let reply = call(&service, "POST", "/api/v1/task/poll/t/0", json!({"max": 10, "leaseSeconds": 300})).await;
        let some = reply.data().as_array().expect("an array").clone();
        if some.is_empty() {
            break;
        }
        polled.extend(some);
    }
    assert_eq!(polled.len(), 40, "the old partition is one of the new ones");
    for task in &polled {
        let id = task["taskId"].as_str().expect("an id");
        assert_eq!(world.redis.places_of(id), 1, "{id}");
        let body = json!({"leaseToken": task["leaseToken"]});
        assert_eq!(call(&service, "POST", &format!("/api/v1/task/ack/{id}"), body).await.data(), true);
    }
    for task in &polled {
        let id = task["taskId"].as_str().expect("an id");
        assert_eq!(world.redis.places_of(id), 0, "{id}");
    }
}

#[tokio::test]
async fn empty_partitions_leave_the_registry_and_come_back_with_the_next_task() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let polled = world.poll("t/0", 1).await;
    assert_eq!(world.recover().await.struck_off, 0, "a leased task is one");
    world.settle("ack", &polled[0], json!({})).await.data();
    assert_eq!(world.recover().await.struck_off, 1);
    assert!(world.redis.keys().is_empty());
    world.add(task("b", 0)).await;
    assert_eq!(world.poll_ids("t", 1).await, ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_partition_that_gets_a_task_while_it_is_struck_off_stays_in_the_registry() {
    let world = World::new().await;
    let now = Timestamp::from_ms(world.now());
    for round in 0..300 {
        let id = format!("a{round}");
        let all = [partition()];
        let add = [(partition(), id.as_str(), now)];
        let (added, struck_off) =
            tokio::join!(world.service.index.add(&add), world.service.index.strike_off_empty(&all));
        added.expect("Redis");
        struck_off.expect("Redis");
        assert_eq!(integer(&world, "SISMEMBER partitions t_0.0"), 1, "round {round}");
        world.service.index.place(&[(partition(), id.as_str(), Place::Nowhere)]).await.expect("Redis");
    }
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

#[tokio::test]
async fn a_recovery_leaves_long_leases_alone_and_gets_past_them() {
    let world = World::new().await;
    world.add_many("long", 700, 0).await;
    for _ in 0..7 {
        let reply = world.call("POST", "/api/v1/task/poll/t/0", json!({"max": 100, "leaseSeconds": 1_800})).await;
        assert_eq!(reply.data().as_array().expect("an array").len(), 100);
    }
    world.add(task("short", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["short"]);
    world.advance(300_000);
    let report = world.recover().await;
    assert_eq!(report.ended, 1, "{report:?}");
    assert_eq!(world.poll_ids("t/0", 10).await, ["short"]);
}

#[tokio::test]
async fn an_unlimited_number_of_ended_leases_is_recovered_in_one_tick() {
    let world = World::new().await;
    world.add_many("a", 1_300, 0).await;
    assert_eq!(world.drain("t/0").await.len(), 1_300);
    world.advance(30_000);
    let report = world.recover().await;
    assert_eq!((report.ended, report.load.more), (1_300, false));
    assert_eq!(integer(&world, "ZCARD future:{t_0.0}"), 1_300);
    let tick = TickConfig { budget: Duration::ZERO };
    assert_eq!(world.service.recover(&tick).await.expect("a recovery").ended, 0);
}

#[tokio::test]
async fn a_refresh_during_which_redis_was_emptied_does_not_say_that_all_is_loaded() {
    let world = World::new().await;
    let index = &world.service.index;
    assert!(index.lock("refresh", "this one", Duration::from_secs(10)).await.expect("Redis"));
    assert!(index.holds("refresh", "this one").await.expect("Redis"));
    assert!(!index.holds("refresh", "another").await.expect("Redis"));
    world.redis.run("FLUSHALL");
    assert!(!index.holds("refresh", "this one").await.expect("Redis"));
}

#[tokio::test]
async fn recover_drops_what_is_over_from_a_queue_that_nobody_polls() {
    let world = World::new().await;
    let cancelled = world.add_many("cancelled", 5, 0).await;
    for id in &cancelled {
        world.call("DELETE", &format!("/api/v1/task/cancel/{id}"), Value::Null).await.data();
        // As if Redis had not been told.
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} {id}"));
    }
    world.redis.run("RPUSH topic:{t_0.0} unknown");
    world.redis.run("SADD partitions t_0.0");
    world.advance(3_600_000);
    assert_eq!(world.get("/api/v1/queues").await.data()[0]["oldestDueAgeMs"], 0, "what is over is not late");
    assert_eq!(world.recover().await.oldest_due_age_ms, 0);
    assert_eq!(integer(&world, "EXISTS topic:{t_0.0}"), 0);
}
