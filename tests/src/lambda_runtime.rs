//! Functions as Lambda runs them: real processes that take events from an emulated Lambda Runtime API.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use punctual_core::table::connect_to;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::{RedisServer, Watched, create_table};

/// A process has this long to start and to answer one event.
const PATIENCE: Duration = Duration::from_secs(30);
/// A caller waits no longer for an answer, whatever the stores do.
const LIMIT: Duration = Duration::from_secs(5);
/// Where nobody listens.
const NOWHERE: &str = "127.0.0.1:1";
/// Texts that Lambda may pass on and that are no event of API Gateway.
const NO_EVENTS: [&str; 5] = ["null", "7", "[]", "{}", "\"text\""];

/// What a function said of one event.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Its result.
    Result(Value),
    /// Its failure.
    Failure(Value),
}

impl Outcome {
    /// The HTTP status and the envelope of an API function's result.
    #[track_caller]
    pub fn envelope(self) -> (u64, Value) {
        let Self::Result(answer) = self else { panic!("{self:?}") };
        let status = answer["statusCode"].as_u64().expect("statusCode");
        let body = answer["body"].as_str().expect("body");
        let envelope: Value = serde_json::from_str(body).expect("the envelope is JSON");
        assert_eq!(envelope["code"], status, "{envelope}");
        (status, envelope)
    }
}

struct Invocation {
    event: String,
    outcome: oneshot::Sender<Outcome>,
}

/// What the Runtime API's routes share.
struct Invocations {
    waiting: tokio::sync::Mutex<mpsc::UnboundedReceiver<Invocation>>,
    under_way: Mutex<HashMap<String, oneshot::Sender<Outcome>>>,
}

impl Invocations {
    fn end(&self, id: &str, outcome: impl FnOnce(Value) -> Outcome, body: &[u8]) -> StatusCode {
        let ended = self.under_way.lock().expect("no panic").remove(id);
        let body = serde_json::from_slice(body).expect("functions answer with JSON");
        match ended.map(|sender| sender.send(outcome(body))) {
            Some(_) => StatusCode::ACCEPTED,
            None => StatusCode::FORBIDDEN,
        }
    }
}

async fn next(State(shared): State<Arc<Invocations>>) -> impl IntoResponse {
    let Some(Invocation { event, outcome }) = shared.waiting.lock().await.recv().await else {
        // The test is over, and so is the process.
        std::future::pending().await
    };
    let id = format!("{:032x}", rand::random::<u128>());
    shared.under_way.lock().expect("no panic").insert(id.clone(), outcome);
    let deadline = std::time::SystemTime::now() + PATIENCE;
    let deadline = deadline.duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis();
    let headers = [
        ("content-type", "application/json".to_owned()),
        ("lambda-runtime-aws-request-id", id),
        ("lambda-runtime-deadline-ms", deadline.to_string()),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:us-east-1:123456789012:function:f".to_owned()),
        ("lambda-runtime-trace-id", "Root=1-66f2a0c1-3f1d2c4b5a69788796a5b4c3;Sampled=0".to_owned()),
    ];
    (headers, event)
}

/// Serves the Runtime API to one process; gives its address and where to put events.
async fn runtime_api() -> (SocketAddr, mpsc::UnboundedSender<Invocation>) {
    let (events, waiting) = mpsc::unbounded_channel();
    let shared = Arc::new(Invocations { waiting: waiting.into(), under_way: Mutex::default() });
    let result = async |State(shared): State<Arc<Invocations>>, Path(id): Path<String>, body: Bytes| {
        shared.end(&id, Outcome::Result, &body)
    };
    let failure = async |State(shared): State<Arc<Invocations>>, Path(id): Path<String>, body: Bytes| {
        shared.end(&id, Outcome::Failure, &body)
    };
    let init_failure = async |body: Bytes| {
        eprintln!("the function could not start: {}", String::from_utf8_lossy(&body));
        StatusCode::ACCEPTED
    };
    let routes = Router::new()
        .route("/2018-06-01/runtime/invocation/next", get(next))
        .route("/2018-06-01/runtime/invocation/{id}/response", post(result))
        .route("/2018-06-01/runtime/invocation/{id}/error", post(failure))
        .route("/2018-06-01/runtime/init/error", post(init_failure))
        .layer(DefaultBodyLimit::disable())
        .with_state(shared);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, routes).await });
    (address, events)
}

