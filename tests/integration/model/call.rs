//! Calls as a client makes them, and what they did in the model's words.

use punctual_core::error::Error;
use punctual_core::handler::Handler;
use punctual_core::service::Service;
use serde_json::{Value, json};
use tests::reference::{Act, Content, Op, Said};
use tests::{Reply, call};

use super::HANDLED;
use super::handled::Scripted;
use super::history::Call;

/// A call with everything filled in.
#[derive(Clone, Debug)]
pub enum Step {
    Add(Vec<(usize, Content)>),
    Ack(Vec<(usize, String)>),
    Nack { task: usize, token: String, delay: Option<i64>, permanent: bool },
    Extend { task: usize, token: String, seconds: i64 },
    Other(Call),
}

/// What a call did, task by task and in order for each.
pub struct Done {
    pub events: Vec<(usize, Op, Said)>,
    /// Why the whole call failed: the fault of a store.
    pub failure: Option<(u16, String)>,
    /// Lanes that were polled in this order, and for how many tasks.
    pub polled: Option<(Vec<usize>, usize)>,
}

impl Done {
    pub fn tick<T>(result: Result<T, Error>) -> Self {
        let failure = result.err().map(|error| (error.status(), error.word().to_owned()));
        Self { events: Vec::new(), failure, polled: None }
    }
}

pub fn as_sent(name: &str, task: usize, content: &Content) -> Value {
    let mut sent = json!({
        "taskId": format!("{name}-{task}"), "taskType": name, "priority": content.lane % 2, "delay": content.delay,
        "maxAttempts": content.max_attempts, "backoff": {"kind": "fixed", "delay": content.backoff},
        "retention": content.retention, "parameters": {"act": match content.act {
            Act::Succeed => "succeed".to_owned(),
            Act::Retry => "retry".to_owned(),
            Act::GiveUp => "give up".to_owned(),
            Act::Later(ms) => ms.to_string(),
        }},
    });
    if content.lane == HANDLED {
        sent["handler"] = json!(Scripted::NAME);
    }
    sent
}

fn refusal(reply: &Reply) -> Said {
    Said::Refused(reply.body["error"].as_str().unwrap_or("no word").to_owned())
}

