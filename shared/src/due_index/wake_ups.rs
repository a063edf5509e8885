//! Tells waiting polls that something became due sooner than they knew, by Redis's publish and subscribe.
//!
//! A hint and no more: a poll that hears nothing looks again by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use redis::aio::PubSubSink;
use redis::{Client, RedisResult, Value};
use tokio::sync::{broadcast, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tracing::debug;

use super::link::REST_AFTER_FAILURE;
use crate::time::Timestamp;

/// Opening the connection and confirming a subscription may take this long.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_millis(1_000);
/// A connection that says nothing for so long is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(10);
/// Channels that are looked through for those that nobody listens to, at first; then at each doubling.
const FEW_CHANNELS: usize = 64;
/// Hints that a slow listener may fall behind; it then looks at once.
const BACKLOG: usize = 16;

type Listeners = HashMap<String, broadcast::Sender<Timestamp>>;

/// Subscribes to wake-ups, over one connection for the whole process, opened when first needed.
pub struct WakeUps {
    /// Any node of a cluster: it passes every message on to all.
    clients: Vec<Client>,
    requests: Mutex<Option<mpsc::UnboundedSender<Request>>>,
    rest: Arc<Rest>,
}

/// Until when nobody knocks, so that waiting polls, however many, do not trample a Redis that comes back.
#[derive(Default)]
struct Rest(Mutex<Option<Instant>>);

impl Rest {
    fn begin(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + REST_AFTER_FAILURE);
    }

    fn lasts(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| Instant::now() < until)
    }
}

struct Request {
    channel: String,
    confirmed: oneshot::Sender<broadcast::Receiver<Timestamp>>,
}

/// A confirmed subscription: whatever is added after it was made is heard.
pub struct Subscription(broadcast::Receiver<Timestamp>);

impl Subscription {
    /// The due time of something new; `None` when the connection is lost.
    pub async fn next(&mut self) -> Option<Timestamp> {
        match self.0.recv().await {
            Ok(due) => Some(due),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Timestamp::from_ms(0)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl WakeUps {
    /// Wake-ups through the Redis at `urls`. Connects to nothing yet.
    pub(super) fn new(urls: &[String]) -> RedisResult<Self> {
        Ok(Self {
            clients: urls.iter().map(|url| Client::open(url.as_str())).collect::<RedisResult<_>>()?,
            requests: Mutex::default(),
            rest: Arc::default(),
        })
    }

    /// Subscribes to `channel`; `None` when Redis cannot be used now.
    pub async fn subscribe(&self, channel: String) -> Option<Subscription> {
        if self.rest.lasts() {
            return None;
        }
        let (confirmed, confirmation) = oneshot::channel();
        self.request(Request { channel, confirmed });
        let receiver = timeout(SUBSCRIBE_TIMEOUT, confirmation).await.ok()?.ok()?;
        Some(Subscription(receiver))
    }

    /// Hands a request to the listener, and starts one where none runs.
    fn request(&self, request: Request) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let unsent = match requests.as_ref() {
            Some(sender) => match sender.send(request) {
                Ok(()) => return,
                Err(returned) => returned.0,
            },
            None => request,
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        // The receiver is still here, so this cannot fail.
        let _ = sender.send(unsent);
        *requests = Some(sender);
        tokio::spawn(listen(self.clients.clone(), receiver, self.rest.clone()));
    }
}

/// Serves one connection until it breaks. Dropping the listeners tells every subscription.
async fn listen(clients: Vec<Client>, mut requests: mpsc::UnboundedReceiver<Request>, rest: Arc<Rest>) {
    let mut opened = None;
    for client in clients {
        if let Ok(Ok(pubsub)) = timeout(SUBSCRIBE_TIMEOUT, client.get_async_pubsub()).await {
            opened = Some(pubsub);
            break;
        }
    }
    let Some(pubsub) = opened else {
        rest.begin();
        return;
    };
    let (mut sink, mut messages) = pubsub.split();
    let mut listeners = Listeners::new();
    let mut many = FEW_CHANNELS;
    loop {
        let lives = tokio::select! {
            request = requests.recv() => {
                let Some(request) = request else { return };
                let mut lives = in_time(subscribe(&mut sink, &mut listeners, request)).await;
                if listeners.len() > many {
                    let unheard: Vec<String> = listeners
                        .extract_if(|_, listener| listener.receiver_count() == 0)
                        .map(|(channel, _)| channel)
                        .collect();
                    lives = lives && (unheard.is_empty() || in_time(sink.unsubscribe(&unheard)).await);
                    many = FEW_CHANNELS.max(2 * listeners.len());
                }
                lives
            }
            message = messages.next() => {
                let Some(message) = message else { return };
                let due = message.get_payload::<i64>().map_or(Timestamp::from_ms(0), Timestamp::from_ms);
                let channel = message.get_channel_name();
                let heard = listeners.get(channel).is_some_and(|listener| listener.send(due).is_ok());
                if !heard {
                    listeners.remove(channel);
                }
                heard || in_time(sink.unsubscribe(channel)).await
            }
            // A host that vanished tells nobody.
            () = tokio::time::sleep(QUIET) => in_time(sink.ping::<Value>()).await,
        };
        if !lives {
            debug!("lost the connection for wake-ups");
            return;
        }
    }
}

/// Whether Redis confirms in time.
async fn in_time<T>(confirmation: impl Future<Output = RedisResult<T>>) -> bool {
    matches!(timeout(SUBSCRIBE_TIMEOUT, confirmation).await, Ok(Ok(_)))
}

async fn subscribe(sink: &mut PubSubSink, listeners: &mut Listeners, request: Request) -> RedisResult<()> {
    let receiver = match listeners.get(&request.channel) {
        Some(listener) => listener.subscribe(),
        None => {
            sink.subscribe(&request.channel).await?;
            let (listener, receiver) = broadcast::channel(BACKLOG);
            listeners.insert(request.channel, listener);
            receiver
        }
    };
    // An error means that the poll has stopped waiting.
    let _ = request.confirmed.send(receiver);
    Ok(())
}
