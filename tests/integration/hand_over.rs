//! The transactional hand-over: a handler's effect and its task's end in one transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, TransactWriteItem, Update};
use punctual_core::config::DispatchConfig;
use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::table::connect_to;
use serde_json::{Value, json};
use tests::{World, create_table, until};

/// Adds one to a counter and ends the task, in one transaction; then dies, now and then.
struct Count {
    client: Client,
    runs: Arc<AtomicUsize>,
    /// Dies before the transaction in the first so many runs.
    die_before: usize,
    /// Dies after the transaction, so that the dispatcher never hears of it.
    die_after: bool,
}

impl Handler for Count {
    const NAME: &'static str = "count";
    type Parameters = Value;

    async fn handle(&self, _: Value, context: &Context) -> Result<(), HandlerError> {
        let run = self.runs.fetch_add(1, Ordering::SeqCst);
        if run < self.die_before {
            std::future::pending::<()>().await;
        }
        let add_one = Update::builder()
            .table_name("effects")
            .key("taskId", AttributeValue::S("counter".to_owned()))
            .update_expression("ADD hits :one")
            .expression_attribute_values(":one", AttributeValue::N("1".to_owned()))
            .build()
            .map_err(|error| HandlerError::retry(error.to_string()))?;
        self.client
            .transact_write_items()
            .transact_items(TransactWriteItem::builder().update(add_one).build())
            .transact_items(context.completion())
            .send()
            .await
            .map_err(|error| HandlerError::retry(error.to_string()))?;
        if self.die_after {
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

async fn hits(client: &Client) -> String {
    let key = AttributeValue::S("counter".to_owned());
    let item = client.get_item().table_name("effects").key("taskId", key).send().await.expect("an answer").item;
    item.and_then(|item| item.get("hits")?.as_n().ok().cloned()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_in_the_tasks_own_transaction_happens_exactly_once_whenever_the_process_dies() {
    for (die_before, die_after) in [(0, false), (0, true), (1, false), (2, true)] {
        let world = World::new().await;
        let client = connect_to(&world.endpoint).await;
        create_table(&client, "effects").await;
        let runs = Arc::new(AtomicUsize::new(0));
        let handler = Count { client: client.clone(), runs: runs.clone(), die_before, die_after };
        let registry = Registry::default().with(handler).expect("one handler");
        world.add(json!({"taskId": "a", "taskType": "h", "delay": 0, "handler": "count"})).await;
        let config = DispatchConfig { shift: Duration::ZERO, concurrency: 4 };
        for round in 0..4 {
            let done = async {
                // Dies once the run is where it hangs: before its transaction, or after it.
                until("the run hangs", async || {
                    let begun = runs.load(Ordering::SeqCst) > round;
                    begun && (round < die_before || (die_after && hits(&client).await == "1"))
                })
                .await;
            };
            tokio::select! {
                report = dispatch::handle(&world.service, &registry, &config) => {
                    report.expect("a pass");
                    if runs.load(Ordering::SeqCst) <= round { break; }
                }
                () = done => {}
            }
            world.advance(30_000);
            world.recover().await;
        }
        assert_eq!(hits(&client).await, "1", "{die_before} {die_after}");
        assert_eq!(runs.load(Ordering::SeqCst), die_before + 1);
        assert_eq!(world.status("a").await, "succeeded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_whose_task_was_cancelled_meanwhile_does_not_happen() {
    let world = World::new().await;
    let client = connect_to(&world.endpoint).await;
    create_table(&client, "effects").await;
    world.add(json!({"taskId": "a", "taskType": "h", "delay": 0, "handler": "count"})).await;
    struct CancelFirst(Count, Arc<punctual_core::service::Service>);
    impl Handler for CancelFirst {
        const NAME: &'static str = "count";
        type Parameters = Value;
        async fn handle(&self, parameters: Value, context: &Context) -> Result<(), HandlerError> {
            self.1.cancel(&context.task_id, context.now).await.expect("cancelled");
            self.0.handle(parameters, context).await
        }
    }
    let count = Count { client: client.clone(), runs: Arc::default(), die_before: 0, die_after: false };
    let registry = Registry::default().with(CancelFirst(count, world.service.clone())).expect("one handler");
    let config = DispatchConfig { shift: Duration::ZERO, concurrency: 4 };
    let report = dispatch::handle(&world.service, &registry, &config).await.expect("a pass");
    assert_eq!((report.started, report.lost), (1, 1));
    assert_eq!(hits(&client).await, "");
    assert_eq!(world.status("a").await, "cancelled");
}
