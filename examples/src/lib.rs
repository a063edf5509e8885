//! What the examples share: a caller of the service.

use clap::Parser;
use reqwest::{Client, Method};
use serde_json::Value;

/// Options of every example.
#[derive(Parser)]
pub struct Options {
    /// Where the service listens.
    #[arg(long, default_value = "http://127.0.0.1:3000")]
    pub url: String,
    /// How long a "minute" of the story takes, in milliseconds.
    #[arg(long, default_value_t = 500)]
    pub minute_ms: u64,
}

/// Calls the service.
pub struct Punctual {
    client: Client,
    url: String,
}

/// What a call that failed answered, or why there was no answer.
pub type Failure = Box<dyn std::error::Error>;

impl Punctual {
    /// A caller of the service at `url`.
    pub fn at(url: &str) -> Self {
        Self { client: Client::new(), url: url.to_owned() }
    }

    /// `method /api/v1/task/path`; what stands behind `data`, or an error with the service's own words.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value, Failure> {
        let request = self.client.request(method, format!("{}/api/v1/task/{path}", self.url));
        let answer = request.body(body.to_string()).send().await?.text().await?;
        let mut envelope: Value = serde_json::from_str(&answer)?;
        match envelope["errorMessage"].as_str() {
            Some(message) => Err(message.into()),
            None => Ok(envelope["data"].take()),
        }
    }

    /// `POST /api/v1/task/path`.
    pub async fn post(&self, path: &str, body: Value) -> Result<Value, Failure> {
        self.call(Method::POST, path, body).await
    }
}
