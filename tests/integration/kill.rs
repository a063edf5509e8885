//! The runner as a real process, killed with SIGKILL under load over HTTP: every add that was answered is delivered,
//! nothing that was acknowledged comes again, and no two leases of a task live at once.
//!
//! `PUNCTUAL_KILLS` says how many kills each test makes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use punctual_core::clock::Clock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{Patience, RedisServer, Watched, free_port};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{JoinSet, block_in_place};

const KILLS: usize = 10;
const PRODUCERS: usize = 3;
const CONSUMERS: usize = 4;
/// The leases' length: also how long a task waits that was leased to a poll whose answer was lost.
const LEASE_SECONDS: i64 = 2;
/// After the last kill nothing that is open stays so for longer than this without another one being done.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
/// Producers wait while so many tasks are open: a machine that is busy must not end with a backlog of minutes.
const MOST_OPEN: usize = 100;
/// A call that is not answered within this has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

fn kills() -> usize {
    std::env::var("PUNCTUAL_KILLS").map_or(KILLS, |kills| kills.parse().expect("PUNCTUAL_KILLS is a number"))
}

/// The runner. Tests of the whole workspace build it, since its own package has tests that run it.
pub static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| {
    let test = std::env::current_exe().expect("this test has a path");
    let program = test.parent().and_then(Path::parent).expect("tests lie in target/<profile>/deps").join("punctual");
    assert!(program.exists(), "{} is missing: cargo build -p local", program.display());
    program
});

/// A runner on a port of its own, which it keeps over restarts.
struct Process {
    port: u16,
    arguments: Vec<String>,
    dynamodb: Option<String>,
    process: Option<Watched>,
    /// Its Redis, as it says.
    redis_url: String,
}

impl Process {
    fn start(data: &Path, arguments: &[&str], dynamodb: Option<String>) -> Self {
        let port = free_port();
        let mut all = vec!["--listen".to_owned(), format!("127.0.0.1:{port}"), "--data-dir".to_owned()];
        all.push(data.display().to_string());
        all.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let mut process = Self { port, arguments: all, dynamodb, process: None, redis_url: String::new() };
        process.launch();
        process
    }

    fn launch(&mut self) {
        let mut command = Command::new(&*PROGRAM);
        command.args(&self.arguments).env("RUST_LOG", "error");
        if let Some(dynamodb) = &self.dynamodb {
            command.env("AWS_ENDPOINT_URL_DYNAMODB", dynamodb);
        }
        let mut process = Watched::start(&command, Stdio::piped());
        let mut line = String::new();
        BufReader::new(process.stdout().expect("it is piped")).read_line(&mut line).expect("a line");
        let redis = line.split_once("redis: ").and_then(|(_, rest)| rest.trim().strip_suffix(')'));
        self.redis_url = redis.unwrap_or_else(|| panic!("the runner did not start: {line:?}")).to_owned();
        self.process = Some(process);
    }

    fn kill(&mut self) {
        self.process = None;
    }

    /// The process id of its Redis; `None` while that does not answer.
    fn redis_pid(&self) -> Option<u32> {
        let mut connection = redis::Client::open(self.redis_url.as_str()).ok()?.get_connection().ok()?;
        let info: String = redis::cmd("INFO").arg("server").query(&mut connection).ok()?;
        info.lines().find_map(|line| line.strip_prefix("process_id:"))?.trim().parse().ok()
    }
}

/// What the clients know, of all tasks.
#[derive(Default)]
struct Ledger {
    /// Adds that were answered with success, and their due times.
    added: BTreeMap<String, i64>,
    /// Leases by attempt: from, until, and whether the holder gave it back.
    leases: BTreeMap<String, BTreeMap<u64, (i64, i64, bool)>>,
    /// The attempts that were acknowledged.
    acked: BTreeMap<String, u64>,
}

impl Ledger {
    fn open(&self) -> BTreeSet<&String> {
        self.added.keys().filter(|id| !self.acked.contains_key(*id)).collect()
    }

    fn note_lease(&mut self, task: &Value) {
        let id = task["taskId"].as_str().expect("an id").to_owned();
        let number = |name: &str| task[name].as_i64().unwrap_or_else(|| panic!("{name} of {task}"));
        let (attempt, until) = (number("attempt"), number("leaseUntil"));
        let from = until - LEASE_SECONDS * 1_000;
        assert!(from >= number("executeTime"), "early: {task}");
        let leases = self.leases.entry(id).or_default();
        let before = leases.insert(u64::try_from(attempt).expect("positive"), (from, until, false));
        assert_eq!(before, None, "attempt given twice: {task}");
    }

