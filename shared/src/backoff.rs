//! How long a task waits between two attempts.

use serde::{Deserialize, Serialize};

/// The longest delay that a backoff may ask for: 366 days, in milliseconds.
pub const MAX_BACKOFF_MS: i64 = 366 * 24 * 60 * 60 * 1000;

/// The most delays that a list may hold.
pub const MAX_BACKOFF_DELAYS: usize = 100;

/// attempt -> delay before the next one. Times in milliseconds; `jitter` is a fraction of the delay, 0 to 1,
/// by which it is randomly shortened or lengthened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", deny_unknown_fields)]
pub enum Backoff {
    /// `initial`, then `factor` times the delay before, never above `max`.
    Exponential {
        #[serde(default = "default_initial")]
        initial: i64,
        #[serde(default = "default_factor")]
        factor: f64,
        #[serde(default = "default_max")]
        max: i64,
        #[serde(default = "default_jitter")]
        jitter: f64,
    },
    /// The same delay each time.
    Fixed {
        delay: i64,
        #[serde(default)]
        jitter: f64,
    },
    /// One delay after another; the last one repeats.
    List {
        delays: Vec<i64>,
        #[serde(default)]
        jitter: f64,
    },
}

fn default_initial() -> i64 {
    1_000
}
fn default_factor() -> f64 {
    2.0
}
fn default_max() -> i64 {
    3_600_000
}
fn default_jitter() -> f64 {
    0.1
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff::Exponential {
            initial: default_initial(),
            factor: default_factor(),
            max: default_max(),
            jitter: default_jitter(),
        }
    }
}

impl Backoff {
    /// The delay in milliseconds after failed attempt number `attempt` (1-based; 0 counts as 1).
    ///
    /// `chance` is a random number from 0 to 1 that places the result within the jitter. The result is
    /// never negative, and never above `max` (exponential) or [`MAX_BACKOFF_MS`].
    pub fn delay_ms(&self, attempt: u32, chance: f64) -> i64 {
        let (delay, ceiling, jitter) = match self {
            Backoff::Exponential { initial, factor, max, jitter } => {
                let exponent = f64::from(attempt.saturating_sub(1));
                // Infinite for large attempts, which `min` turns into `max`; 0 x infinity is NaN,
                // which `min` also turns into `max`, hence the test for an initial 0.
                let grown =
                    if *initial == 0 { 0.0 } else { (*initial as f64 * factor.powf(exponent)).min(*max as f64) };
                (grown, *max, *jitter)
            }
            Backoff::Fixed { delay, jitter } => (*delay as f64, MAX_BACKOFF_MS, *jitter),
            Backoff::List { delays, jitter } => {
                let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
                let delay = delays.get(index).or(delays.last()).copied().unwrap_or(0);
                (delay as f64, MAX_BACKOFF_MS, *jitter)
            }
        };
        let shifted = delay * (1.0 + jitter * (2.0 * chance - 1.0));
        (shifted.round() as i64).clamp(0, ceiling)
    }

    /// What is wrong with this backoff, naming the field, or `Ok`.
    pub fn check(&self) -> Result<(), String> {
        let time = |name: &str, ms: i64| match ms {
            0..=MAX_BACKOFF_MS => Ok(()),
            _ => Err(format!("{name} must be from 0 to {MAX_BACKOFF_MS} ms")),
        };
        let fraction = |jitter: f64| match jitter {
            0.0..=1.0 => Ok(()),
            _ => Err("jitter must be from 0 to 1".to_owned()),
        };
        match self {
            Backoff::Exponential { initial, factor, max, jitter } => {
                time("initial", *initial)?;
                time("max", *max)?;
                if !(1.0..=1_000.0).contains(factor) {
                    return Err("factor must be from 1 to 1000".to_owned());
                }
                fraction(*jitter)
            }
            Backoff::Fixed { delay, jitter } => {
                time("delay", *delay)?;
                fraction(*jitter)
            }
            Backoff::List { delays, jitter } => {
                if delays.is_empty() || delays.len() > MAX_BACKOFF_DELAYS {
                    return Err(format!("delays must hold 1 to {MAX_BACKOFF_DELAYS} delays"));
                }
                delays.iter().try_for_each(|ms| time("delays", *ms))?;
                fraction(*jitter)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIDDLE: f64 = 0.5;

    #[test]
    fn exponential_grows_to_its_cap_and_never_overflows() {
        let backoff = Backoff::default();
        let delays: Vec<i64> = [0, 1, 2, 3, 12, 13, 31, 32, 62, 63, 64, 1_025, u32::MAX]
            .map(|attempt| backoff.delay_ms(attempt, MIDDLE))
            .to_vec();
        assert_eq!(delays[..4], [1_000, 1_000, 2_000, 4_000]);
        assert!(delays.is_sorted());
        assert_eq!(delays.last(), Some(&3_600_000));
    }

    #[test]
    fn the_last_delay_of_a_list_repeats() {
        let backoff = Backoff::List { delays: vec![60_000, 120_000, 240_000], jitter: 0.0 };
        let delays = [1, 2, 3, 4, u32::MAX].map(|attempt| backoff.delay_ms(attempt, 0.9));
        assert_eq!(delays, [60_000, 120_000, 240_000, 240_000, 240_000]);
    }

    proptest! {
        #[test]
        fn a_delay_is_within_its_jitter_and_its_cap(
            initial in 0..=MAX_BACKOFF_MS, factor in 1.0..=1000.0, max in 0..=MAX_BACKOFF_MS,
            jitter in 0.0..=1.0, attempt: u32, chance in 0.0..=1.0,
        ) {
            let backoff = Backoff::Exponential { initial, factor, max, jitter };
            prop_assert_eq!(backoff.check(), Ok(()));
            let delay = backoff.delay_ms(attempt, chance);
            prop_assert!((0..=max).contains(&delay));
            let plain = backoff.delay_ms(attempt, MIDDLE) as f64;
            prop_assert!(delay as f64 >= plain * (1.0 - jitter) - 1.0);
        }
    }
}
