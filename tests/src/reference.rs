//! A reference model of one task: what each call answers, and what it makes of the task. Pure, and written from the
//! design alone: it shares no code with the service.
//!
//! The service may do one thing whenever it likes: make a task dead whose last lease has run out. So the model keeps
//! every state that a task may be in, a [`Belief`], and an answer must fit one of them.

/// The look-ahead of Redis, by the default settings.
pub const WINDOW_MS: i64 = 300_000;
/// How long dead tasks are kept.
const DEAD_RETENTION_MS: i64 = 90 * 24 * 60 * 60 * 1_000;

/// What a caller sends, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// Which of the lanes.
    pub lane: usize,
    /// Due after this, in milliseconds.
    pub delay: i64,
    /// The most leases.
    pub max_attempts: u32,
    /// The fixed backoff, in milliseconds.
    pub backoff: i64,
    /// Kept for so long when it is over, in milliseconds.
    pub retention: i64,
    /// What the handler does, where one runs it.
    pub act: Act,
}

/// What a handler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Succeeds.
    Succeed,
    /// Fails, to be tried again by the backoff.
    Retry,
    /// Fails, to be tried again after so many milliseconds.
    Later(i64),
    /// Fails for good.
    GiveUp,
}

/// Where a task stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Never added, or past its retention.
    Unknown,
    /// Waits.
    Scheduled,
    /// Held until this moment.
    Leased(i64),
    /// Done.
    Succeeded,
    /// Called off.
    Cancelled,
    /// Failed for good.
    Dead,
}

/// One task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Where it stands.
    pub phase: Phase,
    /// As it was added.
    pub content: Content,
    /// When it is due.
    pub due: i64,
    /// Leases given.
    pub attempts: u32,
    /// The current or, where a repeat must be known, the last lease.
    token: Option<String>,
    /// When it became final.
    finished: i64,
}

/// Something that somebody does with one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `POST add`.
    Add(Content),
    /// The documented cancel.
    CancelByGet,
    /// `POST cancel` or `DELETE cancel`.
    Cancel,
    /// A documented poll of this lane took it.
    Take(usize),
    /// A poll of this lane leased it.
    Lease {
        /// The lane that was polled.
        lane: usize,
        /// The lease's end.
        until: i64,
        /// The lease's token.
        token: String,
    },
    /// `POST ack`.
    Ack(String),
    /// `POST nack`.
    Nack {
        /// Whose.
        token: String,
        /// Tried again after this; `None`: by the backoff.
        delay: Option<i64>,
        /// Never again.
        permanent: bool,
    },
    /// `POST extend` to this moment.
    Extend(String, i64),
    /// `POST reschedule` to this moment.
    Reschedule(i64),
    /// `POST redrive`.
    Redrive,
    /// `GET`.
    Get,
    /// A dispatcher settles what its handler did; nobody hears whether that counted.
    Run(String),
}

/// What the caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// Added now.
    Created,
    /// Added before, with the same content.
    Same,
    /// Done.
    True,
    /// Not done, and no error.
    False,
    /// The task, with its due time.
    Moved(i64),
    /// The task, to its consumer.
    Given {
        /// Its due time, where it was told.
        due: Option<i64>,
        /// Which attempt.
        attempt: u32,
    },
    /// Not given out: nobody polls for it now.
    NotGiven,
    /// The task as it stands.
    Shown {
        /// Its status.
        status: String,
        /// Its due time.
        due: i64,
        /// Leases given.
        attempts: u32,
        /// The lease's end.
        until: Option<i64>,
    },
    /// An error, by its word.
    Refused(String),
    /// Nobody was told anything.
    Nothing,
}

/// Every state that a task may be in, never none.
pub type Belief = Vec<State>;

impl Said {
    fn fits(&self, said: &Self) -> bool {
        match (self, said) {
            (Said::Given { attempt, .. }, Said::Given { due: None, attempt: said }) => attempt == said,
            _ => self == said,
        }
    }
}

/// A task that was never added.
pub fn unknown() -> Belief {
    vec![State {
        phase: Phase::Unknown,
        content: Content { lane: 0, delay: 0, max_attempts: 1, backoff: 0, retention: 0, act: Act::Succeed },
        due: 0,
        attempts: 0,
        token: None,
        finished: 0,
    }]
}

/// What is to be believed after `op` was done at `now` with this answer; empty: it must not have been.
pub fn after(belief: &[State], op: &Op, said: &Said, now: i64) -> Belief {
    let mut next = Belief::new();
    for state in at(belief, now) {
        let (expected, state) = state.apply(op, now);
        if expected.fits(said) && !next.contains(&state) {
            next.push(state);
        }
    }
    next
}