    /// One live lease, and final.
    fn check(&self) {
        for (id, leases) in &self.leases {
            for ((_, (_, until, given_back)), (attempt, (from, ..))) in leases.iter().zip(leases.iter().skip(1)) {
                assert!(*given_back || from >= until, "attempt {attempt} of {id} began before the last ended");
            }
            if let (Some(acked), Some(last)) = (self.acked.get(id), leases.keys().last()) {
                assert!(last <= acked, "{id} was acknowledged with attempt {acked} and came again with {last}");
            }
        }
    }
}

/// The clients: producers and consumers that do not give up.
struct Clients {
    ports: Vec<u16>,
    ledger: Mutex<Ledger>,
    failures: AtomicUsize,
    producing: AtomicBool,
    consuming: AtomicBool,
}

impl Clients {
    fn start(ports: Vec<u16>) -> (Arc<Self>, JoinSet<()>) {
        let clients = Arc::new(Self {
            ports,
            ledger: Mutex::default(),
            failures: AtomicUsize::new(0),
            producing: AtomicBool::new(true),
            consuming: AtomicBool::new(true),
        });
        let mut all = JoinSet::new();
        for n in 0..PRODUCERS {
            all.spawn(clients.clone().produce(n));
        }
        for n in 0..CONSUMERS {
            all.spawn(clients.clone().consume(n));
        }
        (clients, all)
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no client panicked")
    }

    /// One call; `None` when it was not answered, or by a 5xx: then the next one goes to the other process.
    async fn call(&self, client: &mut usize, path: &str, body: &Value) -> Option<(u16, Value)> {
        let port = self.ports[*client % self.ports.len()];
        let call = tokio::time::timeout(CALL_TIMEOUT, post(port, path, body)).await;
        match call.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok((status, answer)) if status < 500 => Some((status, answer)),
            _ => {
                self.failures.fetch_add(1, Ordering::SeqCst);
                *client += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
        }
    }

    /// The same until it is answered.
    async fn insist(&self, client: &mut usize, path: &str, body: &Value) -> (u16, Value) {
        loop {
            if let Some(answer) = self.call(client, path, body).await {
                return answer;
            }
        }
    }