/// Stores for one process, and the variables that lead there.
pub struct Stores {
    /// Its Redis.
    pub redis: RedisServer,
    /// Its emulated DynamoDB.
    pub endpoint: String,
}

impl Stores {
    /// Empty stores.
    pub async fn new() -> Self {
        let database = dynoxide::Database::memory().expect("an emulator");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(dynoxide::server::serve_on(listener, database));
        create_table(&connect_to(&endpoint).await, "tasks").await;
        Self { redis: RedisServer::start(), endpoint }
    }

    /// The variables of a function on these stores.
    pub fn variables(&self) -> HashMap<String, String> {
        variables(&self.endpoint, &self.redis.url())
    }
}

/// The variables that name both stores; a shift of dispatch is a single pass.
pub fn variables(endpoint: &str, redis_url: &str) -> HashMap<String, String> {
    let all = [
        ("TABLE_NAME", "tasks"),
        ("REDIS_URL", redis_url),
        ("AWS_ENDPOINT_URL_DYNAMODB", endpoint),
        ("DISPATCH_SHIFT_SECONDS", "0"),
    ];
    all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// The command that Lambda would run, with the variables that it sets itself.
fn command(name: &str, program: &str, runtime_api: &str, variables: &HashMap<String, String>) -> Command {
    let mut command = Command::new(program);
    command
        .env("AWS_LAMBDA_RUNTIME_API", runtime_api)
        .env("AWS_LAMBDA_FUNCTION_NAME", name)
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "local")
        .env("AWS_SECRET_ACCESS_KEY", "local")
        .env("RUST_LOG", "error")
        .envs(variables);
    command
}

/// A function's process; killed with this value.
pub struct Function {
    process: Watched,
    events: mpsc::UnboundedSender<Invocation>,
}

impl Function {
    /// Starts the function `name`, whose binary is `program`.
    pub async fn start(name: &str, program: &str, variables: &HashMap<String, String>) -> Self {
        let (address, events) = runtime_api().await;
        let command = command(name, program, &address.to_string(), variables);
        Self { process: Watched::start(&command, Stdio::inherit()), events }
    }

    /// A process id: it or its parent.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Hands it one event, as Lambda does.
    pub async fn invoke(&self, event: &str) -> Outcome {
        self.invoke_within(event, PATIENCE).await
    }

    /// The same where the work takes long.
    pub async fn invoke_within(&self, event: &str, limit: Duration) -> Outcome {
        let (outcome, ended) = oneshot::channel();
        let invocation = Invocation { event: event.to_owned(), outcome };
        self.events.send(invocation).unwrap_or_else(|_| panic!("the Runtime API runs"));
        let ended = tokio::time::timeout(limit, ended).await;
        ended.expect("the function answers in time").expect("the Runtime API runs")
    }
}

/// The sample events of a function, by file name.
pub fn events_of(name: &str) -> Vec<(String, String)> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../events")).join(name);
    let mut events: Vec<(String, String)> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|file| {
            let path = file.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("a text"))
        })
        .collect();
    events.sort();
    assert!(!events.is_empty(), "{} is empty", folder.display());
    events
}

fn event_of(name: &str, file: &str) -> String {
    let mut events = events_of(name).into_iter();
    events.find(|(other, _)| other == file).unwrap_or_else(|| panic!("events/{name}/{file}")).1
}

