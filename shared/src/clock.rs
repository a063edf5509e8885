//! The one source of "now". Everything that needs the time is given a [`Clock`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_timer::Delay;
use tokio::sync::watch;

use crate::time::Timestamp;

/// The service's clock: the machine's, or one that moves only when it is told to.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's wall clock.
    System,
    /// A clock that stands still until [`ManualClock::advance`] moves it.
    Manual(ManualClock),
}

impl Clock {
    /// The moment that this clock shows.
    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::from_ms(i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)),
            Clock::Manual(clock) => *clock.now.borrow(),
        }
    }

    /// Returns once this clock shows `moment` or later. May be dropped at any time.
    pub async fn sleep_until(&self, moment: Timestamp) {
        match self {
            Clock::System => {
                // Tokio's timers count in whole milliseconds and round up, more than once.
                while let Some(left) = until(moment) {
                    Delay::new(left).await;
                }
            }
            Clock::Manual(clock) => {
                let mut now = clock.now.subscribe();
                // An error means that the clock is gone, and with it everyone who could wait.
                let _ = now.wait_for(|now| *now >= moment).await;
            }
        }
    }
}

fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// How long the machine's clock has to go until it shows `moment`; `None` when it does.
fn until(moment: Timestamp) -> Option<Duration> {
    let moment = Duration::from_millis(u64::try_from(moment.as_ms()).unwrap_or(0));
    moment.checked_sub(since_epoch()).filter(|left| !left.is_zero())
}

/// A clock for tests, ours and those of the people who use the runner.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: watch::Sender<Timestamp>,
}

impl ManualClock {
    /// A clock that stands at `start`.
    pub fn new(start: Timestamp) -> Self {
        Self { now: watch::Sender::new(start) }
    }

    /// Moves the clock forward by `ms` milliseconds, wakes every sleeper whose moment has come,
    /// and returns the new time.
    pub fn advance(&self, ms: u32) -> Timestamp {
        self.now.send_modify(|now| *now = now.plus_ms(i64::from(ms)));
        *self.now.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_at_its_moment_and_not_before() {
        let manual = ManualClock::new(Timestamp::from_ms(1_000));
        let clock = Clock::Manual(manual.clone());
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(Timestamp::from_ms(1_500)).await }
        });
        manual.advance(499);
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        manual.advance(1);
        sleeper.await.expect("the sleeper ends");
        assert_eq!(clock.now().as_ms(), 1_500);
    }

    #[tokio::test]
    async fn a_sleeper_on_the_machine_s_clock_never_wakes_before_its_moment() {
        let clock = Clock::System;
        for ms in [-5, 0, 1, 2, 3, 5, 8] {
            let moment = clock.now().plus_ms(ms);
            clock.sleep_until(moment).await;
            assert!(clock.now() >= moment, "{ms}");
        }
    }
}
