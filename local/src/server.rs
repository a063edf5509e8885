//! HTTP in, events to the functions, their answers out: what API Gateway does in the cloud.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use punctual_core::api::{Answer, MAX_BODY_BYTES};
use punctual_core::clock::Clock;
use punctual_core::error::Error;
use punctual_core::service::Service;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use crate::body::{self, BodyError};
use crate::event::{Circumstances, event};
use crate::functions::ApiCall;
use crate::key::ApiKey;
use crate::local_calls;
use crate::routes::{Match, Routes};
use crate::ticks::Ticks;

/// A connection on which no request comes is closed after this.
const IDLE: Duration = Duration::from_secs(75);
/// A request's body is there after this.
const BODY_WITHIN: Duration = Duration::from_secs(30);
/// Room for a request's headers.
const HEADER_BYTES: usize = 64 * 1024;
/// What is buffered of a body: a little more than is allowed, for the function itself to refuse.
const BUFFERED_BYTES: usize = MAX_BODY_BYTES + 64 * 1024;
/// Requests that run when the server is told to stop get this long.
const GRACE: Duration = Duration::from_secs(5);
/// The pause after the system gave no connection, as when there are too many.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The one path that needs no key.
const HEALTH: &str = "/health";
/// The function whose calls wait on purpose: for nobody once its caller has gone or the server stops.
const WAITING: &str = "poll";

/// What requests are answered with.
pub struct App {
    /// The service behind the functions.
    pub service: Arc<Service>,
    /// The service's clock.
    pub clock: Clock,
    /// The functions by route, with their names.
    pub routes: Routes<(String, ApiCall)>,
    /// The ticks.
    pub ticks: Ticks,
    /// The key that callers must show.
    pub key: Option<ApiKey>,
    /// Where the server listens.
    pub address: SocketAddr,
    /// Becomes true when the server stops.
    pub stopping: watch::Receiver<bool>,
}

/// Serves until `app.stopping`, then lets running requests finish.
pub async fn serve(listener: TcpListener, app: Arc<App>) {
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let mut stopping = app.stopping.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => serve_connection(stream, client, &app, &graceful, &mut connections),
                Err(error) => {
                    warn!(%error, "a connection was not accepted");
                    sleep(ACCEPT_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = told_to_stop(&mut stopping) => break,
        }
    }
    drop(listener);
    if timeout(GRACE, graceful.shutdown()).await.is_err() {
        warn!("stopped in the middle of a request");
    }
    connections.shutdown().await;
}

async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    // An error means that nobody can say it any more, which says it.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

fn serve_connection(
    stream: TcpStream,
    client: SocketAddr,
    app: &Arc<App>,
    graceful: &GracefulShutdown,
    connections: &mut JoinSet<()>,
) {
    if let Err(error) = stream.set_nodelay(true) {
        debug!(%error, "no TCP_NODELAY");
    }
    let app = app.clone();
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { Ok::<_, Infallible>(answer(&app, client, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let connection = graceful.watch(connection);
    connections.spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "a connection broke");
        }
    });
}

async fn answer(app: &Arc<App>, client: SocketAddr, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    if path != HEALTH && app.key.as_ref().is_some_and(|key| !key.is_shown(&parts.headers)) {
        let mut response = envelope(&refusal(Error::Unauthorized));
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return response;
    }
    if path.starts_with(local_calls::PREFIX) {
        let (status, value) = local_calls::answer(app, &parts, body).await;
        return plain(status, &value);
    }
    let Some(route) = app.routes.find(parts.method.as_str(), path) else {
        return gateway(StatusCode::NOT_FOUND, "Not Found");
    };
    match body::read(body, BUFFERED_BYTES, BODY_WITHIN).await {
        Ok(body) => invoke(app, client, &parts, &body, &route).await,
        Err(BodyError::TooLarge) => {
            close(envelope(&refusal(Error::TooLarge { field: "body", limit_bytes: MAX_BODY_BYTES })))
        }
        Err(BodyError::Slow) => close(gateway(StatusCode::REQUEST_TIMEOUT, "Request Timeout")),
        Err(BodyError::Broken(error)) => {
            debug!(%error, "a request broke off");
            close(gateway(StatusCode::BAD_REQUEST, "Bad Request"))
        }
    }
}

/// Hands the request to its function. As in the cloud the function goes on when its caller has gone, so that no
/// write is left half done; only a poll that waits does not.
async fn invoke(
    app: &Arc<App>,
    client: SocketAddr,
    request: &Parts,
    body: &[u8],
    route: &Match<'_, (String, ApiCall)>,
) -> Response<Full<Bytes>> {
    let (name, call) = route.target;
    let circumstances = Circumstances {
        client,
        server: app.address,
        now: app.clock.now(),
        route_key: route.key,
        parameters: &route.parameters,
    };
    let answer = call(app.service.clone(), event(request, body, &circumstances));
    if name == WAITING {
        let mut stopping = app.stopping.clone();
        return tokio::select! {
            answer = answer => envelope(&answer),
            () = told_to_stop(&mut stopping) => gateway(StatusCode::SERVICE_UNAVAILABLE, "Service Unavailable"),
        };
    }
    match tokio::spawn(answer).await {
        Ok(answer) => envelope(&answer),
        Err(_) => gateway(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"),
    }
}

fn refusal(error: Error) -> Answer {
    Answer::new(&Err(error), RawValue::NULL)
}

/// A function's answer as a response.
fn envelope(answer: &Answer) -> Response<Full<Bytes>> {
    let mut builder = Response::builder().status(answer.status_code);
    for (name, value) in &answer.headers {
        builder = builder.header(*name, value);
    }
    builder
        .body(Full::from(answer.body.clone()))
        .unwrap_or_else(|_| gateway(StatusCode::INTERNAL_SERVER_ERROR, "Internal Server Error"))
}

/// What API Gateway says by itself.
fn gateway(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    plain(status, &json!({"message": message}))
}

fn plain(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The same, as the last response on its connection: what is left of the request is not read.
fn close(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
