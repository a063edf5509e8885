//! Polls: whose tasks, how many, and how a poll waits for the first one.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::Service;
use crate::due_index::keys::{type_channel, wake_channel};
use crate::error::Error;
use crate::task::{Lane, Task};

/// A waiting poll looks again after this at the latest, whatever it has heard.
const LOOK_AGAIN: Duration = Duration::from_millis(1_000);
/// The same while it cannot hear of new tasks.
const LOOK_AGAIN_UNHEARD: Duration = Duration::from_millis(250);

/// Whose tasks are polled.
#[derive(Clone, Debug)]
pub enum Source {
    /// One lane.
    Lane(Lane),
    /// All polled lanes of a type, the most urgent first.
    Type(String),
    /// The lanes of these handlers, the longest due first; at most so many tasks of each.
    Handlers(HashMap<String, usize>),
}

impl Source {
    pub(super) fn has(&self, lane: &Lane) -> bool {
        match self {
            Source::Lane(wanted) => wanted == lane,
            Source::Type(task_type) => lane.handler.is_none() && lane.task_type == *task_type,
            Source::Handlers(slots) => lane.handler.as_ref().is_some_and(|name| slots.contains_key(name)),
        }
    }

    /// Where new tasks are heard of; `None` for a source that never waits.
    fn channel(&self) -> Option<String> {
        match self {
            Source::Lane(lane) => Some(wake_channel(lane)),
            Source::Type(task_type) => Some(type_channel(task_type)),
            Source::Handlers(_) => None,
        }
    }

    /// How many more tasks of `lane` may be taken.
    pub(super) fn wanted(&self, lane: &Lane, most: usize, taken: &[Task]) -> usize {
        let left = most - taken.len();
        match (self, &lane.handler) {
            (Source::Handlers(slots), Some(name)) => {
                let of_handler = taken.iter().filter(|task| task.content.handler.as_ref() == Some(name)).count();
                left.min(slots.get(name).copied().unwrap_or(0).saturating_sub(of_handler))
            }
            _ => left,
        }
    }
}

/// A poll.
#[derive(Clone, Debug)]
pub struct PollRequest {
    /// Whose tasks.
    pub source: Source,
    /// The most tasks to take.
    pub most: usize,
    /// The lease's length in milliseconds; `None`: each task is ended as it is taken.
    pub lease_ms: Option<i64>,
    /// How long to wait for the first task, in real time.
    pub wait: Duration,
}

impl Service {
    /// Takes due tasks; waits for the first one as long as the request says. `size` tells how many bytes a task takes
    /// in the answer.
    pub async fn poll(&self, request: &PollRequest, size: impl Fn(&Task) -> usize) -> Result<Vec<Task>, Error> {
        let deadline = Instant::now() + request.wait;
        let mut subscription = None;
        loop {
            let mut haul = self.look(request, &size).await?;
            if !haul.tasks.is_empty() {
                return Ok(haul.tasks);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(haul.tasks);
            }
            let unheard = subscription.is_none();
            if unheard && let Some(channel) = request.source.channel() {
                subscription = self.index.wake_ups.subscribe(channel).await;
                if subscription.is_some() {
                    // Only what is added from here on is heard.
                    continue;
                }
            }
            let pause = tokio::time::sleep(left.min(if unheard { LOOK_AGAIN_UNHEARD } else { LOOK_AGAIN }));
            tokio::pin!(pause);
            loop {
                let due = async {
                    match haul.next {
                        Some(due) => self.clock.sleep_until(due).await,
                        None => std::future::pending().await,
                    }
                };
                let heard = async {
                    match &mut subscription {
                        Some(subscription) => subscription.next().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = &mut pause => break,
                    () = due => break,
                    heard = heard => match heard {
                        Some(due) => haul.next = Some(haul.next.map_or(due, |next| next.min(due))),
                        None => {
                            subscription = None;
                            break;
                        }
                    },
                }
            }
        }
    }
}
