//! The real binary under the Lambda Runtime API.

use tests::lambda_runtime as runtime;

const NAME: &str = env!("CARGO_PKG_NAME");
const PROGRAM: &str = env!("CARGO_BIN_EXE_settle");

#[test]
fn a_missing_variable_is_named() {
    runtime::check_missing_variables(NAME, PROGRAM);
}

#[tokio::test]
async fn every_event_is_answered() {
    runtime::check_api_function(NAME, PROGRAM, "one.json").await;
}

#[tokio::test]
async fn without_dynamodb_the_answer_is_503_in_time() {
    runtime::check_without_dynamodb(NAME, PROGRAM, "one.json").await;
}
