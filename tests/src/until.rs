//! Waiting for what a test cannot be told of.

use std::panic::Location;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

/// What has not come after this never will, on the slowest machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Between two looks at what costs nothing to look at.
const LOOK: Duration = Duration::from_millis(1);

/// Ends a test that looks for something again and again, and does not find it.
pub struct Patience {
    what: &'static str,
    place: &'static Location<'static>,
    started: Instant,
    pause: Duration,
}

impl Patience {
    /// Of somebody who looks for `what` each `pause`.
    #[track_caller]
    pub fn new(what: &'static str, pause: Duration) -> Self {
        Self { what, place: Location::caller(), started: Instant::now(), pause }
    }

    /// Returns when it is time to look again; panics after two minutes, saying what is not there.
    pub async fn look_again(&self) {
        assert!(self.started.elapsed() < LIMIT, "{}: not within {LIMIT:?}: {}", self.place, self.what);
        sleep(self.pause).await;
    }
}

/// Returns once it `holds`, which is `what`.
#[track_caller]
pub fn until(what: &'static str, mut holds: impl AsyncFnMut() -> bool) -> impl Future<Output = ()> {
    let patience = Patience::new(what, LOOK);
    async move {
        while !holds().await {
            patience.look_again().await;
        }
    }
}

/// Returns once somebody listens on `port` of this machine.
#[track_caller]
pub fn until_listening(port: u16) -> impl Future<Output = ()> {
    until("a listener", async move || TcpStream::connect(("127.0.0.1", port)).await.is_ok())
}
