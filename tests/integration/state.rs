//! DynamoDB's conditional writes and the pure state machine are the same rules.

use std::collections::BTreeMap;

use aws_sdk_dynamodb::types::AttributeValue;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use punctual_core::backoff::Backoff;
use punctual_core::state::{Applied, Event};
use punctual_core::table::{Item, Refused, to_item};
use punctual_core::task::{Content, Lane, LastError, Status, Task, TaskType};
use punctual_core::time::Timestamp;
use tests::{START_MS, World};

const NOW: Timestamp = Timestamp::from_ms(START_MS);
const TOKENS: [&str; 3] = ["token-1", "token-2", "token-3"];

/// Moments around now, now itself among them.
fn moments() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        Just(NOW),
        Just(NOW.plus_ms(1)),
        Just(NOW.plus_ms(-1)),
        Just(NOW.plus_ms(-1_000)),
        (-10_000_000_i64..10_000_000).prop_map(|ms| NOW.plus_ms(ms)),
    ]
}

fn lanes() -> impl Strategy<Value = Lane> {
    (select(vec!["7", "t", "t_1"]), select(vec![0, 1, 255]), select(vec![None, Some("webhook")])).prop_map(
        |(task_type, priority, handler)| Lane {
            task_type: task_type.to_owned(),
            priority,
            handler: handler.map(str::to_owned),
        },
    )
}

fn contents() -> impl Strategy<Value = Content> {
    let backoff = select(vec![Backoff::default(), Backoff::Fixed { delay: 5, jitter: 0.0 }]);
    let timeout = select(vec![None, Some(1_000)]);
    (lanes(), any::<bool>(), 1..4_u32, backoff, 0..20_000_i64, timeout).prop_map(
        |(lane, as_number, max_attempts, backoff, retention_ms, timeout_ms)| Content {
            task_type: TaskType::from_stored(lane.task_type, as_number),
            priority: lane.priority,
            parameters: None,
            handler: lane.handler,
            max_attempts,
            backoff,
            retention_ms,
            timeout_ms,
        },
    )
}

/// Tasks as they can stand in the table: what belongs to a state is there, what does not is not.
fn tasks() -> impl Strategy<Value = Task> {
    let error = select(vec![None, Some("busy")]);
    let times = (moments(), moments(), moments(), moments());
    (contents(), select(Status::ALL.to_vec()), 0..4_u32, 1..9_u64, times, select(TOKENS.to_vec()), any::<bool>(), error)
        .prop_map(|(content, status, attempts, version, (due, until, finished, updated), token, has_token, error)| {
            let leased = status == Status::Leased;
            Task {
                id: "task".to_owned(),
                digest: "digest".to_owned(),
                execute_time: due,
                status,
                attempts: if leased { attempts.max(1) } else { attempts },
                version,
                write_id: "write-0".to_owned(),
                created_at: updated.plus_ms(-5),
                updated_at: updated,
                finished_at: status.is_final().then_some(finished),
                lease_until: leased.then_some(until),
                lease_token: (leased || (has_token && status != Status::Cancelled)).then(|| token.to_owned()),
                last_error: error.map(|message| LastError { attempt: 1, at: updated, message: message.to_owned() }),
                content,
            }
        })
}

fn events() -> impl Strategy<Value = Event> {
    let token = || select(TOKENS.to_vec()).prop_map(str::to_owned);
    prop_oneof![
        (lanes(), token(), moments()).prop_map(|(lane, token, until)| Event::Lease { lane, token, until }),
        lanes().prop_map(|lane| Event::Take { lane }),
        token().prop_map(|token| Event::Acknowledge { token }),
        Just(Event::Cancel),
    ]
}

/// A task and an event, which is often one that the task is ready for.
fn cases() -> impl Strategy<Value = (Task, Event)> {
    (tasks(), events(), any::<bool>()).prop_map(|(task, mut event, fitting)| {
        if fitting {
            match &mut event {
                Event::Lease { lane, .. } | Event::Take { lane } => *lane = task.lane(),
                Event::Acknowledge { token } => *token = task.lease_token.clone().unwrap_or_else(|| token.clone()),
                _ => {}
            }
        }
        (task, event)
    })
}

