//! Each call and each tick, broken at each request that it makes, in each way: whatever the caller was told holds, a
//! repeat succeeds, and when the stores are well again nothing is lost, nothing is given out twice.
//!
//! The answers are held against [`tests::reference`]; a call that failed may have been applied or not.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use punctual_core::clock::Clock;
use punctual_core::config::Config;
use punctual_core::service::Service;
use punctual_core::table::connect_to;
use tests::reference::{Act, Content, Op, Said, after, at, perhaps};
use tests::{Break, FaultProxy, Patience, Plan, Settings, Store, World};

use crate::model::{Action, Call, Done, Run, Step};

/// A promise: whatever the stores do, a call answers within this.
const LIMIT: Duration = Duration::from_secs(5);
/// Cases that are under way at once, each in a world of its own: most of them wait for a time limit.
const WORLDS: usize = 20;
/// The cases that there were when this was written. There may be more, not less. Of ticks a few less: what several
/// shards do side by side, they do not always do in as many requests.
const DYNAMODB_CALLS: usize = 432;
const DYNAMODB_TICKS: usize = 300;
const REDIS_CALLS: usize = 536;
const REDIS_TICKS: usize = 790;

fn content(lane: usize, delay: i64) -> Content {
    Content { lane, delay, max_attempts: 2, backoff: 5_000, retention: 604_800_000, act: Act::Succeed }
}

fn add(task: usize, content: Content) -> Action {
    Action::One(Call::Add(vec![(task, content)]))
}

fn one(call: Call) -> Action {
    Action::One(call)
}

const POLL: Call = Call::Poll { lane: 0, most: 2, seconds: 30 };

/// What is broken: a name, what comes before, the call.
fn operations() -> Vec<(&'static str, Vec<Action>, Call)> {
    let due = |task| add(task, content(0, 0));
    let last = |task, lane| add(task, Content { max_attempts: 1, ..content(lane, 0) });
    let leased = || vec![due(0), due(1), one(POLL)];
    let pushed = |act| add(2, Content { act, ..content(2, 0) });
    let dead = || {
        let fail = Call::Nack { token: 0, delay: None, permanent: true };
        vec![due(0), one(POLL), one(fail)]
    };
    // Something of everything: due, soon, far, leased, ended, exhausted, forgotten by Redis.
    let mixed = || {
        vec![
            last(0, 0),
            due(1),
            one(POLL),
            Action::Advance(30_000),
            add(2, content(2, 0)),
            add(3, content(1, 20_000)),
            add(4, content(1, 4_000_000)),
        ]
    };
    let forgotten = || {
        let mut actions = mixed();
        actions.push(one(Call::FlushAll));
        actions
    };
    let ack = Call::Ack(vec![0]);
    vec![
        ("add", vec![], Call::Add(vec![(0, content(0, 0))])),
        ("add far", vec![], Call::Add(vec![(0, content(0, 4_000_000))])),
        ("add again", vec![due(0)], Call::AddAgain(0)),
        ("add other", vec![due(0)], Call::Add(vec![(0, content(1, 0))])),
        ("add batch", vec![due(0)], Call::Add((0..4).map(|n| (n, content(n % 2, 0))).collect())),
        ("cancel", vec![due(0)], Call::Cancel { task: 0, by_get: false }),
        ("cancel by get", vec![due(0)], Call::Cancel { task: 0, by_get: true }),
        ("cancel leased", leased(), Call::Cancel { task: 0, by_get: false }),
        ("take", vec![due(0), due(1)], Call::Take(0)),
        ("poll", vec![due(0), due(1), due(2)], POLL),
        ("poll nothing", vec![add(0, content(0, 20_000))], POLL),
        ("poll long", vec![due(0)], Call::Poll { lane: 0, most: 1, seconds: 400 }),
        ("poll ended", [leased(), vec![Action::Advance(30_000)]].concat(), POLL),
        ("poll exhausted", vec![last(0, 0), one(POLL), Action::Advance(30_000)], POLL),
        ("poll type", vec![due(0), add(1, content(1, 0))], Call::PollType { most: 2, seconds: 30 }),
        ("poll flushed", vec![due(0), due(1), one(Call::FlushAll)], POLL),
        ("ack", leased(), ack.clone()),
        ("ack again", [leased(), vec![one(ack)]].concat(), Call::Ack(vec![0])),
        ("ack batch", leased(), Call::Ack(vec![0, 1])),
        ("nack", leased(), Call::Nack { token: 0, delay: Some(1_000), permanent: false }),
        ("nack far", leased(), Call::Nack { token: 0, delay: Some(400_000), permanent: false }),
        ("nack for good", leased(), Call::Nack { token: 0, delay: None, permanent: true }),
        ("extend", leased(), Call::Extend { token: 0, seconds: 400 }),
        ("reschedule", vec![due(0)], Call::Reschedule { task: 0, delay: 20_000 }),
        ("redrive", dead(), Call::Redrive(0)),
        ("get", vec![due(0)], Call::Get(0)),
        ("list", vec![due(0), due(1)], Call::Look("/api/v1/task?limit=1")),
        ("queues", mixed(), Call::Look("/api/v1/queues")),
        ("health", vec![], Call::Look("/health")),
        ("refresh", mixed(), Call::Refresh),
        ("refresh flushed", forgotten(), Call::Refresh),
        ("recover", mixed(), Call::Recover),
        ("recover flushed", forgotten(), Call::Recover),
        ("dispatch", vec![add(1, content(2, 0)), pushed(Act::Succeed)], Call::Dispatch),
        ("dispatch failing", vec![pushed(Act::Retry)], Call::Dispatch),
        ("dispatch giving up", vec![pushed(Act::GiveUp)], Call::Dispatch),
        ("dispatch flushed", vec![pushed(Act::Succeed), one(Call::FlushAll)], Call::Dispatch),
    ]
}

