//! The Lambda function `recover`: wiring only.

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    punctual_core::lambda::run_tick("recover", recover::handle).await
}
