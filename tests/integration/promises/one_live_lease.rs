//! 4. One live lease.

use futures::future::join_all;
use punctual_core::clock::Clock;
use serde_json::{Value, json};
use tests::{Settings, World, call, ids, task};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_twenty_polls_at_once_one_gets_the_task() {
    let world = World::new().await;
    let other = world.another(Clock::Manual(world.clock.clone()), &Settings::default()).await;
    for round in 0..5 {
        let id = format!("a{round}");
        world.add(task(&id, 0)).await;
        // Redis offers it to everyone.
        world.redis.run(&format!("RPUSH topic:{{t_0.0}} {id} {id} {id} {id} {id} {id}"));
        world.redis.run(&format!("ZADD lease:{{t_0.0}} 0 {id}"));
        let polls = (0..20).map(|n| {
            let service = if n % 2 == 0 { &world.service } else { &other };
            call(service, "POST", "/api/v1/task/poll/t/0", json!({"max": 3}))
        });
        let polled = join_all(polls).await;
        let got: Vec<Value> =
            polled.iter().flat_map(|reply| reply.data().as_array().expect("an array").clone()).collect();
        assert_eq!(ids(&got), std::slice::from_ref(&id));
        assert_eq!(world.task(&id).await["attempts"], 1);
        world.settle("ack", &got[0], json!({})).await.data();
    }
}

#[tokio::test]
async fn is_kept_when_redis_forgets_it() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
    for loss in ["FLUSHALL", "DEL lease:{t_0.0}", "ZADD future:{t_0.0} 0 a", "RPUSH topic:{t_0.0} a"] {
        world.redis.run(loss);
        assert!(world.poll("t/0", 1).await.is_empty(), "{loss}");
        world.refresh().await;
        world.recover().await;
        assert!(world.poll("t/0", 1).await.is_empty(), "{loss}");
    }
    assert_eq!(world.task("a").await["attempts"], 1);
    world.advance(30_000);
    assert_eq!(world.poll_ids("t/0", 1).await, ["a"]);
}

#[tokio::test]
async fn any_other_token_gets_409_and_changes_nothing() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let first = world.poll("t/0", 1).await.remove(0);
    world.advance(30_000);
    let second = world.poll("t/0", 1).await.remove(0);
    let before = world.task("a").await;
    for stranger in [&first["leaseToken"], &json!("x"), &json!(second["leaseToken"].as_str().map(str::to_lowercase))] {
        if *stranger == second["leaseToken"] {
            continue;
        }
        let task = json!({"taskId": "a", "leaseToken": stranger});
        for (verb, more) in [("ack", json!({})), ("nack", json!({"delay": 0})), ("extend", json!({"leaseSeconds": 9}))]
        {
            let reply = world.settle(verb, &task, more).await;
            assert_eq!(reply.error(), (409, "lease_lost"), "{verb}");
        }
        let batch = world.call("POST", "/api/v1/task/ack", json!([task])).await;
        assert_eq!(batch.data()[0]["error"], "lease_lost");
    }
    assert_eq!(world.task("a").await, before);
    assert_eq!(world.settle("ack", &second, json!({})).await.data(), true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_an_ack_and_a_nack_at_once_one_decides() {
    let world = World::new().await;
    for round in 0..10 {
        let id = format!("a{round}");
        world.add(task(&id, 0)).await;
        let held = world.poll("t/0", 1).await.remove(0);
        let (acked, nacked) = tokio::join!(
            world.settle("ack", &held, json!({})),
            world.settle("nack", &held, json!({"permanent": true})),
        );
        let cancelled = world.call("DELETE", &format!("/api/v1/task/cancel/{id}"), Value::Null).await;
        assert_eq!(u8::from(acked.status == 200) + u8::from(nacked.status == 200), 1, "{acked:?} {nacked:?}");
        assert_eq!(cancelled.error(), (409, "task_finished"));
        let status = if acked.status == 200 { "succeeded" } else { "dead" };
        assert_eq!(world.status(&id).await, status);
    }
}