/// One world with a service that reaches its stores through proxies.
struct Bench {
    world: World,
    dynamodb: FaultProxy,
    redis: FaultProxy,
    client: aws_sdk_dynamodb::Client,
}

impl Bench {
    async fn new() -> Self {
        let world = World::with(Settings { index_shards: 2, ..Settings::default() }).await;
        let dynamodb =
            FaultProxy::before(Store::DynamoDb(world.endpoint.trim_start_matches("http://").to_owned())).await;
        let redis = FaultProxy::before(Store::Redis(world.redis.socket())).await;
        let client = connect_to(&format!("http://{}", dynamodb.address())).await;
        Self { world, dynamodb, redis, client }
    }

    async fn new_in_turn(turn: &tokio::sync::Mutex<()>) -> Self {
        let _turn = turn.lock().await;
        Self::new().await
    }

    /// A new process: with a link to Redis of its own.
    async fn service(&self) -> Arc<Service> {
        let redis_urls = vec![format!("redis://{}", self.redis.address())];
        let config = Config { redis_urls, ..self.world.service.config.clone() };
        let clock = Clock::Manual(self.world.clock.clone());
        let service = Service::new(self.client.clone(), clock, config).expect("a valid configuration");
        // What is broken is the call, not the first contact.
        find_redis(&service).await;
        Arc::new(service)
    }

    /// Runs one case; tells the requests that the call made, by store.
    async fn run(&mut self, case: &Case, name: String) -> Result<[Vec<String>; 2], Wrong> {
        let service = self.service().await;
        let mut run = Run::new(&mut self.world, name);
        run.thorough = false;
        let (_, before, call) = &operations()[case.operation];
        for action in before {
            run.act(action).await?;
        }
        // So that each case makes the same requests.
        run.world.redis.run("SCRIPT FLUSH");
        let proxy = if case.redis { &self.redis } else { &self.dynamodb };
        let step = run.resolve(call);
        self.dynamodb.arm(None);
        self.redis.arm(None);
        proxy.arm(case.plan);
        let started = Instant::now();
        let done = run.perform(service.clone(), step.clone()).await;
        let took = started.elapsed();
        let seen = [self.dynamodb.seen(), self.redis.seen()];
        self.dynamodb.arm(None);
        self.redis.arm(None);
        if took > LIMIT && !is_tick(call) {
            return Err(Wrong::late(format!("the call took {took:?}")));
        }
        if let Some((status @ (0..=428 | 500), word)) = &done.failure {
            return Err(format!("the call failed with {status} {word}").into());
        }
        run.log.push(format!("BROKEN {step:?} in {took:?}: {:?} {:?}", done.failure, done.events));
        believe_broken(&mut run, &step, &done)?;
        run.note_tokens(&done);
        run.forget();
        // Redis may have been told nothing, or of a lease that nobody has.
        run.muddled_until = run.now() + 60_000;
        let failed = has_failed(&done);
        if case.plan.is_none() && failed {
            return Err(Wrong::late(format!("nothing was broken, but: {:?} {:?}", done.failure, done.events)));
        }
        if failed {
            // The same process, its stores well again; it leaves a Redis that has just failed alone for a moment.
            let mut again = done;
            for _ in 0..3 {
                find_redis(&service).await;
                // A refresh that could not release its lock comes again when that has ended.
                run.world.redis.run("DEL lock:refresh");
                again = run.perform(service.clone(), step.clone()).await;
                run.log.push(format!("AGAIN: {:?} {:?}", again.failure, again.events));
                believe_broken(&mut run, &step, &again)?;
                run.note_tokens(&again);
                if !has_failed(&again) {
                    break;
                }
            }
            if has_failed(&again) {
                return Err(Wrong::late(format!("the repeat failed: {:?} {:?}", again.failure, again.events)));
            }
            // Refused unbroken too; and a redrive that was applied finds no dead task.
            let may_be_refused = ["add other", "add batch", "redrive"].contains(&case.name());
            let refused = |said: &Said| matches!(said, Said::Refused(_));
            if !may_be_refused && again.events.iter().any(|(_, _, said)| refused(said)) {
                return Err(format!("the repeat was refused: {:?}", again.events).into());
            }
        }
        run.world.redis.run("DEL lock:refresh");
        run.finish().await.map_err(|wrong| format!("{wrong}\n{}", run.log.join("\n")))?;
        Ok(seen)
    }
}

