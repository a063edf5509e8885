//! The Lambda function `refresh`: wiring only.

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    punctual_core::lambda::run_tick("refresh", refresh::handle).await
}
