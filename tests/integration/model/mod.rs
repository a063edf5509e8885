//! Random histories of the service on real stores, each answer held against [`tests::reference`].
//!
//! A failing history is shrunk, printed, and its seed kept in `proptest-regressions/model.txt`, from where it is run
//! again before any new one. `PROPTEST_CASES` says how many histories each test runs.

mod call;
mod end;
mod handled;
mod history;
mod run;

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use proptest::test_runner::{Config, FileFailurePersistence, RngSeed, TestCaseError, TestRunner};
use punctual_core::config::DispatchConfig;
use tests::World;

use history::histories;

pub use call::{Done, Step};
pub use history::{Action, Call};
pub use run::Run;

/// Histories that each of the tests runs.
const HISTORIES: u32 = 125;
/// Tasks of one history.
const TASKS: usize = 5;
/// Two priorities of one type, and one handler's part of the first.
const LANES: usize = 3;
const HANDLED: usize = 2;
const PASS: DispatchConfig = DispatchConfig { shift: Duration::ZERO, concurrency: 8 };
/// Longer than any lease or delay of a history.
const LONG_MS: u32 = 4_500_000;
/// The longest lease of a history: after that Redis has no stale one.
const LONGEST_LEASE_MS: i64 = 400_000;

/// Runs histories, many in one world.
struct Arena {
    runtime: tokio::runtime::Runtime,
    world: Option<World>,
    histories: u64,
}

impl Arena {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { runtime: runtime.expect("a runtime"), world: None, histories: 0 }
    }

    fn run(&mut self, history: &[Action]) -> Result<(), String> {
        self.histories += 1;
        let name = format!("h{}", self.histories);
        let world = self.world.take();
        let (result, world) = self.runtime.block_on(async {
            let mut world = match world {
                Some(world) => world,
                None => World::new().await,
            };
            let mut run = Run::new(&mut world, name);
            let work = async {
                for action in history {
                    run.act(action).await?;
                }
                run.finish().await
            };
            let result = AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
                let message = panic.downcast_ref::<String>().cloned();
                Err(message.unwrap_or_else(|| "a panic".to_owned()))
            });
            let result = result.map_err(|wrong| format!("{wrong}\n{}", run.log.join("\n")));
            (result, world)
        });
        // What a failure leaves must not disturb the next.
        self.world = result.is_ok().then_some(world);
        result
    }
}

/// Runs `histories` of them by `seed`, and first those that failed before. Another seed is a soak's to try.
pub fn run_histories(histories: u32, seed: RngSeed) {
    let arena = std::cell::RefCell::new(Arena::new());
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/proptest-regressions/model.txt");
    let config = Config {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(histories),
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(file))),
        max_shrink_iters: 300,
        rng_seed: seed,
        ..Config::default()
    };
    let result = TestRunner::new(config)
        .run(&self::histories(), |history| arena.borrow_mut().run(&history).map_err(TestCaseError::fail));
    println!("{} histories", arena.borrow().histories);
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn every_answer_of_random_histories_is_one_that_the_model_allows_1_of_4() {
    run_histories(HISTORIES, RngSeed::Fixed(1));
}

#[test]
fn every_answer_of_random_histories_is_one_that_the_model_allows_2_of_4() {
    run_histories(HISTORIES, RngSeed::Fixed(2));
}

#[test]
fn every_answer_of_random_histories_is_one_that_the_model_allows_3_of_4() {
    run_histories(HISTORIES, RngSeed::Fixed(3));
}

#[test]
fn every_answer_of_random_histories_is_one_that_the_model_allows_4_of_4() {
    run_histories(HISTORIES, RngSeed::Fixed(4));
}
