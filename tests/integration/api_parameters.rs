//! Parameters are given back as they came, byte for byte.

use serde_json::json;
use tests::World;

use crate::api_common::{ADD, Members, POLL, raw_data};

fn hard_cases() -> Vec<String> {
    let mut cases: Vec<String> = [
        "null",
        "true",
        "0",
        "-0",
        "1.0",
        "1E400",
        "1e-7",
        "300000000",
        "130775545883395173",
        "123456789012345678901234567890.000100",
        r#""""#,
        r#""\u0000""#,
        r#""\ud800""#,
        r#""\udc00\ud83d""#,
        r#""\ud83d\ude00""#,
        r#""\/\b\f\n\r\t\"\\""#,
        "\"😀é任务\u{2028}\u{7f}\"",
        "\"\u{feff}\u{fffd}\u{10ffff}\"",
        "[]",
        "{}",
        "[ ]",
        "{\t}",
        "[[],{},[{}]]",
        "{ \"a\" : 1 ,\r\n\t\"b\":[ 1 , 2 ] }",
        r#"{"a":1,"a":2,"a":{"a":1,"a":1}}"#,
        r#"{"z":1,"a":2,"":3," ":4}"#,
        r#"{"\u0061":1,"a":2}"#,
        r#"{"id":130775545883395173,"n":300000000,"a":[],"o":{},"f":1.0}"#,
        r#""{\"a\":\"\\\"\"}""#,
        r#"{"$serde_json::private::RawValue":"x"}"#,
        r#"{"$serde_json::private::Number":"1"}"#,
    ]
    .map(str::to_owned)
    .into();
    cases.push("[".repeat(10_000) + &"]".repeat(10_000));
    cases.push(r#"{"a":"#.repeat(40_000) + "1" + &"}".repeat(40_000));
    cases.push("[".repeat(131_072) + &"]".repeat(131_072));
    cases
}

fn parameters(task: &Members) -> &str {
    task["parameters"].get()
}

#[tokio::test]
async fn parameters_come_back_byte_for_byte_through_add_poll_nack_poll_and_get() {
    let world = World::new().await;
    for (number, raw) in hard_cases().into_iter().enumerate() {
        let shown: String = raw.chars().take(80).collect();
        let id = format!("p{number}");
        let task = format!("{{\"taskId\":\"{id}\",\"taskType\":\"t\",\"delay\":0,\"parameters\": {raw}\n}}");
        raw_data("add", &world, "POST", ADD, &task).await;
        for attempt in ["1", "2"] {
            let polled = raw_data("poll", &world, "POST", &format!("{POLL}/t/0"), "{}").await;
            let polled: Vec<Members> = serde_json::from_str(polled.get()).expect("an array of objects");
            assert_eq!(polled.len(), 1, "{shown}");
            assert!(parameters(&polled[0]) == raw, "polled: {shown}");
            assert_eq!(polled[0]["attempt"].get(), attempt);
            let nack = format!("{{\"leaseToken\":{},\"delay\":0}}", polled[0]["leaseToken"]);
            raw_data("settle", &world, "POST", &format!("/api/v1/task/nack/{id}"), &nack).await;
        }
        let listed = raw_data("inspect", &world, "GET", "/api/v1/task", "").await;
        let mut listed: Members = serde_json::from_str(listed.get()).expect("an object");
        let listed: Vec<Members> = serde_json::from_str(listed.remove("tasks").expect("tasks").get()).expect("tasks");
        assert!(parameters(&listed[0]) == raw, "listed: {shown}");
        let got = raw_data("inspect", &world, "GET", &format!("/api/v1/task/{id}"), "").await;
        assert!(parameters(&serde_json::from_str(got.get()).expect("an object")) == raw, "read: {shown}");
        let taken = raw_data("poll", &world, "GET", &format!("{POLL}/t/0"), "").await;
        assert!(parameters(&serde_json::from_str(taken.get()).expect("an object")) == raw, "taken: {shown}");
    }
}

#[tokio::test]
async fn parameters_come_back_byte_for_byte_from_an_array_and_after_redis_forgot_them() {
    let world = World::new().await;
    let cases: Vec<String> = hard_cases().into_iter().filter(|raw| raw.len() < 1_000).collect();
    let task = |(number, raw): (usize, &String)| {
        format!("{{\"taskId\":\"p{number}\",\"taskType\":\"t\",\"delay\":0,\"parameters\":{raw}}}")
    };
    let tasks: Vec<String> = cases.iter().enumerate().map(task).collect();
    raw_data("add", &world, "POST", ADD, &format!(" [ {} ] ", tasks.join(" ,\n"))).await;
    world.redis.run("FLUSHALL");
    assert_eq!(world.refresh().await.load.loaded, cases.len() as u64);
    let polled =
        raw_data("poll", &world, "POST", &format!("{POLL}/t/0"), &json!({"max": cases.len()}).to_string()).await;
    let polled: Vec<Members> = serde_json::from_str(polled.get()).expect("an array of objects");
    assert_eq!(polled.len(), cases.len());
    for task in polled {
        let number: usize = task["taskId"].get().trim_matches(['"', 'p']).parse().expect("a number");
        assert_eq!(parameters(&task), cases[number]);
    }
}
