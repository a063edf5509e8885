//! Each minute: leases that ran out become ready again, or dead.

use punctual_core::config::TickConfig;
use punctual_core::error::Error;
use punctual_core::service::{RecoverReport, Service};

/// Runs one tick; see [`Service::recover`].
pub async fn handle(service: &Service, tick: &TickConfig) -> Result<RecoverReport, Error> {
    service.recover(tick).await
}
