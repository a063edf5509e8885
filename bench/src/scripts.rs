//! The Redis scripts alone, beside what the same server does with a script that only pops and adds.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Connection, Script};
use tempfile::TempDir;

use bench::table::{Table, percentile};

/// Ids that are moved in each measurement.
const IDS: usize = 100_000;
/// Each figure is the median of so many runs.
const RUNS: usize = 5;
/// Pops the lowest ids of one sorted set and adds them to another: the least that a lease can be.
const BARE: &str = "
local ids = redis.call('ZPOPMIN', KEYS[1], ARGV[2])
local add = {}
for i = 1, #ids, 2 do
  add[#add + 1] = ARGV[3]
  add[#add + 1] = ids[i]
end
return redis.call('ZADD', KEYS[3], unpack(add))";

struct Server {
    child: Child,
    _folder: TempDir,
    connection: Connection,
}

impl Server {
    fn start() -> Self {
        let folder = TempDir::new().expect("a temporary folder");
        let socket = folder.path().join("redis.sock");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&socket)
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed: make setup");
        let client = redis::Client::open(format!("redis+unix://{}", socket.display())).expect("a URL");
        let connection = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            client.get_connection().ok()
        });
        Self { child, _folder: folder, connection: connection.expect("redis-server answers") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ids a second, due -> leased, in batches, by `lease_due.lua` and by the bare script; and by queue length.
pub fn measure() -> Table {
    let mut table = Table::new(
        format!("Scripts: due -> leased, ids a second over one connection (median of {RUNS})"),
        &["batch", "queue length", "lease_due.lua", "bare pop and add", "ratio"],
    );
    let mut server = Server::start();
    let ours = Script::new(include_str!("../../shared/src/lua/lease_due.lua"));
    let bare = Script::new(BARE);
    for (batch, length) in [(1, IDS), (10, IDS), (100, IDS), (100, IDS * 10)] {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            a.push(rate(&mut server.connection, &ours, batch, length));
            b.push(rate(&mut server.connection, &bare, batch, length));
        }
        a.sort_by(f64::total_cmp);
        b.sort_by(f64::total_cmp);
        let (a, b) = (percentile(&a, 0.5), percentile(&b, 0.5));
        let cells =
            [batch.to_string(), length.to_string(), format!("{a:.0}"), format!("{b:.0}"), format!("{:.2}", a / b)];
        table.row(cells.to_vec());
    }
    table
}

fn rate(connection: &mut Connection, script: &Script, batch: usize, length: usize) -> f64 {
    redis::cmd("FLUSHALL").exec(connection).expect("FLUSHALL");
    for chunk in (0..length).collect::<Vec<_>>().chunks(10_000) {
        let mut add = redis::cmd("ZADD");
        add.arg("future");
        for id in chunk {
            add.arg(id).arg(format!("{:016}", id * 7_919 % length));
        }
        add.exec(connection).expect("ZADD");
    }
    // Batches of 1 move fewer ids in the same time.
    let calls = (IDS / batch).min(20_000);
    let started = Instant::now();
    for _ in 0..calls {
        let mut call = script.key("future");
        call.key("topic").key("lease").arg(i64::from(u32::MAX)).arg(batch).arg(i64::from(u32::MAX) * 2);
        let _: redis::Value = call.invoke(connection).expect("the script runs");
    }
    (calls * batch) as f64 / started.elapsed().as_secs_f64()
}
