//! A queue in which callers take turns.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// What waits, one queue for each caller: the next is of the caller that has waited longest for its turn.
#[derive(Debug)]
pub struct Turns<Caller, Job> {
    /// Each caller that has something waiting, once.
    callers: VecDeque<Caller>,
    waiting: HashMap<Caller, VecDeque<Job>>,
}

impl<Caller, Job> Default for Turns<Caller, Job> {
    fn default() -> Self {
        Self { callers: VecDeque::new(), waiting: HashMap::new() }
    }
}

impl<Caller: Copy + Eq + Hash, Job> Turns<Caller, Job> {
    /// Puts `job` behind the others of its caller.
    pub fn add(&mut self, caller: Caller, job: Job) {
        let jobs = self.waiting.entry(caller).or_default();
        if jobs.is_empty() {
            self.callers.push_back(caller);
        }
        jobs.push_back(job);
    }

    /// Takes the first job of the caller whose turn it is.
    pub fn take(&mut self) -> Option<Job> {
        let caller = self.callers.pop_front()?;
        let jobs = self.waiting.get_mut(&caller)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.waiting.remove(&caller);
        } else {
            self.callers.push_back(caller);
        }
        job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_with_one_job_waits_for_one_of_each_other_caller() {
        let mut turns = Turns::default();
        for (caller, job) in [("a", 1), ("a", 2), ("a", 3), ("b", 4), ("b", 5)] {
            turns.add(caller, job);
        }
        assert_eq!(turns.take(), Some(1));
        turns.add("c", 6);
        let rest: Vec<i32> = std::iter::from_fn(|| turns.take()).collect();
        assert_eq!(rest, [4, 2, 6, 5, 3], "b's, a's and then c's turn; each in order");
        assert!(turns.callers.is_empty() && turns.waiting.is_empty(), "nobody is remembered");
    }
}
