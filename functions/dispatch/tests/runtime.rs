//! The real binary under the Lambda Runtime API.

use tests::lambda_runtime as runtime;

const NAME: &str = env!("CARGO_PKG_NAME");
const PROGRAM: &str = env!("CARGO_BIN_EXE_dispatch");

#[test]
fn a_missing_variable_is_named() {
    runtime::check_missing_variables(NAME, PROGRAM);
}

#[tokio::test]
async fn every_event_is_answered_with_a_report() {
    runtime::check_tick(NAME, PROGRAM, "started").await;
}

#[tokio::test]
async fn without_a_handler_a_shift_ends_at_once() {
    let stores = runtime::Stores::new().await;
    let mut variables = stores.variables();
    variables.insert("DISPATCH_SHIFT_SECONDS".to_owned(), "240".to_owned());
    let function = runtime::Function::start(NAME, PROGRAM, &variables).await;
    let outcome = function.invoke("{}").await;
    assert!(matches!(outcome, runtime::Outcome::Result(_)), "{outcome:?}");
}
