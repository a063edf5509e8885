//! Calls over HTTP, each caller by a connection of its own.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::Mutex;

/// A caller with one connection, which it keeps.
pub struct Caller {
    host: String,
    connection: Mutex<SendRequest<Full<Bytes>>>,
}

impl Caller {
    /// A caller of the runner at `url`.
    pub async fn connect(url: &str) -> Self {
        let host = url.strip_prefix("http://").expect("an http URL").to_owned();
        let stream = TcpStream::connect(&host).await.expect("the runner listens");
        stream.set_nodelay(true).expect("a TCP socket");
        let (sender, connection) = handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        Self { host, connection: Mutex::new(sender) }
    }

    /// `POST /api/v1/task/{path}`, which must succeed; what stands behind `data`.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("/api/v1/task/{path}"), body.to_string()).await
    }

    /// `GET path`, which must succeed; what stands behind `data`.
    pub async fn get(&self, path: &str) -> Value {
        self.call("GET", path, String::new()).await
    }

    async fn call(&self, method: &str, path: &str, body: String) -> Value {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", &self.host)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .expect("a request");
        let mut connection = self.connection.lock().await;
        connection.ready().await.expect("the connection is kept");
        let response = connection.send_request(request).await.expect("the runner answers");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&body));
        let mut envelope: Value = serde_json::from_slice(&body).expect("JSON");
        envelope["data"].take()
    }
}

/// Milliseconds since 1970, with fractions.
pub fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64() * 1_000.0
}