/// A machine that stands still for a moment makes a ping late, and a link that has failed rests for a moment.
async fn find_redis(service: &Service) {
    let patience = Patience::new("Redis found", Duration::from_millis(5));
    while service.index.ping().await.is_err() {
        patience.look_again().await;
    }
}

fn has_failed(done: &Done) -> bool {
    done.failure.is_some() || done.events.iter().any(|(_, _, said)| is_failure(said))
}

fn is_failure(said: &Said) -> bool {
    matches!(said, Said::Refused(word) if ["unavailable", "throttled", "internal"].contains(&word.as_str()))
}

/// What a broken call may have done: what it said, and where it said nothing, all or nothing.
fn believe_broken(run: &mut Run<'_>, step: &Step, done: &Done) -> Result<(), String> {
    let now = run.now();
    let lost = |lane| Op::Lease { lane, until: now + 30_000, token: "lost".to_owned() };
    for (task, op, said) in &done.events {
        let belief = &run.beliefs[*task];
        let next = match op {
            _ if is_failure(said) => perhaps(belief, op, now),
            // It may not have been able to settle it.
            Op::Run(_) => perhaps(belief, op, now),
            _ => after(belief, op, said, now),
        };
        if next.is_empty() {
            return Err(format!("task {task}: {op:?} {said:?} does not fit {:?}", at(belief, now)));
        }
        run.beliefs[*task] = next;
    }
    let unsaid = |task: &usize| !done.events.iter().any(|(of, _, _)| of == task);
    for task in (0..run.beliefs.len()).filter(unsaid) {
        let ops: Vec<Op> = match step {
            Step::Other(Call::Poll { lane, seconds, .. }) => {
                vec![Op::Lease { lane: *lane, until: now + seconds * 1_000, token: "lost".to_owned() }]
            }
            Step::Other(Call::PollType { .. }) => vec![lost(0), lost(1)],
            Step::Other(Call::Take(lane)) => vec![Op::Take(*lane)],
            Step::Other(Call::Dispatch) => vec![lost(2)],
            _ if done.failure.is_none() => vec![],
            Step::Add(tasks) => ops_of(tasks, task, |content| Op::Add(content.clone())),
            Step::Ack(settled) => ops_of(settled, task, |token| Op::Ack(token.clone())),
            Step::Nack { task: of, token, delay, permanent } if *of == task => {
                vec![Op::Nack { token: token.clone(), delay: *delay, permanent: *permanent }]
            }
            Step::Extend { task: of, token, seconds } if *of == task => {
                vec![Op::Extend(token.clone(), now + seconds * 1_000)]
            }
            Step::Other(Call::Cancel { task: of, .. }) if *of == task => vec![Op::Cancel],
            Step::Other(Call::Reschedule { task: of, delay }) if *of == task => vec![Op::Reschedule(now + delay)],
            Step::Other(Call::Redrive(of)) if *of == task => vec![Op::Redrive],
            _ => vec![],
        };
        for op in ops {
            run.beliefs[task] = perhaps(&run.beliefs[task], &op, now);
        }
    }
    Ok(())
}

fn ops_of<T>(tasks: &[(usize, T)], task: usize, op: impl Fn(&T) -> Op) -> Vec<Op> {
    tasks.iter().filter(|(of, _)| *of == task).map(|(_, with)| op(with)).collect()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    operation: usize,
    redis: bool,
    plan: Option<Plan>,
}

impl Case {
    fn name(&self) -> &'static str {
        operations()[self.operation].0
    }
}

#[derive(Debug)]
struct Wrong {
    what: String,
    /// A time limit was met, which on a busy machine well stores do too; else a promise that no load excuses.
    late: bool,
}

impl Wrong {
    fn late(what: String) -> Self {
        Self { what, late: true }
    }
}

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self { what, late: false }
    }
}

/// What some cases came to: requests by case, and what went wrong.
type Outcome = (Case, Result<[Vec<String>; 2], Wrong>);

