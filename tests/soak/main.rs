//! What `make test-soak` runs for `PUNCTUAL_SOAK_SECONDS`: the tests of the promises, on and on.

#[path = "../integration/crowd.rs"]
mod crowd;
#[path = "../integration/faults.rs"]
mod faults;
#[path = "../integration/model/mod.rs"]
mod model;

use std::time::{Duration, Instant};

use proptest::test_runner::RngSeed;

/// How long to go on.
fn soak_time() -> Duration {
    let seconds = std::env::var("PUNCTUAL_SOAK_SECONDS").expect("PUNCTUAL_SOAK_SECONDS says how long to soak");
    Duration::from_secs(seconds.parse().expect("PUNCTUAL_SOAK_SECONDS is a number"))
}

#[test]
fn soak_random_histories() {
    let end = Instant::now() + soak_time();
    let mut histories = 0;
    while Instant::now() < end {
        model::run_histories(50, RngSeed::Random);
        histories += 50;
        println!("{histories} histories so far");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn soak_crowds() {
    let end = Instant::now() + soak_time();
    while Instant::now() < end {
        crowd::crowd(20_000, 1).await;
        crowd::crowd(20_000, 50).await;
    }
}
