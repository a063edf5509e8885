//! 6. Final: what is over is never delivered again.

use serde_json::{Value, json};
use tests::{World, task};

#[tokio::test]
async fn a_task_that_is_over_is_never_delivered_again_whatever_redis_says() {
    let world = World::new().await;
    world.add_many("a", 4, 0).await;
    let polled = world.poll("t/0", 3).await;
    world.settle("ack", &polled[0], json!({})).await.data();
    world.settle("nack", &polled[1], json!({"permanent": true})).await.data();
    world.call("DELETE", "/api/v1/task/cancel/a2", Value::Null).await.data();
    assert_eq!(world.get("/api/v1/task/poll/t/0").await.data()["taskId"], "a3");
    let over = ["succeeded", "dead", "cancelled", "succeeded"];
    for lie in ["RPUSH topic:{t_0.0} ", "ZADD future:{t_0.0} 1 ", "ZADD lease:{t_0.0} 1 "] {
        for (n, status) in over.iter().enumerate() {
            world.redis.run(&format!("{lie}a{n}"));
            assert_eq!(world.status(&format!("a{n}")).await, *status);
        }
        match lie.as_bytes()[0] {
            b'R' => {
                world.refresh().await;
            }
            _ => {
                world.recover().await;
            }
        }
        assert!(world.poll("t/0", 10).await.is_empty(), "{lie}");
        assert!(world.get("/api/v1/task/poll/t/0").await.data().is_null(), "{lie}");
    }
    for (n, status) in over.iter().enumerate() {
        let id = format!("a{n}");
        assert_eq!((world.status(&id).await.as_str(), world.redis.places_of(&id)), (*status, 0), "{id}");
    }
}

#[tokio::test]
async fn a_task_cancelled_while_it_runs_is_lost_to_its_holder_and_never_retried() {
    let world = World::new().await;
    world.add(task("a", 0)).await;
    let held = world.poll("t/0", 1).await.remove(0);
    assert_eq!(world.call("POST", "/api/v1/task/cancel/a", Value::Null).await.data(), true);
    for (verb, more) in [("ack", json!({})), ("nack", json!({"delay": 5_000})), ("extend", json!({}))] {
        assert_eq!(world.settle(verb, &held, more).await.error(), (409, "lease_lost"), "{verb}");
    }
    world.advance(3_600_000);
    world.recover().await;
    world.refresh().await;
    assert!(world.poll("t/0", 10).await.is_empty());
    assert_eq!(world.status("a").await, "cancelled");
}