    async fn produce(self: Arc<Self>, producer: usize) {
        let mut client = producer;
        let mut count = 0;
        while self.producing.load(Ordering::SeqCst) {
            let now = Clock::System.now().as_ms();
            let mut open: Vec<Value> = (0..rand::random_range(1..=5))
                .map(|_| {
                    count += 1;
                    let due = now + rand::random_range(-100..300);
                    json!({"taskId": format!("p{producer}-{count}"), "taskType": "t", "executeTime": due,
                        "priority": count % 3, "maxAttempts": 1_000})
                })
                .collect();
            while !open.is_empty() {
                let body = if open.len() == 1 { open[0].clone() } else { Value::Array(open.clone()) };
                let (status, answer) = self.insist(&mut client, "add", &body).await;
                assert_eq!(status, 200, "{answer}");
                let items =
                    if open.len() == 1 { vec![answer] } else { answer["data"].as_array().expect("an array").clone() };
                let mut ledger = self.ledger();
                let mut item = items.iter();
                open.retain(|task| {
                    let added = item.next().expect("one for each")["created"].is_boolean();
                    if added {
                        let id = task["taskId"].as_str().expect("an id").to_owned();
                        ledger.added.insert(id, task["executeTime"].as_i64().expect("a number"));
                    }
                    !added
                });
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            let patience = Patience::new("fewer open tasks", Duration::from_millis(10));
            while self.producing.load(Ordering::SeqCst) && self.ledger().open().len() > MOST_OPEN {
                patience.look_again().await;
            }
        }
    }

    async fn consume(self: Arc<Self>, consumer: usize) {
        let mut client = consumer;
        let request = json!({"max": 5, "leaseSeconds": LEASE_SECONDS, "waitSeconds": 1});
        while self.consuming.load(Ordering::SeqCst) {
            // Half of them by type, the others by one priority each.
            let queue = ["poll/t".to_owned(), format!("poll/t/{}", consumer % 3)][consumer % 2].clone();
            let Some((status, answer)) = self.call(&mut client, &queue, &request).await else { continue };
            assert_eq!(status, 200, "{answer}");
            for task in answer["data"].as_array().expect("an array") {
                self.ledger().note_lease(task);
                let id = task["taskId"].as_str().expect("an id");
                let attempt = task["attempt"].as_u64().expect("a number");
                let token = &task["leaseToken"];
                match rand::random_range(0..10) {
                    // It crashes.
                    0 => {}
                    1 => {
                        // Before the call: the next lease may be noted before its answer comes.
                        if let Some(lease) = self.ledger().leases.get_mut(id).and_then(|all| all.get_mut(&attempt)) {
                            lease.2 = true;
                        }
                        let body = json!({"leaseToken": token, "delay": 0});
                        let (status, answer) = self.insist(&mut client, &format!("nack/{id}"), &body).await;
                        assert!(status == 200 || answer["error"] == "lease_lost", "{answer}");
                    }
                    _ => {
                        let body = json!({"leaseToken": token});
                        let (status, answer) = self.insist(&mut client, &format!("ack/{id}"), &body).await;
                        assert!(status == 200 || answer["error"] == "lease_lost", "{answer}");
                        if status == 200 {
                            self.ledger().acked.insert(id.to_owned(), attempt);
                        }
                    }
                }
            }
        }
    }
}

/// A POST over a connection of its own.
async fn post(port: u16, path: &str, body: &Value) -> io::Result<(u16, Value)> {
    let body = body.to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!(
        "POST /api/v1/task/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let broken = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    Ok((status, serde_json::from_str(body).map_err(|_| broken())?))
}

/// Lets the clients work while `kill` strikes at random moments, then checks what they know.
async fn survives(ports: Vec<u16>, mut kill: impl AsyncFnMut(usize)) {
    let (clients, mut all) = Clients::start(ports);
    let kills = kills();
    for n in 0..kills {
        tokio::time::sleep(Duration::from_millis(rand::random_range(50..900))).await;
        kill(n).await;
    }
    clients.producing.store(false, Ordering::SeqCst);
    let (mut progress, mut least_open) = (Instant::now(), usize::MAX);
    loop {
        while let Some(client) = all.try_join_next() {
            client.expect("no client fails");
        }
        let (added, open) = {
            let ledger = clients.ledger();
            (ledger.added.len(), ledger.open().into_iter().cloned().collect::<Vec<String>>())
        };
        if open.is_empty() && added > 0 && all.len() == CONSUMERS {
            break;
        }
        if open.len() < least_open {
            (progress, least_open) = (Instant::now(), open.len());
        }
        assert!(progress.elapsed() < PROGRESS_WITHIN, "lost: {} of {added}, {open:?}", open.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Longer than any lease: whatever would come again comes now.
    tokio::time::sleep(Duration::from_millis(LEASE_SECONDS.unsigned_abs() * 1_000 + 500)).await;
    clients.consuming.store(false, Ordering::SeqCst);
    while let Some(client) = all.join_next().await {
        client.expect("no client fails");
    }
    let ledger = clients.ledger();
    ledger.check();
    let leases: usize = ledger.leases.values().map(BTreeMap::len).sum();
    let failures = clients.failures.load(Ordering::SeqCst);
    println!("{kills} kills: {} tasks, {leases} leases, {failures} failed calls", ledger.added.len());
    assert!(ledger.added.len() >= kills * 2, "too little load: {}", ledger.added.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_runner_loses_nothing_and_repeats_nothing() {
    let data = TempDir::new().expect("a folder");
    let mut runner = Process::start(data.path(), &[], None);
    survives(vec![runner.port], async |_| {
        block_in_place(|| {
            runner.kill();
            runner.launch();
        });
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_loses_nothing_and_repeats_nothing() {
    let data = TempDir::new().expect("a folder");
    let runner = Process::start(data.path(), &[], None);
    let mut last = None;
    survives(vec![runner.port], async |_| {
        let patience = Patience::new("another redis-server", Duration::from_millis(20));
        let pid = loop {
            match runner.redis_pid() {
                Some(pid) if Some(pid) != last => break pid,
                _ => patience.look_again().await,
            }
        };
        last = Some(pid);
        let killed = Command::new("kill").args(["-9", &pid.to_string()]).status();
        assert!(killed.expect("kill runs").success());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_runners_on_the_same_stores_one_may_die_at_any_moment() {
    let data = TempDir::new().expect("a folder");
    let redis = RedisServer::start();
    let redis_url = redis.url();
    let dynamodb = format!("127.0.0.1:{}", free_port());
    let stores = ["--dynamodb-listen", &dynamodb, "--redis-url", &redis_url, "--no-ticks"];
    let _stores = Process::start(data.path(), &stores, None);
    let start = || Process::start(data.path(), &["--redis-url", &redis_url], Some(format!("http://{dynamodb}")));
    let mut runners = [start(), start()];
    survives(runners.iter().map(|runner| runner.port).collect(), async |n| {
        let runner = &mut runners[n % 2];
        block_in_place(|| runner.kill());
        // The other one serves alone for a while.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..300))).await;
        block_in_place(|| runner.launch());
    })
    .await;
}
