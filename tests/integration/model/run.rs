//! One history as it happens, each answer held against what the model believes.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use punctual_core::service::Service;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use tests::reference::{Belief, Content, Op, Said, WINDOW_MS, after, after_both, at, unknown};
use tests::{Patience, World};

use super::call::{Done, Step, called};
use super::handled::dispatched;
use super::history::{Action, Call};
use super::{LONGEST_LEASE_MS, TASKS};

/// One history under way.
pub struct Run<'a> {
    pub world: &'a mut World,
    pub name: String,
    pub beliefs: Vec<Belief>,
    /// Whether Redis must know the task, so that a poll must give it.
    known: Vec<bool>,
    /// Until then Redis may be wrong about tasks that two callers moved at once.
    pub muddled_until: i64,
    pub tokens: Vec<(usize, String)>,
    sent: Vec<Option<Content>>,
    pub log: Vec<String>,
    /// Whether the listings are looked at too.
    pub thorough: bool,
}

impl<'a> Run<'a> {
    pub fn new(world: &'a mut World, name: String) -> Self {
        Self {
            world,
            name,
            beliefs: vec![unknown(); TASKS],
            known: vec![true; TASKS],
            muddled_until: 0,
            tokens: Vec::new(),
            sent: vec![None; TASKS],
            log: Vec::new(),
            thorough: true,
        }
    }

    /// The tasks that were ever sent.
    pub fn sent(&self) -> Vec<usize> {
        (0..TASKS).filter(|task| self.sent[*task].is_some()).collect()
    }

    pub fn id(&self, task: usize) -> String {
        format!("{}-{task}", self.name)
    }

    pub fn now(&self) -> i64 {
        self.world.now()
    }

    pub fn resolve(&mut self, call: &Call) -> Step {
        let token = |n: usize| match self.tokens.len() {
            0 => (n % TASKS, "nobody's".to_owned()),
            // The latest first.
            length => self.tokens[length - 1 - n % length].clone(),
        };
        match call {
            Call::Add(tasks) => {
                for (task, content) in tasks {
                    self.sent[*task] = Some(content.clone());
                }
                Step::Add(tasks.clone())
            }
            Call::AddAgain(task) => match self.beliefs[*task].first() {
                Some(state) if self.sent[*task].is_some() => Step::Add(vec![(*task, state.content.clone())]),
                _ => Step::Other(Call::Get(*task)),
            },
            Call::Ack(tokens) => Step::Ack(tokens.iter().map(|n| token(*n)).collect()),
            Call::Nack { token: n, delay, permanent } => {
                let (task, token) = token(*n);
                Step::Nack { task, token, delay: *delay, permanent: *permanent }
            }
            Call::Extend { token: n, seconds } => {
                let (task, token) = token(*n);
                Step::Extend { task, token, seconds: *seconds }
            }
            other => Step::Other(other.clone()),
        }
    }

    pub fn perform(&self, service: Arc<Service>, step: Step) -> impl Future<Output = Done> + Send + use<> {
        let (name, now) = (self.name.clone(), self.now());
        let tick = self.world.tick();
        let mut redis = match step {
            Step::Other(Call::FlushAll | Call::ForgetScripts) => Some(self.world.redis.connection()),
            _ => None,
        };
        async move {
            match step {
                Step::Other(Call::Refresh) => {
                    return Done::tick(refresh::handle(&service, &tick).await);
                }
                Step::Other(Call::Recover) => {
                    return Done::tick(recover::handle(&service, &tick).await);
                }
                Step::Other(Call::FlushAll) => {
                    redis::cmd("FLUSHALL").exec(redis.as_mut().expect("a connection")).expect("FLUSHALL");
                }
                Step::Other(Call::ForgetScripts) => {
                    redis::cmd("SCRIPT").arg("FLUSH").exec(redis.as_mut().expect("a connection")).expect("FLUSH");
                }
                Step::Other(Call::Dispatch) => return dispatched(&service, &name).await,
                step => return called(&service, &name, step, now).await,
            }
            Done::tick(Ok(()))
        }
    }

    pub fn forget(&mut self) {
        self.known.fill(false);
    }

