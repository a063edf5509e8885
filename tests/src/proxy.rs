//! A TCP proxy in front of a store that fails as it is told to.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How a [`Proxy`] fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not at all.
    None,
    /// It takes connections and bytes and passes nothing on.
    Silent,
    /// It closes every connection at once.
    Refusing,
    /// It holds each answer back for so long.
    Slow(Duration),
}

/// A proxy on a port of its own. It ends with the test's process.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: String,
    fault: watch::Sender<Fault>,
    to_lose: AtomicUsize,
    /// Requests that have this text are refused, so many times.
    to_refuse: Mutex<(String, usize)>,
}

impl Proxy {
    /// A proxy in front of `target`, a URL or `host:port`.
    pub async fn before(target: &str) -> Self {
        let target = target.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            target,
            fault: watch::Sender::new(Fault::None),
            to_lose: AtomicUsize::new(0),
            to_refuse: Mutex::new((String::new(), 0)),
        });
        tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(serve(client, shared.clone()));
                }
            }
        });
        Self { address, shared }
    }

    /// The proxy's own address as an HTTP URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Fails like this from now on.
    pub fn set(&self, fault: Fault) {
        self.shared.fault.send_replace(fault);
    }

    /// Passes the next `count` requests on, but closes the connection in place of the answers.
    pub fn lose_answers(&self, count: usize) {
        self.shared.to_lose.store(count, Ordering::SeqCst);
    }

    /// Closes the connection in place of passing on the next `count` requests that have `text`.
    pub fn refuse_requests(&self, text: &str, count: usize) {
        *self.shared.to_refuse.lock().expect("no panic") = (text.to_owned(), count);
    }

    /// How many answers are still to be lost.
    pub fn answers_to_lose(&self) -> usize {
        self.shared.to_lose.load(Ordering::SeqCst)
    }

    /// How many requests are still to be refused.
    pub fn requests_to_refuse(&self) -> usize {
        self.shared.to_refuse.lock().expect("no panic").1
    }
}

impl Shared {
    fn refuses(&self, request: &[u8]) -> bool {
        let (text, left) = &mut *self.to_refuse.lock().expect("no panic");
        let found = *left > 0 && request.windows(text.len()).any(|part| part == text.as_bytes());
        *left -= usize::from(found);
        found
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut fault = shared.fault.subscribe();
    if *fault.borrow() == Fault::Refusing {
        return;
    }
    let Ok(server) = TcpStream::connect(&shared.target).await else { return };
    let ((client_in, client_out), (server_in, server_out)) = (client.into_split(), server.into_split());
    // Whichever ends first takes the whole connection with it.
    tokio::select! {
        () = pass_on(client_in, server_out, &shared, false) => {}
        () = pass_on(server_in, client_out, &shared, true) => {}
        _ = fault.wait_for(|fault| *fault == Fault::Refusing) => {}
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared, answers: bool) {
    let mut fault = shared.fault.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let Ok(now) = fault.wait_for(|fault| *fault != Fault::Silent).await.map(|fault| *fault) else { return };
        if answers {
            if let Fault::Slow(delay) = now {
                tokio::time::sleep(delay).await;
            }
            let lost = shared.to_lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
            if lost.is_ok() {
                return;
            }
        }
        if !answers && shared.refuses(&buffer[..length]) {
            return;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