fn sorted(item: Item) -> BTreeMap<String, AttributeValue> {
    item.into_iter().collect()
}

async fn item_of(world: &World) -> Item {
    let (client, table) = world.service.table.client();
    let key = AttributeValue::S("task".to_owned());
    let answer = client.get_item().table_name(table).key("taskId", key).consistent_read(true).send().await;
    answer.expect("a read").item.expect("the item")
}

/// Writes `task`, sends the event's conditional write, and compares what came of it with [`Task::apply`].
async fn agree(world: &World, task: Task, event: Event) -> Result<(), TestCaseError> {
    let (table, shards) = (&world.service.table, world.service.table.shards());
    let before = to_item(&task, shards);
    let (client, name) = table.client();
    client.put_item().table_name(name).set_item(Some(before.clone())).send().await.expect("a write");

    // Each answers with the task, its lane, or why it is refused.
    let written: Result<(Option<Task>, Lane), Refused> = match &event {
        Event::Lease { lane, token, until } => table
            .lease(&task.id, lane, token, *until, NOW)
            .await
            .expect("no failure")
            .map(|t| (Some(t.clone()), t.lane())),
        Event::Take { lane } => {
            table.take(&task.id, lane, NOW).await.expect("no failure").map(|t| (Some(t.clone()), t.lane()))
        }
        Event::Acknowledge { token } => {
            table.acknowledge(&task.id, token, NOW).await.expect("no failure").map(|lane| (None, lane))
        }
        Event::Cancel => table.cancel(&task.id, NOW).await.expect("no failure").map(|lane| (None, lane)),
        other => panic!("no single write for {other:?}"),
    };
    let after = item_of(world).await;

    match (task.apply(&event, NOW), written) {
        (Ok(Applied::Changed(mut next)), Ok((given, lane))) => {
            next.version = task.version + 1;
            next.updated_at = NOW;
            next.write_id = after["writeId"].as_s().expect("a text").clone();
            prop_assert_ne!(&next.write_id, &task.write_id);
            prop_assert_eq!(lane, task.lane());
            let wanted = sorted(to_item(&next, shards));
            if let Some(given) = given {
                prop_assert_eq!(sorted(to_item(&given, shards)), wanted.clone());
            }
            prop_assert_eq!(sorted(after), wanted);
        }
        (pure, Err(refused)) => {
            let wanted = match pure {
                _ if task.is_expired(NOW) => Refused::Missing,
                Err(refusal) => Refused::State(refusal),
                Ok(Applied::Already) => Refused::Already,
                Ok(Applied::Changed(_)) => return Err(TestCaseError::fail(format!("{refused:?}, though it applies"))),
            };
            prop_assert_eq!(refused, wanted);
            prop_assert_eq!(sorted(after), sorted(before), "a refused write changes nothing");
        }
        (pure, Ok(_)) => return Err(TestCaseError::fail(format!("written, though {pure:?}"))),
    }
    Ok(())
}

#[test]
fn the_conditional_writes_and_the_state_machine_agree() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let world = runtime.block_on(World::new());
    let config = Config { cases: 800, failure_persistence: None, ..Config::default() };
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let counted = std::cell::RefCell::new(&mut outcomes);
    let outcome = TestRunner::new(config).run(&cases(), |(task, event)| {
        let pure = match task.apply(&event, NOW) {
            Ok(Applied::Changed(_)) => "changed".to_owned(),
            Ok(Applied::Already) => "already".to_owned(),
            Err(refusal) => format!("{refusal:?}").split('(').next().unwrap_or_default().to_owned(),
        };
        *counted.borrow_mut().entry(pure).or_default() += 1;
        runtime.block_on(agree(&world, task, event))
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    // The cases reach every way in which such a write can end.
    for outcome in ["changed", "already", "OtherLane", "NotDue", "Held", "AttemptsUsed", "LeaseLost", "Finished"] {
        assert!(outcomes.get(outcome).is_some_and(|times| *times > 2), "{outcome} of {outcomes:?}");
    }
}
