//! Ticks at once, and the lock of the refresh.

use std::collections::BTreeSet;
use std::time::Duration;

use punctual_core::clock::Clock;
use tests::{Fault, Proxy, Settings, World, sorted_ids, task, until};

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
async fn a_refresh_during_which_redis_was_emptied_leaves_nothing_to_go_on_from() {
    let world = World::with(Settings { tick_budget: Duration::ZERO, index_shards: 1, ..Settings::default() }).await;
    world.import_many("a", 250, 200_000).await;
    let proxy = Proxy::before(&world.endpoint).await;
    let service = world.through(&proxy.url()).await;
    proxy.set(Fault::Slow(Duration::from_millis(300)));
    let tick = world.tick();
    let refresh = tokio::spawn(async move { service.refresh(&tick).await });
    until("the refresh at work", async || world.redis.integer("EXISTS lock:refresh") == 1).await;
    world.redis.run("FLUSHALL");
    let report = refresh.await.expect("it ends").expect("a refresh");
    assert!(report.load.more, "{report:?}");
    let keys = world.redis.keys();
    assert!(!keys.iter().any(|key| key.starts_with("cursor:")), "{keys:?}");
    assert_eq!(world.redis.integer("EXISTS horizon"), 0);
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
    assert_eq!(world.redis.integer("EXISTS lock:refresh"), 0);
}

#[tokio::test]
async fn a_lock_ends_by_itself_and_is_released_by_its_holder_only() {
    let world = World::new().await;
    let index = &world.service.index;
    let hold = Duration::from_secs(50);
    assert!(index.lock("x", "a", hold).await.expect("Redis"));
    assert!(!index.lock("x", "b", hold).await.expect("Redis"));
    assert!((1..=50_000).contains(&world.redis.integer("PTTL lock:x")));
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
    proxy.set(Fault::Refusing);
    assert!(service.refresh(&world.tick()).await.is_err());
    assert_eq!(world.redis.integer("EXISTS lock:refresh"), 0);
    proxy.set(Fault::None);
    assert!(!service.refresh(&world.tick()).await.expect("a refresh").locked);
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