/// Makes a call of the API.
pub async fn called(service: &Service, name: &str, step: Step, now: i64) -> Done {
    let path = |verb: &str, task: usize| format!("/api/v1/task/{verb}/{name}-{task}");
    let simple = |reply: &Reply| match reply.status {
        200 => match &reply.body["data"] {
            Value::Bool(true) => Said::True,
            Value::Bool(false) => Said::False,
            task => Said::Moved(task["executeTime"].as_i64().expect("a task")),
        },
        _ => refusal(reply),
    };
    let failed = |reply: &Reply| Done {
        events: Vec::new(),
        failure: Some((reply.status, reply.body["error"].as_str().unwrap_or("no word").to_owned())),
        polled: None,
    };
    let mut polled = None;
    let events = match step {
        Step::Add(tasks) if tasks.len() == 1 => {
            let (task, content) = tasks.into_iter().next().expect("one");
            let reply = call(service, "POST", "/api/v1/task/add", as_sent(name, task, &content)).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            let said = match (reply.status, &reply.body["created"]) {
                (200, Value::Bool(true)) => Said::Created,
                (200, Value::Bool(false)) => Said::Same,
                _ => refusal(&reply),
            };
            vec![(task, Op::Add(content), said)]
        }
        Step::Add(tasks) => {
            let sent: Vec<Value> = tasks.iter().map(|(task, content)| as_sent(name, *task, content)).collect();
            let reply = call(service, "POST", "/api/v1/task/add", Value::Array(sent)).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            let items = reply.data().as_array().expect("an array").clone();
            assert_eq!(items.len(), tasks.len());
            let said = |item: &Value| match &item["created"] {
                Value::Bool(true) => Said::Created,
                Value::Bool(false) => Said::Same,
                _ => Said::Refused(item["error"].as_str().unwrap_or("no word").to_owned()),
            };
            tasks.into_iter().zip(&items).map(|((task, content), item)| (task, Op::Add(content), said(item))).collect()
        }
        Step::Ack(settled) if settled.len() == 1 => {
            let (task, token) = settled.into_iter().next().expect("one");
            let reply = call(service, "POST", &path("ack", task), json!({"leaseToken": token})).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, Op::Ack(token), simple(&reply))]
        }
        Step::Ack(settled) => {
            let sent = settled
                .iter()
                .map(|(task, token)| json!({"taskId": format!("{name}-{task}"), "leaseToken": token}))
                .collect();
            let reply = call(service, "POST", "/api/v1/task/ack", Value::Array(sent)).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            let items = reply.data().as_array().expect("an array").clone();
            let said = |item: &Value| match &item["ok"] {
                Value::Bool(true) => Said::True,
                _ => Said::Refused(item["error"].as_str().unwrap_or("no word").to_owned()),
            };
            settled.into_iter().zip(&items).map(|((task, token), item)| (task, Op::Ack(token), said(item))).collect()
        }
        Step::Nack { task, token, delay, permanent } => {
            let mut body = json!({"leaseToken": token, "permanent": permanent});
            if let Some(delay) = delay {
                body["delay"] = json!(delay);
            }
            let reply = call(service, "POST", &path("nack", task), body).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, Op::Nack { token, delay, permanent }, simple(&reply))]
        }
        Step::Extend { task, token, seconds } => {
            let body = json!({"leaseToken": token, "leaseSeconds": seconds});
            let reply = call(service, "POST", &path("extend", task), body).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, Op::Extend(token, now + seconds * 1_000), simple(&reply))]
        }
        Step::Other(Call::Cancel { task, by_get }) => {
            let (method, op) = if by_get { ("GET", Op::CancelByGet) } else { ("DELETE", Op::Cancel) };
            let reply = call(service, method, &path("cancel", task), Value::Null).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, op, simple(&reply))]
        }
        Step::Other(Call::Reschedule { task, delay }) => {
            let reply = call(service, "POST", &path("reschedule", task), json!({"delay": delay})).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, Op::Reschedule(now + delay), simple(&reply))]
        }
        Step::Other(Call::Redrive(task)) => {
            let reply = call(service, "POST", &path("redrive", task), Value::Null).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            vec![(task, Op::Redrive, simple(&reply))]
        }
        Step::Other(Call::Get(task)) => {
            let reply = call(service, "GET", &format!("/api/v1/task/{name}-{task}"), Value::Null).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            let shown = &reply.body["data"];
            let said = match reply.status {
                200 => Said::Shown {
                    status: shown["status"].as_str().expect("a status").to_owned(),
                    due: shown["executeTime"].as_i64().expect("a due time"),
                    attempts: u32::try_from(shown["attempts"].as_u64().expect("attempts")).expect("few"),
                    until: shown["leaseUntil"].as_i64(),
                },
                _ => refusal(&reply),
            };
            vec![(task, Op::Get, said)]
        }
        Step::Other(Call::Take(lane)) => {
            polled = Some((vec![lane], 1));
            let reply = call(service, "GET", &format!("/api/v1/task/poll/{name}/{lane}"), Value::Null).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            match reply.data() {
                Value::Null => Vec::new(),
                task => vec![(number_of(name, task), Op::Take(lane), given(task, "attempts"))],
            }
        }
        Step::Other(Call::Poll { lane, most, seconds }) => {
            polled = Some((vec![lane], most));
            let body = json!({"max": most, "leaseSeconds": seconds});
            let reply = call(service, "POST", &format!("/api/v1/task/poll/{name}/{lane}"), body).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            leases(name, &reply, most, now + seconds * 1_000)
        }
        Step::Other(Call::PollType { most, seconds }) => {
            polled = Some((vec![0, 1], most));
            let body = json!({"max": most, "leaseSeconds": seconds});
            let reply = call(service, "POST", &format!("/api/v1/task/poll/{name}"), body).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            leases(name, &reply, most, now + seconds * 1_000)
        }
        Step::Other(Call::Look(path)) => {
            let reply = call(service, "GET", path, Value::Null).await;
            if reply.status >= 429 {
                return failed(&reply);
            }
            reply.data();
            Vec::new()
        }
        Step::Other(other) => unreachable!("{other:?} is no call of the API"),
    };
    Done { events, failure: None, polled }
}

fn number_of(name: &str, task: &Value) -> usize {
    let id = task["taskId"].as_str().expect("an id");
    id.strip_prefix(&format!("{name}-"))
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{id} is of another history"))
}

fn given(task: &Value, attempt: &str) -> Said {
    let attempt = u32::try_from(task[attempt].as_u64().expect("a number")).expect("small");
    Said::Given { due: task["executeTime"].as_i64(), attempt }
}

fn leases(name: &str, reply: &Reply, most: usize, until: i64) -> Vec<(usize, Op, Said)> {
    let tasks = reply.data().as_array().expect("an array");
    assert!(tasks.len() <= most, "{tasks:?}");
    let lease = |task: &Value| {
        assert_eq!(task["leaseUntil"], until, "{task}");
        assert!(task.get("handler").is_none(), "a poll gave out {task}");
        let lane = usize::try_from(task["priority"].as_u64().expect("a priority")).expect("small");
        let token = task["leaseToken"].as_str().expect("a token").to_owned();
        (number_of(name, task), Op::Lease { lane, until, token }, given(task, "attempt"))
    };
    tasks.iter().map(lease).collect()
}
