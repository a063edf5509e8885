//! What a refresh costs, by what is stored and by what is due: the real function, as Lambda runs it.

use std::time::{Duration, Instant};

use bench::client::now_ms;
use bench::process::peak_memory;
use bench::runner::binary;
use bench::table::{Table, percentile};
use punctual_core::clock::{Clock, ManualClock};
use punctual_core::time::Timestamp;
use serde_json::{Value, json};
use tests::lambda_runtime::{Function, Outcome, variables};
use tests::{Settings, World, call};

/// Each figure of one kind is the median of so many runs.
const RUNS: usize = 3;
/// Shards of the index, as in the template.
const SHARDS: u16 = 16;
/// Tasks that are due within the window while others wait beyond it.
const DUE: usize = 1_000;
/// The longest that one tick may take.
const TICK_WITHIN: Duration = Duration::from_secs(120);
/// Due times beyond the window, in milliseconds from now.
const FAR_MS: i64 = 3_600_000;
/// Due times within the window, and long enough from now that they are not yet due when they are loaded.
const NEAR_MS: i64 = 200_000;
/// Due times of what waits since an outage, in milliseconds from now.
const OVERDUE_MS: i64 = -60_000;
/// Queues beside the one with all the work.
const OTHER_QUEUES: usize = 199;
/// Tasks of each of those.
const IN_OTHER_QUEUES: usize = 5;
/// Tasks that are taken from the large queue to see their order.
const TAKEN: usize = 10_000;

struct Bench {
    world: World,
    refresh: Function,
}

impl Bench {
    async fn start() -> Self {
        let world = World::with(settings()).await;
        let variables = variables(&world.endpoint, &world.redis.url());
        let program = binary("refresh");
        let refresh = Function::start("refresh", program.to_str().expect("UTF-8"), &variables).await;
        Self { world, refresh }
    }

    /// Stores `count` tasks of the queue `name`, all due in the second from `due_ms` on.
    async fn store(&self, name: &str, count: usize, due_ms: i64) {
        let first = format!("{name}-0");
        let task = json!({"taskId": first, "taskType": name, "executeTime": due_ms, "parameters": {"number": 7}});
        self.world.add(task).await;
        let spread = |n: usize| due_ms + (n * 1_000 / count) as i64;
        self.world.import_like(&first, (1..count).map(|n| (format!("{name}-{n}"), spread(n)))).await;
    }

    async fn tick(&self) -> (Duration, Value) {
        let started = Instant::now();
        match self.refresh.invoke_within("{}", TICK_WITHIN).await {
            Outcome::Result(report) => (started.elapsed(), report),
            Outcome::Failure(failure) => panic!("refresh: {failure}"),
        }
    }

    /// Empties Redis, and tells its memory then, in bytes.
    fn empty_redis(&self) -> f64 {
        self.world.redis.run("FLUSHALL");
        self.redis_bytes()
    }

    fn redis_bytes(&self) -> f64 {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut self.world.redis.connection()).expect("INFO");
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        line.expect("INFO tells the memory").trim().parse().expect("a number")
    }
}

fn in_ms(ms: i64) -> i64 {
    now_ms() as i64 + ms
}

/// A refresh with [`DUE`] tasks to load, by what is stored beyond the window.
pub async fn by_what_is_stored(most: usize) -> Table {
    let title = format!("Refresh with {DUE} tasks due within the window, by what is stored (median of {RUNS})");
    let mut table = Table::new(title, &["stored", "ms", "Redis bytes a stored task"]);
    for stored in sizes(most) {
        let bench = Bench::start().await;
        bench.store("far", stored, in_ms(FAR_MS)).await;
        bench.tick().await;
        // After the first tick, since connections and scripts take their place once.
        let empty = bench.empty_redis();
        bench.tick().await;
        let bytes = (bench.redis_bytes() - empty).max(0.0) / stored as f64;
        bench.store("near", DUE, in_ms(NEAR_MS)).await;
        let mut times = Vec::new();
        for _ in 0..RUNS {
            bench.empty_redis();
            let (took, report) = bench.tick().await;
            assert_eq!((&report["loaded"], &report["more"]), (&json!(DUE), &json!(false)), "{report}");
            times.push(took.as_secs_f64() * 1_000.0);
        }
        times.sort_by(f64::total_cmp);
        table.row(vec![stored.to_string(), format!("{:.0}", percentile(&times, 0.5)), format!("{bytes:.1}")]);
    }
    table
}

