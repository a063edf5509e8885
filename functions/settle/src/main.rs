//! The Lambda function `settle`: wiring only.

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    punctual_core::lambda::run_api(settle::handle).await
}
