//! The handler of the histories, and a dispatcher's pass over its tasks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use punctual_core::handler::{Context, Handler, HandlerError, Registry};
use punctual_core::service::Service;
use serde::Deserialize;
use tests::reference::{Act, Op, Said};

use super::call::Done;
use super::{HANDLED, PASS};

/// Does as the task says, and notes who was run.
pub struct Scripted(Arc<Mutex<Vec<(String, u32, Act)>>>);

#[derive(Deserialize)]
pub struct Script {
    act: String,
}

impl Handler for Scripted {
    const NAME: &'static str = "model";
    type Parameters = Script;

    async fn handle(&self, script: Script, context: &Context) -> Result<(), HandlerError> {
        let (act, result) = match script.act.as_str() {
            "succeed" => (Act::Succeed, Ok(())),
            "retry" => (Act::Retry, Err(HandlerError::retry("again"))),
            "give up" => (Act::GiveUp, Err(HandlerError::permanent("never"))),
            later => {
                let ms = later.parse().expect("a number");
                let after = Some(Duration::from_millis(ms));
                (
                    Act::Later(i64::try_from(ms).expect("small")),
                    Err(HandlerError::Retry { after, reason: "busy".to_owned() }),
                )
            }
        };
        self.0.lock().expect("no panic").push((context.task_id.clone(), context.attempt, act));
        tokio::task::yield_now().await;
        result
    }
}

pub async fn dispatched(service: &Arc<Service>, name: &str) -> Done {
    let log = Arc::new(Mutex::new(Vec::new()));
    let registry = Registry::default().with(Scripted(log.clone())).expect("one handler");
    let failure = Done::tick(dispatch::handle(service, &registry, &PASS).await).failure;
    let mut events = Vec::new();
    for (id, attempt, _) in log.lock().expect("no panic").iter() {
        let Some(task) = id.strip_prefix(&format!("{name}-")).and_then(|n| n.parse().ok()) else {
            panic!("{id} is of another history");
        };
        // The handler is not told the due time, and a pass has leases of its own.
        let token = format!("run{}", rand::random::<u64>());
        events.push((task, Op::Run(token), Said::Nothing, *attempt));
    }
    let now = service.clock.now().as_ms();
    let until = now + service.config.lease_ms;
    let events = events
        .into_iter()
        .flat_map(|(task, run, said, attempt)| {
            let Op::Run(token) = &run else { unreachable!("made above") };
            let lease = Op::Lease { lane: HANDLED, until, token: token.clone() };
            [(task, lease, Said::Given { due: None, attempt }), (task, run, said)]
        })
        .collect();
    Done { events, failure, polled: Some((vec![HANDLED], usize::MAX)) }
}