/// What is to be believed when `op` may have been done at `now`, or not.
pub fn perhaps(belief: &[State], op: &Op, now: i64) -> Belief {
    let mut next = at(belief, now);
    for state in next.clone() {
        let (_, state) = state.apply(op, now);
        if !next.contains(&state) {
            next.push(state);
        }
    }
    next
}

/// What is to be believed after two callers did these things at once, each its own in order.
pub fn after_both(belief: &[State], one: &[(Op, Said)], other: &[(Op, Said)], now: i64) -> Belief {
    let mut reached: Vec<Vec<Belief>> = vec![vec![Belief::new(); other.len() + 1]; one.len() + 1];
    reached[0][0] = belief.to_vec();
    for i in 0..=one.len() {
        for j in 0..=other.len() {
            let here = reached[i][j].clone();
            for (event, i, j) in [(one.get(i), i + 1, j), (other.get(j), i, j + 1)] {
                let Some((op, said)) = event else { continue };
                for state in after(&here, op, said, now) {
                    if !reached[i][j].contains(&state) {
                        reached[i][j].push(state);
                    }
                }
            }
        }
    }
    reached.pop().and_then(|mut last| last.pop()).unwrap_or_default()
}

/// What is to be believed at `now`: a task whose last lease has run out may be dead by then.
pub fn at(belief: &[State], now: i64) -> Belief {
    let mut all = belief.to_vec();
    for state in belief {
        if state.is_exhausted(now) {
            let dead = State { phase: Phase::Dead, token: None, finished: now, ..state.clone() };
            if !all.contains(&dead) {
                all.push(dead);
            }
        }
    }
    all
}

impl State {
    /// Whether a poll of `lane` may be given it.
    pub fn is_eligible(&self, lane: usize, now: i64) -> bool {
        let free = match self.phase {
            Phase::Scheduled => true,
            Phase::Leased(until) => until <= now,
            _ => false,
        };
        free && self.content.lane == lane && self.due <= now && self.attempts < self.content.max_attempts
    }

    /// Whether it waits for nobody any more.
    pub fn is_over(&self) -> bool {
        !matches!(self.phase, Phase::Scheduled | Phase::Leased(_))
    }

    fn is_exhausted(&self, now: i64) -> bool {
        matches!(self.phase, Phase::Leased(until) if until <= now) && self.attempts >= self.content.max_attempts
    }

    /// Retention is kept in whole seconds, each rounded up.
    fn is_forgotten(&self, now: i64) -> bool {
        let kept = match self.phase {
            Phase::Unknown => return true,
            Phase::Scheduled | Phase::Leased(_) => return false,
            Phase::Dead => DEAD_RETENTION_MS,
            Phase::Succeeded | Phase::Cancelled => self.content.retention,
        };
        let up = |ms: i64| (ms + 999).div_euclid(1_000);
        up(self.finished) + up(kept) <= now.div_euclid(1_000)
    }