/// An API function answers each sample event as its file's name says, answers 400 to what is no event, and lives on
/// after what is not even JSON: `file` is then answered with 200, 404 or 409 again.
pub async fn check_api_function(name: &str, program: &str, file: &str) {
    let stores = Stores::new().await;
    let function = Function::start(name, program, &stores.variables()).await;
    for (file, event) in events_of(name) {
        let (status, envelope) = function.invoke(&event).await.envelope();
        let good = if file.starts_with("bad") {
            (400..500).contains(&status)
        } else {
            // On empty stores a task that an event names is unknown.
            [200, 404, 409].contains(&status)
        };
        assert!(good, "{name}/{file}: {envelope}");
    }
    for event in NO_EVENTS {
        let (status, envelope) = function.invoke(event).await.envelope();
        assert_eq!((status, &envelope["error"]), (400, &"invalid".into()), "{event}: {envelope}");
    }
    let outcome = function.invoke("{not JSON").await;
    assert!(matches!(outcome, Outcome::Failure(_)), "{outcome:?}");
    let (status, envelope) = function.invoke(&event_of(name, file)).await.envelope();
    assert!([200, 404, 409].contains(&status), "{envelope}");
}

/// A tick answers every event with its report, in which `field` stands.
pub async fn check_tick(name: &str, program: &str, field: &str) {
    let stores = Stores::new().await;
    let function = Function::start(name, program, &stores.variables()).await;
    let no_events = NO_EVENTS.map(|event| (event.to_owned(), event.to_owned()));
    for (file, event) in events_of(name).into_iter().chain(no_events) {
        match function.invoke(&event).await {
            Outcome::Result(report) => assert!(!report[field].is_null(), "{name}/{file}: {report}"),
            Outcome::Failure(failure) => panic!("{name}/{file}: {failure}"),
        }
    }
}

/// Without one of the stores' variables the process ends with a failure that names the variable.
pub fn check_missing_variables(name: &str, program: &str) {
    for missing in ["TABLE_NAME", "REDIS_URL"] {
        let mut given = variables(&format!("http://{NOWHERE}"), &format!("redis://{NOWHERE}"));
        given.remove(missing);
        let ended = command(name, program, NOWHERE, &given).env_remove(missing).output().expect("it runs");
        let said = [ended.stdout, ended.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(!ended.status.success(), "{name} without {missing}: {said}");
        assert!(said.contains(missing), "{name} without {missing}: {said}");
    }
}

/// With DynamoDB refusing, and with DynamoDB silent, an API function answers `event` with 503 in time, and lives on.
pub async fn check_without_dynamodb(name: &str, program: &str, file: &str) {
    let redis = RedisServer::start();
    // It takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent_endpoint = format!("http://{}", silent.local_addr().expect("an address"));
    for endpoint in [format!("http://{NOWHERE}"), silent_endpoint] {
        let function = Function::start(name, program, &variables(&endpoint, &redis.url())).await;
        for _ in 0..2 {
            let started = Instant::now();
            let (status, envelope) = function.invoke(&event_of(name, file)).await.envelope();
            let took = started.elapsed();
            assert_eq!((status, &envelope["error"]), (503, &"unavailable".into()), "{endpoint}: {envelope}");
            assert!(took < LIMIT, "{endpoint}: {took:?}");
        }
    }
}

/// With DynamoDB refusing, a tick fails, says so, and lives on.
pub async fn check_tick_without_dynamodb(name: &str, program: &str) {
    let redis = RedisServer::start();
    let function = Function::start(name, program, &variables(&format!("http://{NOWHERE}"), &redis.url())).await;
    for _ in 0..2 {
        let outcome = function.invoke(&event_of(name, "one.json")).await;
        assert!(matches!(outcome, Outcome::Failure(_)), "{outcome:?}");
    }
}

/// With Redis refusing, `event` is answered with 200 in time.
pub async fn check_without_redis(name: &str, program: &str, file: &str) {
    let stores = Stores::new().await;
    let variables = variables(&stores.endpoint, &format!("redis://{NOWHERE}"));
    let function = Function::start(name, program, &variables).await;
    for _ in 0..2 {
        let started = Instant::now();
        let (status, envelope) = function.invoke(&event_of(name, file)).await.envelope();
        assert_eq!(status, 200, "{envelope}");
        assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    }
}
