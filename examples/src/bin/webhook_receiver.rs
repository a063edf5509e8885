//! A receiver of webhooks that believes only what is signed. It ends after so many as it is told.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use clap::Parser;
use examples::Failure;
use standardwebhooks::Webhook;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Parser)]
struct Arguments {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:9000")]
    listen: String,
    /// Webhooks after which it ends.
    #[arg(long, default_value_t = 1)]
    count: usize,
}

#[derive(Clone)]
struct Receiver {
    webhook: Arc<Webhook>,
    /// The tasks whose effect has happened. A real receiver keeps them where it keeps the effect.
    done: Arc<Mutex<HashSet<String>>>,
    arrived: UnboundedSender<()>,
}

/// 2xx: done. Another 4xx than 408, 425 and 429: never again. Anything else: tried again.
async fn receive(State(receiver): State<Receiver>, headers: HeaderMap, body: String) -> StatusCode {
    // The bytes as they came are what is signed, so it is checked before anything reads the JSON.
    if let Err(error) = receiver.webhook.verify(body.as_bytes(), &headers) {
        println!("refused: {error}");
        return StatusCode::UNAUTHORIZED;
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (id, attempt) = (text("webhook-id"), text("webhook-attempt"));
    // The id is the same on every attempt: one whose answer was lost comes again, and must not work again.
    if receiver.done.lock().is_ok_and(|mut done| done.insert(id.to_owned())) {
        println!("{id}, attempt {attempt}, signature verified: {body}");
    }
    // Only after the last webhook does nobody listen.
    let _ = receiver.arrived.send(());
    StatusCode::NO_CONTENT
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let secret =
        std::env::var("WEBHOOK_SECRET").map_err(|_| "WEBHOOK_SECRET must be the one that the service signs with")?;
    let (arrived, mut arrivals) = unbounded_channel();
    let receiver = Receiver { webhook: Arc::new(Webhook::new(&secret)?), done: Arc::default(), arrived };
    let listener = TcpListener::bind(&arguments.listen).await?;
    println!("listening on {}", listener.local_addr()?);
    let enough = async move {
        for _ in 0..arguments.count {
            arrivals.recv().await;
        }
    };
    let routes = Router::new().route("/hook", post(receive)).with_state(receiver);
    axum::serve(listener, routes).with_graceful_shutdown(enough).await?;
    Ok(())
}