    fn word(&self) -> &'static str {
        match self.phase {
            Phase::Unknown => "unknown",
            Phase::Scheduled => "scheduled",
            Phase::Leased(_) => "leased",
            Phase::Succeeded => "succeeded",
            Phase::Cancelled => "cancelled",
            Phase::Dead => "dead",
        }
    }

    fn apply(&self, op: &Op, now: i64) -> (Said, State) {
        let refused = |word: &str| (Said::Refused(word.to_owned()), self.clone());
        let held_by = |token: &String| matches!(self.phase, Phase::Leased(_)) && self.token.as_ref() == Some(token);
        if self.is_forgotten(now) {
            let said = match op {
                Op::Add(content) => return (Said::Created, State::new(content, now)),
                Op::CancelByGet => Said::False,
                Op::Take(_) | Op::Lease { .. } => Said::NotGiven,
                Op::Run(_) => Said::Nothing,
                _ => return refused("not_found"),
            };
            return (said, self.clone());
        }
        match op {
            Op::Add(content) if self.phase == Phase::Cancelled => (Said::Created, State::new(content, now)),
            Op::Add(content) if self.content == *content => (Said::Same, self.clone()),
            Op::Add(_) => refused("task_exists"),
            Op::Cancel | Op::CancelByGet => match self.phase {
                Phase::Scheduled | Phase::Leased(_) => (Said::True, self.over(Phase::Cancelled, None, now)),
                Phase::Cancelled => (Said::True, self.clone()),
                _ if *op == Op::CancelByGet => (Said::False, self.clone()),
                _ => refused("task_finished"),
            },
            Op::Take(lane) if self.is_eligible(*lane, now) => {
                let taken = State { attempts: self.attempts + 1, ..self.clone() };
                (taken.given(), taken.over(Phase::Succeeded, None, now))
            }
            Op::Lease { lane, until, token } if self.is_eligible(*lane, now) => {
                let leased = State {
                    phase: Phase::Leased(*until),
                    attempts: self.attempts + 1,
                    token: Some(token.clone()),
                    ..self.clone()
                };
                (leased.given(), leased)
            }
            Op::Take(_) | Op::Lease { .. } => (Said::NotGiven, self.clone()),
            Op::Ack(token) => match self.phase {
                Phase::Succeeded if self.token.as_ref() == Some(token) => (Said::True, self.clone()),
                _ if held_by(token) => (Said::True, self.over(Phase::Succeeded, Some(token), now)),
                _ => refused("lease_lost"),
            },
            Op::Nack { token, delay, permanent } => match self.phase {
                Phase::Scheduled | Phase::Dead if self.token.as_ref() == Some(token) => (Said::True, self.clone()),
                _ if held_by(token) => (Said::True, self.failed(token, *delay, *permanent, now)),
                _ => refused("lease_lost"),
            },
            Op::Extend(token, until) if held_by(token) => {
                (Said::True, State { phase: Phase::Leased(*until), ..self.clone() })
            }
            Op::Extend(..) => refused("lease_lost"),
            Op::Reschedule(due) if self.phase == Phase::Scheduled => {
                (Said::Moved(*due), State { due: *due, token: None, ..self.clone() })
            }
            Op::Redrive if self.phase == Phase::Dead => {
                let again = State { phase: Phase::Scheduled, due: now, attempts: 0, token: None, ..self.clone() };
                (Said::Moved(now), again)
            }
            Op::Reschedule(_) | Op::Redrive => refused("wrong_state"),
            Op::Get => {
                let until = match self.phase {
                    Phase::Leased(until) => Some(until),
                    _ => None,
                };
                let status = self.word().to_owned();
                (Said::Shown { status, due: self.due, attempts: self.attempts, until }, self.clone())
            }
            Op::Run(token) if held_by(token) => {
                let next = match self.content.act {
                    Act::Succeed => self.over(Phase::Succeeded, Some(token), now),
                    Act::Retry => self.failed(token, None, false, now),
                    Act::Later(delay) => self.failed(token, Some(delay), false, now),
                    Act::GiveUp => self.failed(token, None, true, now),
                };
                (Said::Nothing, next)
            }
            Op::Run(_) => (Said::Nothing, self.clone()),
        }
    }

    fn new(content: &Content, now: i64) -> Self {
        Self {
            phase: Phase::Scheduled,
            content: content.clone(),
            due: now + content.delay,
            attempts: 0,
            token: None,
            finished: 0,
        }
    }

    fn over(&self, phase: Phase, token: Option<&String>, now: i64) -> Self {
        Self { phase, token: token.cloned(), finished: now, ..self.clone() }
    }

    fn failed(&self, token: &String, delay: Option<i64>, permanent: bool, now: i64) -> Self {
        if permanent || self.attempts >= self.content.max_attempts {
            return self.over(Phase::Dead, Some(token), now);
        }
        let due = now + delay.unwrap_or(self.content.backoff);
        Self { phase: Phase::Scheduled, due, ..self.clone() }
    }

    fn given(&self) -> Said {
        Said::Given { due: Some(self.due), attempt: self.attempts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: Content =
        Content { lane: 0, delay: 10, max_attempts: 1, backoff: 5, retention: 1_000, act: Act::Succeed };

    fn lease(token: &str) -> Op {
        Op::Lease { lane: 0, until: 40, token: token.to_owned() }
    }

    #[test]
    fn of_two_polls_at_once_only_one_may_be_given_the_task() {
        let added = after(&unknown(), &Op::Add(CONTENT), &Said::Created, 0);
        let given = Said::Given { due: Some(10), attempt: 1 };
        assert_eq!(after(&added, &lease("a"), &given, 9), []);
        let one = [(lease("a"), given.clone())];
        assert_eq!(after_both(&added, &one, &[], 10).len(), 1);
        assert_eq!(after_both(&added, &one, &[(lease("b"), given)], 10), []);
    }

    #[test]
    fn a_task_whose_last_lease_ran_out_may_be_dead_until_an_answer_tells() {
        let added = after(&unknown(), &Op::Add(CONTENT), &Said::Created, 0);
        let leased = after(&added, &lease("a"), &Said::Given { due: Some(10), attempt: 1 }, 10);
        assert_eq!((at(&leased, 39).len(), at(&leased, 40).len()), (1, 2));
        let ack = Op::Ack("a".to_owned());
        for said in [Said::True, Said::Refused("lease_lost".to_owned())] {
            assert_eq!(after(&leased, &ack, &said, 40).len(), 1, "{said:?}");
        }
    }
}