/// Refreshes until all is loaded, by what is due in one second of one queue, with 199 other queues beside it.
pub async fn by_what_is_due(most: usize) -> Table {
    let title = format!("Refresh by what is due in one second of one queue, with {OTHER_QUEUES} others beside it");
    let columns = ["due", "ticks", "seconds", "tasks a second", "Redis bytes a task", "memory, MB"];
    let mut table = Table::new(title, &columns);
    for due in sizes(most) {
        let bench = Bench::start().await;
        // As after an outage: the large queue has the older tasks, and still must not hold up the others.
        bench.store("large", due, in_ms(OVERDUE_MS)).await;
        let near_ms = in_ms(NEAR_MS);
        for queue in 0..OTHER_QUEUES {
            bench.store(&format!("other{queue}"), IN_OTHER_QUEUES, near_ms).await;
        }
        let empty = bench.empty_redis();
        let all = due + OTHER_QUEUES * IN_OTHER_QUEUES;
        let (mut ticks, mut seconds, mut loaded) = (0, 0.0, 0);
        loop {
            let (took, report) = bench.tick().await;
            ticks += 1;
            seconds += took.as_secs_f64();
            loaded += report["loaded"].as_u64().expect("a number") as usize;
            if ticks == 1 {
                others_are_there(&bench, near_ms + 2_000).await;
            }
            if report["more"] == false {
                break;
            }
        }
        assert_eq!(loaded, all, "each task is loaded once");
        let bytes = (bench.redis_bytes() - empty) / due as f64;
        let memory = peak_memory(bench.refresh.pid()) as f64 / 1e6;
        taken_in_order(&bench, due.min(TAKEN)).await;
        table.row(vec![
            due.to_string(),
            ticks.to_string(),
            format!("{seconds:.1}"),
            format!("{:.0}", loaded as f64 / seconds),
            format!("{bytes:.0}"),
            format!("{memory:.0}"),
        ]);
    }
    table
}

/// After one tick, whatever is left of the large queue, every other queue gives all its tasks.
async fn others_are_there(bench: &Bench, now_ms: i64) {
    let clock = Clock::Manual(ManualClock::new(Timestamp::from_ms(now_ms)));
    let service = bench.world.another(clock, &settings()).await;
    for queue in 0..OTHER_QUEUES {
        let polled = call(&service, "POST", &format!("/api/v1/task/poll/other{queue}/0"), json!({"max": 100})).await;
        let count = polled.data().as_array().expect("an array").len();
        assert_eq!(count, IN_OTHER_QUEUES, "other{queue}");
    }
}

/// The large queue gives its tasks in due order.
async fn taken_in_order(bench: &Bench, count: usize) {
    let service = bench.world.another(Clock::System, &settings()).await;
    let (mut taken, mut last) = (0, 0);
    while taken < count {
        let polled = call(&service, "POST", "/api/v1/task/poll/large/0", json!({"max": 100})).await;
        let polled = polled.data().as_array().expect("an array").clone();
        assert!(!polled.is_empty(), "{taken} of {count}");
        for task in &polled {
            let due = task["executeTime"].as_i64().expect("a time");
            assert!(due >= last, "{due} came after {last}");
            last = due;
        }
        taken += polled.len();
    }
}

fn settings() -> Settings {
    Settings { index_shards: SHARDS, ..Settings::default() }
}

fn sizes(most: usize) -> impl Iterator<Item = usize> {
    [1_000, 10_000, 100_000, 1_000_000].into_iter().filter(move |size| *size <= most)
}