async fn run_all(cases: Vec<Case>, worlds: usize) -> Vec<Outcome> {
    let open = Arc::new(Mutex::new(cases.into_iter().enumerate().collect::<Vec<_>>()));
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    // All at once they would make each other late.
    let turn = Arc::new(tokio::sync::Mutex::new(()));
    let workers = (0..worlds).map(|_| {
        let (open, outcomes, turn) = (open.clone(), outcomes.clone(), turn.clone());
        tokio::spawn(async move {
            let mut bench = Bench::new_in_turn(&turn).await;
            loop {
                let next = open.lock().expect("no panic").pop();
                let Some((number, case)) = next else { return };
                let outcome = bench.run(&case, format!("c{number}")).await;
                if let Err(error) = &outcome {
                    println!("{} {case:?}: {}\n", case.name(), error.what);
                    bench = Bench::new_in_turn(&turn).await;
                }
                outcomes.lock().expect("no panic").push((case, outcome));
            }
        })
    });
    for worker in futures::future::join_all(workers).await {
        worker.expect("no panic");
    }
    let mut outcomes = outcomes.lock().expect("no panic");
    std::mem::take(&mut *outcomes)
}

fn is_tick(call: &Call) -> bool {
    matches!(call, Call::Refresh | Call::Recover | Call::Dispatch)
}

/// Breaks every call, or every tick, at every step of one store in every way.
async fn break_everything(redis: bool, ticks: bool) -> usize {
    let started = Instant::now();
    let whole = (0..operations().len())
        .filter(|operation| is_tick(&operations()[*operation].2) == ticks)
        .map(|operation| Case { operation, redis, plan: None })
        .collect();
    let mut cases = Vec::new();
    let mut wrong = Vec::new();
    for (case, outcome) in run_all(whole, 1).await {
        match outcome {
            Ok(seen) => {
                let requests = &seen[usize::from(redis)];
                println!("{}: {}", case.name(), requests.join(" "));
                for step in 0..requests.len() {
                    // A row of equal requests is a pipeline, or shards side by side: its ends will do.
                    let like = |other: Option<&String>| other == Some(&requests[step]);
                    if step > 0 && like(requests.get(step - 1)) && like(requests.get(step + 1)) {
                        continue;
                    }
                    for how in Break::ALL {
                        // The many steps of ticks are broken in the ways that differ most.
                        if redis && requests.len() > 12 && [Break::Throttle, Break::Cut].contains(&how) {
                            continue;
                        }
                        cases.push(Case { plan: Some(Plan { step, how, on: false }), ..case });
                        // From there on: what repeats do not help against. Of Redis only that it is gone.
                        let on = !redis || requests.len() <= 12;
                        if on && (how == Break::Refuse || !redis && [Break::Throttle, Break::Late].contains(&how)) {
                            cases.push(Case { plan: Some(Plan { step, how, on: true }), ..case });
                        }
                    }
                }
            }
            Err(error) => wrong.push((case, error)),
        }
    }
    assert!(wrong.is_empty(), "unbroken: {wrong:#?}");
    // The slow ones first, so that they wait together.
    cases.sort_by_key(|case| case.plan.is_some_and(|plan| plan.how == Break::Late));
    let count = cases.len();
    let mut by_operation = BTreeMap::new();
    let mut broken = 0;
    // What a busy machine made late is tried again on a quieter one: a call can then end before it comes to the step.
    for worlds in [WORLDS, 2, 1] {
        for (case, outcome) in run_all(std::mem::take(&mut cases), worlds).await {
            match outcome {
                Ok(seen) if seen[usize::from(redis)].len() <= case.plan.expect("a plan").step => cases.push(case),
                Err(wrong) if wrong.late && worlds > 1 => cases.push(case),
                Ok(_) => {
                    broken += 1;
                    *by_operation.entry(case.name()).or_insert(0) += 1;
                }
                Err(error) => wrong.push((case, error)),
            }
        }
    }
    println!("{broken} cases of {count} in {:?}: {by_operation:?}", started.elapsed());
    assert!(wrong.is_empty(), "{} of {count} cases", wrong.len());
    broken
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_step_of_dynamodb_breaks_in_a_call_nothing_is_lost_or_doubled() {
    let cases = break_everything(false, false).await;
    assert!(cases >= DYNAMODB_CALLS, "{cases}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_step_of_dynamodb_breaks_in_a_tick_nothing_is_lost_or_doubled() {
    let cases = break_everything(false, true).await;
    assert!(cases >= DYNAMODB_TICKS, "{cases}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_step_of_redis_breaks_in_a_call_nothing_is_lost_or_doubled() {
    let cases = break_everything(true, false).await;
    assert!(cases >= REDIS_CALLS, "{cases}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_step_of_redis_breaks_in_a_tick_nothing_is_lost_or_doubled() {
    let cases = break_everything(true, true).await;
    assert!(cases >= REDIS_TICKS, "{cases}");
}
