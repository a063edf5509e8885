//! Each minute: what will be due soon goes from DynamoDB into Redis.

use punctual_core::config::TickConfig;
use punctual_core::error::Error;
use punctual_core::service::{RefreshReport, Service};

/// Runs one tick; see [`Service::refresh`].
pub async fn handle(service: &Service, tick: &TickConfig) -> Result<RefreshReport, Error> {
    service.refresh(tick).await
}