    pub async fn act(&mut self, action: &Action) -> Result<(), String> {
        match action {
            Action::One(call) => {
                let step = self.resolve(call);
                self.log.push(format!("{}: {step:?}", self.now()));
                let done = self.perform(self.world.service.clone(), step.clone()).await;
                self.log.extend(done.events.iter().map(|event| format!("    {event:?}")));
                if let Some(failure) = &done.failure {
                    return Err(format!("{step:?} failed: {failure:?}"));
                }
                self.check_completeness(&done)?;
                let pairs: Vec<Vec<(Op, Said)>> = self.by_task(&done);
                for (task, events) in pairs.iter().enumerate() {
                    for (op, said) in events {
                        let before = self.beliefs[task].clone();
                        self.believe(task, std::slice::from_ref(&(op.clone(), said.clone())), &[])?;
                        // Of a repeat Redis is told nothing.
                        if self.beliefs[task] != before {
                            self.learn(task, op, said);
                        }
                    }
                }
                self.note_tokens(&done);
                self.note_tick(call);
            }
            Action::AtOnce(one, other) => {
                let (one, other) = (self.resolve(one), self.resolve(other));
                self.log.push(format!("{}: {one:?} AND {other:?}", self.now()));
                let service = || self.world.service.clone();
                let one = tokio::spawn(self.perform(service(), one));
                let other = tokio::spawn(self.perform(service(), other));
                let (one, other) = (one.await.expect("no panic"), other.await.expect("no panic"));
                self.log.extend(one.events.iter().map(|event| format!("    {event:?}")));
                if let Some(failure) = one.failure.as_ref().or(other.failure.as_ref()) {
                    return Err(format!("a call failed: {failure:?}"));
                }
                self.log.push("  AND".to_owned());
                self.log.extend(other.events.iter().map(|event| format!("    {event:?}")));
                let (by_one, by_other) = (self.by_task(&one), self.by_task(&other));
                for task in 0..TASKS {
                    self.believe(task, &by_one[task], &by_other[task])?;
                }
                self.note_tokens(&one);
                self.note_tokens(&other);
                self.forget();
                self.muddled_until = self.now() + LONGEST_LEASE_MS;
            }
            Action::Advance(ms) => {
                self.world.advance(*ms);
                self.log.push(format!("{}: now", self.now()));
            }
            Action::DeleteHalf(seed) => {
                let mut rng = rand::rngs::StdRng::seed_from_u64(*seed);
                let mut keys = self.world.redis.keys();
                keys.shuffle(&mut rng);
                let half = keys.len().div_ceil(2);
                self.log.push(format!("DEL {:?}", &keys[..half]));
                for key in &keys[..half] {
                    self.world.redis.run(&format!("DEL {key}"));
                }
                self.forget();
            }
            Action::RestartRedis => {
                self.log.push("Redis restarts, empty".to_owned());
                self.world.redis.stop();
                self.world.redis.launch();
                self.forget();
                // The process may let a Redis that has just failed rest for a moment.
                let patience = Patience::new("Redis found again", Duration::from_millis(5));
                while self.world.service.index.ping().await.is_err() {
                    patience.look_again().await;
                }
            }
        }
        Ok(())
    }

    fn by_task(&self, done: &Done) -> Vec<Vec<(Op, Said)>> {
        let mut by_task = vec![Vec::new(); TASKS];
        for (task, op, said) in &done.events {
            by_task[*task].push((op.clone(), said.clone()));
        }
        by_task
    }

    fn believe(&mut self, task: usize, one: &[(Op, Said)], other: &[(Op, Said)]) -> Result<(), String> {
        let now = self.now();
        let next = match (one, other) {
            ([], []) => return Ok(()),
            ([(op, said)], []) => after(&self.beliefs[task], op, said, now),
            // The items of one batch are settled side by side, so their order says nothing.
            _ => orders(one)
                .iter()
                .flat_map(|one| orders(other).into_iter().map(move |other| (one.clone(), other)))
                .flat_map(|(one, other)| after_both(&self.beliefs[task], &one, &other, now))
                .collect(),
        };
        if next.is_empty() {
            let before = at(&self.beliefs[task], now);
            return Err(format!("task {task} at {now}: {one:?} and {other:?} do not fit {before:?}"));
        }
        self.beliefs[task] = next;
        Ok(())
    }

    /// What Redis must have been told by this.
    fn learn(&mut self, task: usize, op: &Op, said: &Said) {
        let told = match (op, said) {
            (Op::Add(_), Said::Created) | (Op::Reschedule(_) | Op::Redrive, Said::Moved(_)) => true,
            (Op::Nack { .. }, Said::True) | (Op::Run(_), _) => true,
            _ => return,
        };
        let latest = self.now() + WINDOW_MS;
        self.known[task] = told && self.beliefs[task].iter().all(|state| state.is_over() || state.due <= latest);
    }

    fn note_tick(&mut self, call: &Call) {
        let up_to = match call {
            Call::FlushAll => return self.forget(),
            Call::Refresh => self.now() + WINDOW_MS,
            Call::Recover => self.now(),
            _ => return,
        };
        if self.now() > self.muddled_until {
            for (known, belief) in self.known.iter_mut().zip(&self.beliefs) {
                *known |= belief.iter().all(|state| state.is_over() || state.due <= up_to);
            }
        }
    }

    pub fn note_tokens(&mut self, done: &Done) {
        for (task, op, said) in &done.events {
            if let (Op::Lease { token, .. }, Said::Given { .. }) = (op, said)
                && !token.starts_with("run")
            {
                self.tokens.push((*task, token.clone()));
            }
        }
    }

    /// A poll gives all that it may give, as far as Redis knows of it, the most urgent first.
    fn check_completeness(&self, done: &Done) -> Result<(), String> {
        let Some((lanes, most)) = &done.polled else { return Ok(()) };
        let now = self.now();
        let given: Vec<usize> = done.events.iter().map(|(task, _, _)| *task).collect();
        let must = |lane: usize| -> Vec<usize> {
            let due = |task: &usize| at(&self.beliefs[*task], now).iter().all(|state| state.is_eligible(lane, now));
            (0..TASKS).filter(|task| self.known[*task] && due(task)).collect()
        };
        let all: Vec<usize> = lanes.iter().flat_map(|lane| must(*lane)).collect();
        let missing: Vec<&usize> = all.iter().filter(|task| !given.contains(task)).collect();
        if given.len() < *most && !missing.is_empty() {
            return Err(format!("{given:?} was given of {most}, but not {missing:?}"));
        }
        if let [urgent, other] = lanes[..] {
            let left = must(urgent).iter().any(|task| !given.contains(task));
            let less_urgent = given.iter().any(|task| self.beliefs[*task].iter().all(|s| s.content.lane == other));
            if left && less_urgent {
                return Err(format!("{given:?} was given before more urgent tasks"));
            }
        }
        Ok(())
    }
}

/// The orders in which the events of one call may have happened.
fn orders(events: &[(Op, Said)]) -> Vec<Vec<(Op, Said)>> {
    let as_told = events.to_vec();
    let reversed: Vec<(Op, Said)> = events.iter().rev().cloned().collect();
    if events.len() < 2 { vec![as_told] } else { vec![as_told, reversed] }
}
