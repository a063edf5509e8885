//! What must hold when a history is over.

use tests::ids;

use super::history::{Action, Call};
use super::run::Run;
use super::{LONG_MS, TASKS};

impl Run<'_> {
    /// Everything is caught up, delivered and over; Redis has nothing of it.
    pub async fn finish(&mut self) -> Result<(), String> {
        self.check_listings().await?;
        for _ in 0..8 {
            self.act(&Action::Advance(LONG_MS)).await?;
            for call in [Call::Refresh, Call::Recover, Call::Dispatch] {
                self.act(&Action::One(call)).await?;
            }
            let first = self.tokens.len();
            self.act(&Action::One(Call::PollType { most: TASKS, seconds: 30 })).await?;
            let polled = self.tokens.len() - first;
            if polled > 0 {
                self.act(&Action::One(Call::Ack((0..polled).collect()))).await?;
            }
            for task in self.sent() {
                self.act(&Action::One(Call::Get(task))).await?;
            }
            if self.beliefs.iter().all(|belief| belief.iter().all(|state| state.is_over())) {
                break;
            }
        }
        if let Some(task) = self.beliefs.iter().position(|belief| !belief.iter().all(|state| state.is_over())) {
            return Err(format!("task {task} never ends: {:?}", self.beliefs[task]));
        }
        if !self.thorough && self.left_in_redis().is_empty() {
            return Ok(());
        }
        // What is left in Redis of tasks that are over goes by the next poll.
        for call in [Call::Poll { lane: 0, most: 5, seconds: 1 }, Call::Poll { lane: 1, most: 5, seconds: 1 }] {
            self.act(&Action::One(call)).await?;
        }
        self.act(&Action::One(Call::Dispatch)).await?;
        self.act(&Action::One(Call::Recover)).await?;
        self.check_listings().await?;
        let left = self.left_in_redis();
        if !left.is_empty() {
            return Err(format!("Redis still has {left:?}"));
        }
        Ok(())
    }

    /// Keys and partitions of tasks; with every task over there must be none.
    fn left_in_redis(&self) -> Vec<String> {
        let of_tasks = |key: &String| ["future:", "topic:", "lease:", "lock:"].iter().any(|kind| key.starts_with(kind));
        let mut left: Vec<String> = self.world.redis.keys().into_iter().filter(of_tasks).collect();
        let mut connection = self.world.redis.connection();
        let partitions: Vec<String> =
            redis::cmd("SMEMBERS").arg("partitions").query(&mut connection).expect("SMEMBERS");
        left.extend(partitions);
        left
    }

    /// The listings have each task where it is, in due order.
    async fn check_listings(&mut self) -> Result<(), String> {
        if !self.thorough {
            return Ok(());
        }
        for task in self.sent() {
            self.act(&Action::One(Call::Get(task))).await?;
        }
        for status in ["scheduled", "leased", "dead"] {
            let path = format!("/api/v1/task?status={status}&taskType={}&limit=100", self.name);
            let reply = self.world.get(&path).await;
            let tasks = reply.data()["tasks"].as_array().expect("an array").clone();
            if !tasks.is_sorted_by_key(|task| task["executeTime"].as_i64()) {
                return Err(format!("the {status} ones are not in due order: {tasks:?}"));
            }
            let mut listed = ids(&tasks);
            listed.sort();
            let word = |task: &usize| {
                // A lease that ran out is a lease until somebody looks.
                let shown = status_of(&self.beliefs[*task]);
                shown == status
            };
            let expected: Vec<String> = (0..TASKS).filter(word).map(|task| self.id(task)).collect();
            if listed != expected {
                return Err(format!("listed as {status}: {listed:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }
}

/// The status of a task that has just been read.
fn status_of(belief: &[tests::reference::State]) -> &'static str {
    use tests::reference::Phase;
    match belief.first().map(|state| state.phase) {
        Some(Phase::Scheduled) => "scheduled",
        Some(Phase::Leased(_)) => "leased",
        Some(Phase::Dead) => "dead",
        _ => "",
    }
}
