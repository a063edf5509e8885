//! The embedded DynamoDB alone: the three writes of a task's life, without HTTP, Redis and the API around them.
//!
//! What the runner does in a second can come near this, and not beyond it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bench::process::processor_time;
use bench::table::Table;
use local::EmbeddedDatabase;
use punctual_core::backoff::Backoff;
use punctual_core::clock::Clock;
use punctual_core::table::TaskTable;
use punctual_core::task::{Content, DEFAULT_MAX_ATTEMPTS, Task, TaskType, random_task_id, random_token};
use tempfile::TempDir;

/// Writes under way at once.
const AT_ONCE: usize = 64;
const SHARDS: u16 = 16;
const LEASE_MS: i64 = 30_000;
const RETENTION_MS: i64 = 604_800_000;

/// Inserts, leases and acknowledges `tasks` tasks through the SDK, on a file.
pub async fn measure(tasks: usize) -> Table {
    let title = format!("The embedded DynamoDB alone: {tasks} tasks, {AT_ONCE} writes at once");
    let mut table = Table::new(title, &["write", "a second", "processor time, µs"]);
    let folder = TempDir::new().expect("a temporary folder");
    let database = EmbeddedDatabase::open(folder.path(), None).await.expect("a database");
    tests::create_table(&database.client(), "tasks").await;
    let store = TaskTable::new(database.client(), "tasks".to_owned(), SHARDS);
    let store = Arc::new(store);
    let tasks: Arc<[Task]> = (0..tasks).map(|_| task()).collect();
    let until = Clock::System.now().plus_ms(LEASE_MS);

    let mut row = |name: &str, (took, used): (Duration, Duration)| {
        let each = used.as_secs_f64() * 1e6 / tasks.len() as f64;
        table.row(vec![
            name.to_owned(),
            format!("{:.0}", tasks.len() as f64 / took.as_secs_f64()),
            format!("{each:.0}"),
        ]);
    };
    let added = each(&store, &tasks, |store, task| async move {
        drop(store.insert(&task, Clock::System.now()).await.expect("added"));
    });
    row("add", added.await);
    let leased = each(&store, &tasks, move |store, task| async move {
        let leased = store.lease(&task.id, &task.lane(), &task.write_id, until, Clock::System.now()).await;
        leased.expect("an answer").expect("leased");
    });
    row("lease", leased.await);
    let acknowledged = each(&store, &tasks, |store, task| async move {
        let ended = store.acknowledge(&task.id, &task.write_id, Clock::System.now()).await;
        ended.expect("an answer").expect("acknowledged");
    });
    row("ack", acknowledged.await);
    database.stop().await;
    table
}

/// Does `write` to each task; the time that passed, and that of the processors.
async fn each<Writing: Future<Output = ()> + Send + 'static>(
    store: &Arc<TaskTable>,
    tasks: &Arc<[Task]>,
    write: impl Fn(Arc<TaskTable>, Task) -> Writing + Clone + Send + 'static,
) -> (Duration, Duration) {
    let (started, before) = (Instant::now(), processor_time(std::process::id()));
    let writers = (0..AT_ONCE).map(|first| {
        let (store, tasks, write) = (store.clone(), tasks.clone(), write.clone());
        tokio::spawn(async move {
            for task in tasks.iter().skip(first).step_by(AT_ONCE) {
                write(store.clone(), task.clone()).await;
            }
        })
    });
    futures::future::join_all(writers).await.into_iter().for_each(|writer| writer.expect("a writer ends well"));
    (started.elapsed(), processor_time(std::process::id()) - before)
}

fn task() -> Task {
    let now = Clock::System.now();
    let parameters = format!("{{\"pad\":\"{}\"}}", "x".repeat(88));
    let content = Content {
        task_type: TaskType::from_name("bench").expect("a name"),
        priority: 0,
        parameters: Some(serde_json::value::RawValue::from_string(parameters).expect("JSON")),
        handler: None,
        max_attempts: DEFAULT_MAX_ATTEMPTS,
        backoff: Backoff::default(),
        retention_ms: RETENTION_MS,
        timeout_ms: None,
    };
    Task::new(random_task_id(), content, random_token(), now, now)
}
