//! What the examples share: a caller of the service.

use std::time::{SystemTime, UNIX_EPOCH};

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
    #[arg(long, default_value_t = 100)]
    pub minute_ms: u64,
}

/// Calls the service.
pub struct Punctual {
    client: Client,
    url: String,
    /// The runner's `API_KEY`, when it has one.
    key: Option<String>,
}

/// What a call that failed answered, or why there was no answer.
pub type Failure = Box<dyn std::error::Error>;

impl Punctual {
    /// A caller of the service at `url`.
    pub fn at(url: &str) -> Self {
        Self { client: Client::new(), url: url.to_owned(), key: std::env::var("API_KEY").ok() }
    }

    /// `method /api/v1/task/path`; what stands behind `data`, or an error with the service's own words.
    pub async fn call(&self, method: Method, path: &str, body: Value) -> Result<Value, Failure> {
        self.call_raw(method, path, body.to_string()).await
    }

    /// `POST /api/v1/task/path` with a body as it is.
    pub async fn send(&self, path: &str, body: String) -> Result<Value, Failure> {
        self.call_raw(Method::POST, path, body).await
    }

    async fn call_raw(&self, method: Method, path: &str, body: String) -> Result<Value, Failure> {
        let mut request = self.client.request(method, format!("{}/api/v1/task/{path}", self.url));
        if let Some(key) = &self.key {
            request = request.bearer_auth(key);
        }
        let answer = request.body(body).send().await?.text().await?;
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

/// A word for the ids of this run, so that an example can run again: the id of a finished task is kept for a week.
pub fn run_name() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().to_string()
}

/// The Rust in README.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
