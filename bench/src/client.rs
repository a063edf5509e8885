//! Calls over HTTP.

use std::time::{SystemTime, UNIX_EPOCH};

use reqwest::Client;
use serde_json::Value;

/// A caller with connections of its own.
#[derive(Clone)]
pub struct Caller {
    client: Client,
    url: String,
}

impl Caller {
    /// A caller of the runner at `url`.
    pub fn new(url: &str) -> Self {
        let client = Client::builder().no_proxy().tcp_nodelay(true).build().expect("an HTTP client");
        Self { client, url: url.to_owned() }
    }

    /// `POST path`, which must succeed; what stands behind `data`.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        let response = self
            .client
            .post(format!("{}/api/v1/task/{path}", self.url))
            .header("content-type", "application/json")
            .body(body.to_string())
            .send()
            .await
            .expect("the runner answers");
        let status = response.status();
        let text = response.text().await.expect("a body");
        assert!(status.is_success(), "{path}: {status} {text}");
        let mut envelope: Value = serde_json::from_str(&text).expect("JSON");
        envelope["data"].take()
    }
}

/// Milliseconds since 1970, with fractions.
pub fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1_000.0
}
