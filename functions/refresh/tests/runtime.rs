//! The real binary under the Lambda Runtime API.

use tests::lambda_runtime as runtime;

const NAME: &str = env!("CARGO_PKG_NAME");
const PROGRAM: &str = env!("CARGO_BIN_EXE_refresh");

#[test]
fn a_missing_variable_is_named() {
    runtime::check_missing_variables(NAME, PROGRAM);
}

#[tokio::test]
async fn every_event_is_answered_with_a_report() {
    runtime::check_tick(NAME, PROGRAM, "promoted").await;
}

#[tokio::test]
async fn without_dynamodb_it_fails_and_lives_on() {
    runtime::check_tick_without_dynamodb(NAME, PROGRAM).await;
}
