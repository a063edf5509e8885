//! The one source of "now". Everything that needs the time is given a [`Clock`].

use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
            Clock::System => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
                Timestamp::from_ms(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
            }
            Clock::Manual(clock) => *clock.now.borrow(),
        }
    }

    /// Returns once this clock shows `moment` or later. May be dropped at any time.
    pub async fn sleep_until(&self, moment: Timestamp) {
        match self {
            Clock::System => {
                let ms = u64::try_from(moment.ms_since(self.now())).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            Clock::Manual(clock) => {
                let mut now = clock.now.subscribe();
                // An error means that the clock is gone, and with it everyone who could wait.
                let _ = now.wait_for(|now| *now >= moment).await;
            }
        }
    }
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
}
