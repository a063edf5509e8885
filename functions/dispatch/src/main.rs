//! The Lambda function `dispatch`: wiring only.

#[tokio::main]
async fn main() -> Result<(), lambda_runtime::Error> {
    dispatch::run().await
}
