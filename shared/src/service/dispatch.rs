//! Push: running the tasks that name a handler, from one minute's tick to the next.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::warn;

use super::poll::{PollRequest, Source};
use super::{Service, log_down};
use crate::config::DispatchConfig;
use crate::due_index::Subscription;
use crate::due_index::keys::handler_channel;
use crate::error::Error;
use crate::handler::Registry;

/// A dispatcher looks again after this at the latest, whatever it has heard.
const LOOK_AGAIN: Duration = Duration::from_millis(1_000);
/// The same while it cannot hear of new tasks.
const LOOK_AGAIN_UNHEARD: Duration = Duration::from_millis(250);

/// What a dispatcher did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DispatchReport {
    /// Attempts begun.
    pub started: u64,
    /// Attempts that succeeded.
    pub succeeded: u64,
    /// Attempts that failed: with an error, a panic, a time-out or unreadable parameters.
    pub failed: u64,
    /// Attempts whose lease was lost meanwhile: cancelled, or taken by another after a stall.
    pub lost: u64,
    /// Due tasks whose handler this deployment does not have, by its name; left as they are.
    pub unknown: BTreeMap<String, u64>,
}

/// How an attempt ended.
pub(super) enum Outcome {
    Succeeded,
    Failed,
    Lost,
}

/// One shift's state.
struct Shift<'a> {
    service: &'a Arc<Service>,
    registry: &'a Registry,
    concurrency: usize,
    /// Whether it ends when nothing is due.
    single_pass: bool,
    running: JoinSet<(&'static str, Outcome)>,
    running_by_handler: HashMap<&'static str, usize>,
    report: DispatchReport,
}

impl Service {
    /// Runs due tasks of the handlers in `registry` until the shift ends, then waits for those that run. A shift of
    /// 0 is a single pass: it ends when nothing is due.
    pub async fn dispatch(
        self: &Arc<Self>,
        registry: &Registry,
        config: &DispatchConfig,
    ) -> Result<DispatchReport, Error> {
        // Without a handler there is nothing to wait for, and a shift is paid by the second.
        let length = if registry.names().next().is_none() { Duration::ZERO } else { config.shift };
        let shift_end = Instant::now() + length;
        let mut shift = Shift {
            service: self,
            registry,
            concurrency: config.concurrency,
            single_pass: length.is_zero(),
            running: JoinSet::new(),
            running_by_handler: HashMap::new(),
            report: DispatchReport::default(),
        };
        shift.report.unknown = self.due_of_unknown_handlers(registry).await;
        let result = shift.work(shift_end).await;
        while let Some(ended) = shift.running.join_next().await {
            shift.note(ended);
        }
        result.map(|()| shift.report)
    }

    /// Counts due tasks of handlers that `registry` lacks.
    async fn due_of_unknown_handlers(&self, registry: &Registry) -> BTreeMap<String, u64> {
        let counted = async {
            let (mut partitions, _) = self.index.partitions().await?;
            partitions.retain(|p| p.lane.handler.as_ref().is_some_and(|name| registry.get(name).is_none()));
            let counts = self.index.counts(&partitions, self.clock.now()).await?;
            let mut unknown = BTreeMap::new();
            for (partition, counts) in partitions.into_iter().zip(counts) {
                *unknown.entry(partition.lane.handler.unwrap_or_default()).or_default() += counts.ready;
            }
            unknown.retain(|_, due| *due > 0);
            Ok(unknown)
        };
        counted.await.unwrap_or_else(|error| {
            log_down(&error);
            BTreeMap::new()
        })
    }
}

