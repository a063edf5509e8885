//! 8. Redis may lie.

use serde_json::json;
use tests::{World, sorted_ids, task};

#[tokio::test]
async fn one_id_in_all_three_places_is_one_task() {
    let world = World::new().await;
    world.add_many("a", 3, 0).await;
    for n in 0..3 {
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} a{n} a{n}"));
        world.redis.run(&format!("ZADD lease:{{t_0.0}} 7 a{n}"));
        world.redis.run(&format!("ZADD future:{{t_0.0}} 8 a{n}"));
    }
    let polled = world.drain("t/0").await;
    assert_eq!(sorted_ids(&polled), ["a0", "a1", "a2"]);
    for task in &polled {
        world.settle("ack", task, json!({})).await.data();
    }
    world.advance(120_000);
    assert!(world.poll("t/0", 10).await.is_empty());
    world.recover().await;
    for n in 0..3 {
        assert_eq!(world.redis.places_of(&format!("a{n}")), 0);
    }
}

#[tokio::test]
async fn garbage_members_are_dropped_and_hold_up_nobody() {
    let world = World::new().await;
    world.add_many("a", 5, 0).await;
    let mut connection = world.redis.connection();
    let long = "x".repeat(5_000);
    let garbage: [&[u8]; 8] =
        [b"", b" ", b"no/id", b"unknown", b"\xff\xfe\x00", "任务".as_bytes(), long.as_bytes(), b"{\"taskId\":\"a0\"}"];
    for member in garbage {
        for place in ["future", "lease"] {
            redis::cmd("ZADD")
                .arg(format!("{place}:{{t_0.0}}"))
                .arg(1)
                .arg(member)
                .exec(&mut connection)
                .expect("ZADD");
        }
        redis::cmd("LPUSH").arg("topic:{t_0.0}").arg(member).exec(&mut connection).expect("LPUSH");
    }
    assert_eq!(sorted_ids(&world.drain("t/0").await), ["a0", "a1", "a2", "a3", "a4"]);
    world.advance(60_000);
    world.recover().await;
    world.refresh().await;
    assert_eq!(world.get("/api/v1/queues").await.status, 200);
    let polled = world.drain("t/0").await;
    assert_eq!(polled.len(), 5);
    for task in &polled {
        world.settle("ack", task, json!({})).await.data();
    }
    world.recover().await;
    assert!(world.redis.keys().iter().all(|key| !key.contains("t_0")), "{:?}", world.redis.keys());
}

