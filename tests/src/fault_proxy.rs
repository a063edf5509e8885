//! A proxy that knows the requests of its store, counts them, and breaks those that it is told to.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Longer than any client waits for an answer.
const PAST_EVERY_LIMIT: Duration = Duration::from_secs(30);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Its connection is closed and it does not reach the store.
    Refuse,
    /// It is applied, and its connection is closed in place of the answer.
    DropAnswer,
    /// It is applied, and the answer comes long after everybody stopped waiting.
    Late,
    /// It does not reach the store, which asks for a pause: throttling, or no memory left.
    Throttle,
    /// It does not reach the store, which is at fault: an internal error, or a replica that takes no writes.
    Internal,
    /// Half of it is passed on, then its connection is closed.
    Cut,
}

impl Break {
    /// All of them.
    pub const ALL: [Break; 6] =
        [Break::Refuse, Break::DropAnswer, Break::Late, Break::Throttle, Break::Internal, Break::Cut];
}

/// The stores that the proxy speaks to.
#[derive(Clone, Debug)]
pub enum Store {
    /// DynamoDB at `host:port`.
    DynamoDb(String),
    /// Redis at this socket.
    Redis(PathBuf),
}

/// Which requests are broken, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// From 0: how many requests go well before.
    pub step: usize,
    /// What happens to the next.
    pub how: Break,
    /// Whether it happens to all that follow too.
    pub on: bool,
}

#[derive(Default)]
struct State {
    /// The requests since [`FaultProxy::arm`], by name.
    seen: Vec<String>,
    plan: Option<Plan>,
}

/// A proxy on a port of its own. It ends with the test's process.
pub struct FaultProxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl FaultProxy {
    /// A proxy in front of `store`.
    pub async fn before(store: Store) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        tokio::spawn({
            let state = state.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let (state, store) = (state.clone(), store.clone());
                    tokio::spawn(async move {
                        // A connection that breaks, breaks.
                        let _ = serve(client, &store, &state).await;
                    });
                }
            }
        });
        Self { address, state }
    }

    /// `host:port` of the proxy itself.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts from 0 again, and breaks by `plan` from now on.
    pub fn arm(&self, plan: Option<Plan>) {
        *self.state.lock().expect("no panic") = State { seen: Vec::new(), plan };
    }

    /// The names of the requests since then.
    pub fn seen(&self) -> Vec<String> {
        self.state.lock().expect("no panic").seen.clone()
    }
}

impl State {
    fn note(&mut self, name: String) -> Option<Break> {
        let step = self.seen.len();
        self.seen.push(name);
        self.plan.filter(|plan| step == plan.step || plan.on && step > plan.step).map(|plan| plan.how)
    }
}

async fn serve(mut client: TcpStream, store: &Store, state: &Mutex<State>) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut server: Box<dyn Stream> = match store {
        Store::DynamoDb(address) => Box::new(TcpStream::connect(address).await?),
        Store::Redis(socket) => Box::new(UnixStream::connect(socket).await?),
    };
    let is_http = matches!(store, Store::DynamoDb(_));
    let length = if is_http { http_length } else { resp_length };
    let (mut requests, mut answers) = (Vec::new(), Vec::new());
    loop {
        let Some(request) = next(&mut client, &mut requests, length).await? else { return Ok(()) };
        let name = if is_http { target_of(&request) } else { command_of(&request) };
        // What a client says of itself as it connects is no step of ours.
        let broken = match name.as_str() {
            "CLIENT" | "HELLO" => None,
            _ => state.lock().expect("no panic").note(name),
        };
        match broken {
            Some(Break::Refuse) => return Ok(()),
            Some(Break::Cut) => {
                server.write_all(&request[..request.len() / 2]).await?;
                return Ok(());
            }
            Some(Break::Throttle) => client.write_all(if is_http { THROTTLED } else { FULL }).await?,
            Some(Break::Internal) => client.write_all(if is_http { INTERNAL } else { READ_ONLY }).await?,
            Some(Break::DropAnswer | Break::Late) | None => {
                server.write_all(&request).await?;
                let Some(answer) = next(&mut server, &mut answers, length).await? else { return Ok(()) };
                match broken {
                    None => {}
                    Some(Break::Late) => {
                        // What the client sent behind it is lost: it does not come true when nobody expects it.
                        tokio::time::sleep(PAST_EVERY_LIMIT).await;
                        return Ok(());
                    }
                    Some(_) => return Ok(()),
                }
                client.write_all(&answer).await?;
            }
        }
    }
}

const THROTTLED: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/x-amz-json-1.0\r\n\
    content-length: 108\r\n\r\n\
    {\"__type\":\"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException\",\"message\":\"slow down..\"}";
const INTERNAL: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/x-amz-json-1.0\r\n\
    content-length: 79\r\n\r\n\
    {\"__type\":\"com.amazonaws.dynamodb.v20120810#InternalServerError\",\"message\":\"x\"}";
const FULL: &[u8] = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n";
const READ_ONLY: &[u8] = b"-READONLY You can't write against a read only replica.\r\n";

/// The next whole message, or `None` at the end.
async fn next(
    from: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    length: fn(&[u8]) -> Option<usize>,
) -> std::io::Result<Option<Vec<u8>>> {
    loop {
        if let Some(length) = length(buffer) {
            return Ok(Some(buffer.drain(..length).collect()));
        }
        if from.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn header<'a>(message: &'a [u8], name: &str) -> Option<&'a str> {
    let head = std::str::from_utf8(&message[..find(message, b"\r\n\r\n")?]).ok()?;
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, v)| v.trim())
}

fn http_length(message: &[u8]) -> Option<usize> {
    let head = find(message, b"\r\n\r\n")? + 4;
    let body: usize = header(message, "content-length").map_or(0, |length| length.parse().expect("a number"));
    assert!(header(message, "transfer-encoding").is_none(), "chunks are not understood");
    (message.len() >= head + body).then_some(head + body)
}

fn target_of(request: &[u8]) -> String {
    let target = header(request, "x-amz-target").unwrap_or_default();
    target.rsplit('.').next().unwrap_or_default().to_owned()
}

fn command_of(request: &[u8]) -> String {
    let text = String::from_utf8_lossy(request);
    text.split("\r\n").nth(2).unwrap_or_default().to_ascii_uppercase()
}

/// The length of one RESP2 value at the start of `message`, when it is whole.
fn resp_length(message: &[u8]) -> Option<usize> {
    let line = find(message, b"\r\n")?;
    let after = line + 2;
    let number = || std::str::from_utf8(&message[1..line]).expect("ASCII").parse::<i64>().expect("a number");
    match message[0] {
        b'$' => {
            let length = usize::try_from(number()).map_or(after, |length| after + length + 2);
            (message.len() >= length).then_some(length)
        }
        b'*' => (0..number()).try_fold(after, |at, _| Some(at + resp_length(message.get(at..)?)?)),
        _ => Some(after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_in_what_came_so_far() {
        for whole in ["+OK\r\n", "$-1\r\n", "$2\r\nab\r\n", "*-1\r\n", "*2\r\n*1\r\n:1\r\n$0\r\n\r\n"] {
            assert_eq!(resp_length(format!("{whole}rest").as_bytes()), Some(whole.len()), "{whole}");
            for part in 0..whole.len() {
                assert_eq!(resp_length(&whole.as_bytes()[..part]), None, "{whole} {part}");
            }
        }
        for answer in [THROTTLED, INTERNAL] {
            assert_eq!(http_length(answer), Some(answer.len()));
        }
    }
}