impl Shift<'_> {
    async fn work(&mut self, shift_end: Instant) -> Result<(), Error> {
        let mut subscriptions: Vec<Subscription> = Vec::new();
        loop {
            let (taken, mut next) = match self.take().await {
                Err(error) if !self.single_pass && Instant::now() < shift_end => {
                    // A store that fails for a moment must not cost the rest of the minute.
                    warn!(%error, "a dispatcher could not look for tasks; it looks again");
                    (0, None)
                }
                taken => taken?,
            };
            if self.single_pass {
                if taken == 0 {
                    match self.running.join_next().await {
                        Some(ended) => self.note(ended),
                        None => return Ok(()),
                    }
                }
                continue;
            }
            if Instant::now() >= shift_end {
                return Ok(());
            }
            if taken > 0 {
                continue;
            }
            let unheard = subscriptions.is_empty();
            if unheard {
                subscriptions = self.subscribe().await;
                if !subscriptions.is_empty() {
                    // Only what is added from here on is heard.
                    continue;
                }
            }
            let look_again = if unheard { LOOK_AGAIN_UNHEARD } else { LOOK_AGAIN };
            let pause = tokio::time::sleep_until(shift_end.min(Instant::now() + look_again));
            tokio::pin!(pause);
            let full = self.slots().is_empty();
            loop {
                let due = async {
                    match next {
                        // With every slot taken, what is due has to wait for one.
                        Some(due) if !full => self.service.clock.sleep_until(due).await,
                        _ => std::future::pending().await,
                    }
                };
                let heard = async {
                    if subscriptions.is_empty() {
                        std::future::pending().await
                    } else {
                        let all = subscriptions.iter_mut().map(|s| Box::pin(s.next()));
                        futures::future::select_all(all).await.0
                    }
                };
                tokio::select! {
                    () = &mut pause => break,
                    () = due => break,
                    Some(ended) = self.running.join_next() => {
                        note(&mut self.report, &mut self.running_by_handler, ended);
                        break;
                    }
                    heard = heard => match heard {
                        Some(due) => next = Some(next.map_or(due, |next| next.min(due))),
                        None => {
                            subscriptions.clear();
                            break;
                        }
                    },
                }
            }
        }
    }

    async fn subscribe(&self) -> Vec<Subscription> {
        let mut subscriptions = Vec::new();
        for name in self.registry.names() {
            match self.service.index.wake_ups.subscribe(handler_channel(name)).await {
                Some(subscription) => subscriptions.push(subscription),
                None => return Vec::new(),
            }
        }
        subscriptions
    }

    /// How many more tasks may run, by handler; none with 0.
    fn slots(&self) -> HashMap<String, usize> {
        let free = self.concurrency.saturating_sub(self.running.len());
        let slots = self.registry.names().map(|name| {
            let limit = self.registry.get(name).and_then(|handler| handler.limit());
            let limit = limit.unwrap_or(self.concurrency.div_ceil(2));
            let running = self.running_by_handler.get(name).copied().unwrap_or(0);
            (name.to_owned(), limit.saturating_sub(running).min(free))
        });
        slots.filter(|(_, free)| *free > 0).collect()
    }

    /// Takes due tasks for the free slots and starts them. Returns how many, and when the next one may be due.
    async fn take(&mut self) -> Result<(usize, Option<crate::time::Timestamp>), Error> {
        // All at once: a busy dispatcher then takes one batch for the slots that became free while it took the last.
        while let Some(ended) = self.running.try_join_next() {
            self.note(ended);
        }
        let slots = self.slots();
        if slots.is_empty() {
            return Ok((0, None));
        }
        let request = PollRequest {
            source: Source::Handlers(slots),
            most: self.concurrency - self.running.len(),
            lease_ms: Some(self.service.config.lease_ms),
            wait: Duration::ZERO,
        };
        let (tasks, next) = self.service.take_now(&request).await?;
        let taken = tasks.len();
        for task in tasks {
            let name = task.content.handler.as_deref().unwrap_or_default();
            let Some((name, handler)) = self.registry.entry(name) else {
                warn!(task_id = task.id, "leased a task of a handler that is not registered");
                continue;
            };
            self.report.started += 1;
            *self.running_by_handler.entry(name).or_default() += 1;
            let (service, handler) = (self.service.clone(), handler.clone());
            self.running.spawn(async move { (name, service.run(handler, task).await) });
        }
        Ok((taken, next))
    }

    fn note(&mut self, ended: Result<(&'static str, Outcome), JoinError>) {
        note(&mut self.report, &mut self.running_by_handler, ended);
    }
}

fn note(
    report: &mut DispatchReport,
    running_by_handler: &mut HashMap<&'static str, usize>,
    ended: Result<(&'static str, Outcome), JoinError>,
) {
    let (name, outcome) = match ended {
        Ok(ended) => ended,
        Err(error) => {
            // The handler itself runs in a task of its own, so this is a fault of ours; the lease ends by itself.
            warn!(%error, "a dispatched task ended in a panic");
            return;
        }
    };
    if let Some(running) = running_by_handler.get_mut(name) {
        *running -= 1;
    }
    match outcome {
        Outcome::Succeeded => report.succeeded += 1,
        Outcome::Failed => report.failed += 1,
        Outcome::Lost => report.lost += 1,
    }
}
