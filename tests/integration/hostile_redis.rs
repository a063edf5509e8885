//! A Redis that answers whatever it likes: no panic, no hang, and DynamoDB alone decides what is delivered.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use punctual_core::clock::Clock;
use punctual_core::config::TickConfig;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use tests::{Settings, World, call, task};

/// Random histories, each with replies of its own.
const HISTORIES: u64 = 12;
/// Calls of each.
const CALLS: usize = 40;
/// Tasks whose ids may come back in replies.
const TASKS: usize = 8;
/// No call takes longer; far above what it may, since this is no measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// Greetings, which are answered well: without them there would be no connection.
const GREETINGS: [&str; 4] = ["CLIENT", "SELECT", "AUTH", "PING"];

/// Texts that a script or a command could answer, or nearly.
const TEXTS: [&str; 14] =
    ["", "0", "-1", "1e400", "nan", "99999999999999999999", "future", "t_0.0", "t_0", "h", "h1", "x y", "\u{0}", "OK"];
const ERRORS: [&str; 5] = ["ERR no", "NOSCRIPT none", "WRONGTYPE no", "OOM no", "READONLY no"];

fn reply(random: &mut StdRng, depth: usize) -> Vec<u8> {
    match random.random_range(0..if depth > 2 { 6 } else { 9 }) {
        0 => b"$-1\r\n".to_vec(),
        1 => format!(":{}\r\n", random.random::<i64>() >> random.random_range(0..64)).into_bytes(),
        2 => b"+OK\r\n".to_vec(),
        3 => format!("-{}\r\n", ERRORS[random.random_range(0..ERRORS.len())]).into_bytes(),
        4 => bulk(format!("h{}", random.random_range(0..TASKS)).as_bytes()),
        5 => match random.random_range(0..4) {
            0 => bulk(&[0xff, 0xfe, b'a']),
            1 => bulk(random.random::<i64>().to_string().as_bytes()),
            _ => bulk(TEXTS[random.random_range(0..TEXTS.len())].as_bytes()),
        },
        _ => {
            let length = random.random_range(0..6);
            let mut array = format!("*{length}\r\n").into_bytes();
            (0..length).for_each(|_| array.extend(reply(random, depth + 1)));
            array
        }
    }
}

fn bulk(text: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
}

/// Reads one command; `None` when the connection has ended.
fn command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let number = |reader: &mut dyn BufRead| {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        line.trim()[1..].parse::<usize>().ok()
    };
    let words = number(reader)?;
    (0..words)
        .map(|_| {
            let mut word = vec![0; number(reader)? + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            Some(word)
        })
        .collect()
}

fn serve(stream: &TcpStream, mut random: StdRng) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(words) = command(&mut reader) {
        let name = String::from_utf8_lossy(&words[0]).to_uppercase();
        let answer = if GREETINGS.contains(&name.as_str()) { b"+OK\r\n".to_vec() } else { reply(&mut random, 0) };
        if writer.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A server that answers at random; gives its URL.
fn hostile_redis(seed: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("redis://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let Ok(stream) = stream else { return };
            let random = StdRng::seed_from_u64(seed.wrapping_mul(1_000) + number as u64);
            std::thread::spawn(move || serve(&stream, random));
        }
    });
    url
}

/// What was delivered, checked as it comes.
#[derive(Default)]
struct Ledger {
    leases: HashMap<String, (String, i64)>,
    done: HashSet<String>,
}

impl Ledger {
    fn delivered(&mut self, polled: &Value, now: i64) {
        for task in polled.as_array().into_iter().flatten() {
            let id = task["taskId"].as_str().expect("an id").to_owned();
            assert!(task["executeTime"].as_i64().expect("a time") <= now, "{id} is early");
            assert!(!self.done.contains(&id), "{id} was over");
            let until = task["leaseUntil"].as_i64().expect("a time");
            let token = task["leaseToken"].as_str().expect("a token").to_owned();
            if let Some((_, until)) = self.leases.insert(id.clone(), (token, until)) {
                assert!(until <= now, "{id} has two leases");
            }
        }
    }
}

async fn history(seed: u64) {
    let world = World::new().await;
    let settings = Settings { redis_urls: vec![hostile_redis(seed)], ..Settings::default() };
    let hostile = world.another(Clock::Manual(world.clock.clone()), &settings).await;
    let mut random = StdRng::seed_from_u64(seed);
    let mut ledger = Ledger::default();
    for number in 0..TASKS {
        let added = call(&hostile, "POST", "/api/v1/task/add", task(&format!("h{number}"), number as i64 * 500)).await;
        assert_eq!(added.data(), &json!(format!("h{number}")), "seed {seed}");
    }
    for _ in 0..CALLS {
        let now = world.now();
        match random.random_range(0..8) {
            0 => world.advance(random.random_range(1..1_000)),
            1 => drop(hostile.refresh(&TickConfig { budget: Duration::from_secs(1) }).await),
            2 => drop(hostile.recover(&TickConfig { budget: Duration::from_secs(1) }).await),
            3 => drop(call(&hostile, "GET", "/api/v1/queues", Value::Null).await),
            4 => {
                let Some((id, (token, until))) = ledger.leases.iter().next().map(|(id, of)| (id.clone(), of.clone()))
                else {
                    continue;
                };
                let path = format!("/api/v1/task/ack/{id}");
                let acknowledged = call(&hostile, "POST", &path, json!({"leaseToken": token})).await;
                ledger.leases.remove(&id);
                if until > now {
                    acknowledged.data();
                }
                if acknowledged.status == 200 {
                    ledger.done.insert(id);
                }
            }
            _ => {
                let polled = call(&hostile, "POST", "/api/v1/task/poll/t/0", json!({"max": 3})).await;
                ledger.delivered(polled.data(), now);
            }
        }
    }
    // By a Redis that means well, all that is left comes.
    world.advance(120_000);
    world.service.refresh(&TickConfig { budget: Duration::from_secs(40) }).await.expect("a refresh");
    let left = Value::Array(world.drain("t/0").await);
    ledger.delivered(&left, world.now());
    let came: HashSet<String> = ledger.leases.into_keys().chain(ledger.done).collect();
    assert_eq!(came.len(), TASKS, "seed {seed}: {came:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_redis_answers_nothing_panics_hangs_or_is_delivered_wrongly() {
    for seed in 0..HISTORIES {
        let ended = tokio::time::timeout(PATIENCE, tokio::spawn(history(seed))).await;
        ended.unwrap_or_else(|_| panic!("seed {seed} hangs")).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