#[tokio::test]
async fn a_single_poll_gets_past_any_number_of_members_that_are_nothing() {
    let world = World::new().await;
    let mut connection = world.redis.connection();
    let mut push = redis::cmd("RPUSH");
    push.arg("topic:{t_0.0}");
    for n in 0..300 {
        push.arg(format!("unknown{n}")).arg(format!("not an id {n}"));
    }
    push.exec(&mut connection).expect("RPUSH");
    world.add(task("a", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn garbage_among_the_ended_leases_does_not_stop_recovery() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    assert_eq!(world.poll("t/0", 1).await.len(), 1);
    let mut connection = world.redis.connection();
    let long = "x".repeat(5_000);
    for member in [b"".as_slice(), b"\xff\xfe", long.as_bytes(), b"a b"] {
        redis::cmd("ZADD").arg("lease:{t_0.0}").arg(1).arg(member).exec(&mut connection).expect("ZADD");
    }
    world.advance(30_000);
    let report = world.recover().await;
    assert_eq!((report.load.malformed, report.load.loaded), (4, 1), "{report:?}");
    assert_eq!(world.poll_ids("t/0", 10).await, ["a"]);
}

#[tokio::test]
async fn garbage_at_the_head_of_the_list_does_not_stop_the_view_of_queues() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let mut connection = world.redis.connection();
    for member in [b"".as_slice(), b"\xff\xfe"] {
        redis::cmd("LPUSH").arg("topic:{t_0.0}").arg(member).exec(&mut connection).expect("LPUSH");
        redis::cmd("ZADD").arg("future:{t_0.0}").arg(0).arg(member).exec(&mut connection).expect("ZADD");
        let queues = world.get("/api/v1/queues").await;
        assert_eq!(queues.data()[0]["taskType"], "t");
    }
}

#[tokio::test]
async fn a_registry_full_of_garbage_does_not_stop_ticks_or_polls() {
    let world = World::new().await;
    let mut connection = world.redis.connection();
    for member in [b"".as_slice(), b"\xff\xfe", b"t_0", b"t_999.0", b"{t}_0.0", b"t_0.99999"] {
        redis::cmd("SADD").arg("partitions").arg(member).exec(&mut connection).expect("SADD");
    }
    world.add(task("a", 0)).await;
    let report = world.refresh().await;
    assert_eq!(report.load.malformed, 6, "{report:?}");
    world.recover().await;
    assert_eq!(world.poll_ids("t", 10).await, ["a"]);
    assert_eq!(world.get("/api/v1/queues").await.status, 200);
}

#[tokio::test]
async fn keys_of_the_wrong_type_are_replaced() {
    for (key, of_wrong_type) in [
        ("future:{t_0.0}", "SET {} x"),
        ("topic:{t_0.0}", "SADD {} a0"),
        ("lease:{t_0.0}", "RPUSH {} a0"),
        ("partitions", "SET {} x"),
        ("horizon", "SET {} x"),
        ("horizon", "RPUSH {} x"),
        ("lock:refresh", "RPUSH {} x"),
        ("cursor:refresh-overdue", "SET {} x"),
        ("cursor:refresh-soon", "RPUSH {} x"),
        ("cursor:recover-overdue", "SADD {} x"),
    ] {
        let world = World::new().await;
        world.add(task("a0", 0)).await;
        world.add(json!({"taskId": "b0", "taskType": "u", "delay": 0})).await;
        world.redis.run(&format!("DEL {key}"));
        world.redis.run(&of_wrong_type.replace("{}", key));
        // Adding must not fail, nor may the ticks be stopped for good.
        world.add(task("a1", 0)).await;
        for _ in 0..2 {
            let _ = world.service.refresh(&world.tick()).await;
            let _ = world.service.recover(&world.tick()).await;
        }
        let report = world.recover().await;
        assert!(!report.load.more, "{key}");
        if key == "lock:refresh" {
            let left: i64 = redis::cmd("PTTL").arg(key).query(&mut world.redis.connection()).expect("PTTL");
            assert!(left > 0, "the lock ends by itself: {left}");
        } else {
            world.refresh().await;
        }
        let mut polled = world.drain("t/0").await;
        assert_eq!(sorted_ids(&polled), ["a0", "a1"], "{key}");
        polled.extend(world.drain("u").await);
        assert_eq!(polled.len(), 3, "{key}");
        for task in &polled {
            assert_eq!(world.settle("ack", task, json!({})).await.data(), true, "{key}");
        }
    }
}

#[tokio::test]
async fn a_cursor_of_nonsense_costs_one_tick_at_most() {
    let world = World::new().await;
    world.add_many("a", 10, 0).await;
    let mut connection = world.redis.connection();
    let long = "9".repeat(3_000);
    for (field, value) in [
        ("x", "y"),
        ("0", "zzzz"),
        ("1", ""),
        ("2", &long),
        ("70000", "000"),
        ("3", "\u{0}"),
        ("999", "001800000000000#a"),
    ] {
        world.redis.run("DEL future:{t_0.0}");
        for tick in ["refresh-soon", "refresh-overdue", "recover-overdue"] {
            redis::cmd("HSET").arg(format!("cursor:{tick}")).arg(field).arg(value).exec(&mut connection).expect("HSET");
        }
        let _ = world.service.refresh(&world.tick()).await;
        let _ = world.service.recover(&world.tick()).await;
        world.refresh().await;
        world.recover().await;
        assert!(world.redis.places_of("a0") > 0, "{field}");
    }
    assert_eq!(world.drain("t/0").await.len(), 10);
}

#[tokio::test]
async fn members_in_another_queue_or_with_far_leases_are_set_right() {
    let world = World::new().await;
    world.add_many("a", 6, 0).await;
    world.redis.run("DEL future:{t_0.0}");
    // Ids of queue t/0 in the queues t/1 and u/0, ready and leased until the year 2286.
    world.redis.run("RPUSH topic:{t_1.0} a0 a1 a2");
    world.redis.run("ZADD future:{u_0.0} 1 a3");
    world.redis.run("ZADD lease:{t_0.0} 9999999999999 a4 9999999999999 a5");
    world.redis.run("SADD partitions t_1.0 u_0.0");
    assert!(world.poll("t/1", 10).await.is_empty());
    assert!(world.poll("u/0", 10).await.is_empty());
    world.recover().await;
    assert_eq!(world.drain("t/0").await.len(), 6);
    assert_eq!(world.redis.places_of("a0") + world.redis.places_of("a3"), 2);
}

#[tokio::test]
async fn stale_scores_only_cost_time() {
    let world = World::new().await;
    world.add_many("a", 3, 10_000).await;
    // Redis thinks that they are due in an hour; refresh knows better, before they are due and after.
    for n in 0..3 {
        world.redis.run(&format!("ZADD future:{{t_0.0}} {} a{n}", world.now() + 3_600_000));
    }
    world.refresh().await;
    world.advance(10_000);
    assert_eq!(world.drain("t/0").await.len(), 3);
    world.add_many("b", 3, 10_000).await;
    world.advance(10_000);
    for n in 0..3 {
        world.redis.run(&format!("ZADD future:{{t_0.0}} {} b{n}", world.now() + 3_600_000));
    }
    world.refresh().await;
    assert_eq!(world.drain("t/0").await.len(), 3);
}
