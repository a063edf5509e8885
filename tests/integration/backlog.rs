//! A backlog that nobody takes: the ticks neither read it whole each minute nor overlook anything because of it.

use serde_json::json;
use tests::{Settings, World};

/// More than a tick reads of one shard when it tells Redis nothing new.
const BACKLOG: usize = 6_000;
const AT_ONCE: u64 = 4_000;

#[tokio::test]
async fn a_backlog_that_redis_knows_is_read_in_parts_and_what_it_forgot_is_found() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    world.import_many("a", BACKLOG, 0).await;
    world.advance(600_000);
    let first = world.refresh().await.load;
    // All but the one that was added, not imported, is new to Redis.
    assert_eq!((first.read, first.loaded, first.more), (BACKLOG as u64, BACKLOG as u64 - 1, false));
    for tick in 0..2 {
        // Due when all others are, and the last of them by its id.
        assert_eq!(world.redis.run("ZREM future:{t_0.0} a999"), redis::Value::Int(1));
        let mut reads = Vec::new();
        loop {
            let load = if tick == 0 { world.refresh().await.load } else { world.recover().await.load };
            reads.push(load.read);
            if !load.more {
                break;
            }
        }
        assert_eq!(reads, [AT_ONCE, BACKLOG as u64 - AT_ONCE]);
        assert_eq!(world.redis.places_of("a999"), 1);
    }
}

#[tokio::test]
async fn behind_a_backlog_what_became_due_a_moment_ago_is_found_by_the_next_refresh() {
    let world = World::with(Settings { index_shards: 1, ..Settings::default() }).await;
    world.import_many("a", BACKLOG, 0).await;
    world.advance(600_000);
    world.refresh().await;
    world.add(json!({"taskId": "new", "taskType": "u", "delay": 0})).await;
    // As if the process had died before it told Redis.
    world.redis.run("DEL future:{u_0.0}");
    world.advance(60_000);
    assert!(world.refresh().await.load.more, "the backlog is not read to its end");
    assert_eq!(world.poll_ids("u/0", 1).await, ["new"]);
}
