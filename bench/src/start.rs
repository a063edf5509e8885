//! How large each function is, and how long it takes from the start of its process to its first request for an event,
//! beside a function that does nothing.

use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bench::runner::binary;
use bench::table::Table;

const FUNCTIONS: [&str; 9] = ["bare", "add", "cancel", "poll", "settle", "inspect", "refresh", "recover", "dispatch"];
/// How often each is started.
const STARTS: usize = 30;

/// Sizes and start times of the functions' binaries.
pub fn measure() -> Table {
    let title =
        format!("Functions: size, and start of the process to its first request for an event ({STARTS} starts)");
    let columns = ["function", "built by", "binary, MB", "zip, MB", "start, ms (median)", "90% within", "times bare"];
    let mut table = Table::new(title, &columns);
    let mut bare = None;
    for name in FUNCTIONS {
        let deployed = deployed(name);
        let builder = if deployed.exists() { "sam build" } else { "cargo build" };
        let program = if deployed.exists() { deployed } else { binary(name) };
        let size = std::fs::metadata(&program).expect("it is there").len();
        let mut starts: Vec<Duration> = (0..STARTS).map(|_| start(name, &program)).collect();
        starts.sort();
        let (median, ninth) = (starts[STARTS / 2], starts[STARTS * 9 / 10]);
        let times = median.as_secs_f64() / bare.get_or_insert(median).as_secs_f64();
        table.row(vec![
            name.to_owned(),
            builder.to_owned(),
            megabytes(size),
            zipped(&program).map_or_else(|| "no `zip` here".to_owned(), megabytes),
            milliseconds(median),
            milliseconds(ninth),
            format!("{times:.1}"),
        ]);
    }
    table
}

/// Where `sam build` leaves a function as it is deployed, which is smaller than what cargo builds here.
fn deployed(name: &str) -> PathBuf {
    let (first, rest) = name.split_at(1);
    format!(".aws-sam/build/{}{rest}Function/bootstrap", first.to_uppercase()).into()
}

fn megabytes(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / 1e6)
}

fn milliseconds(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1_000.0)
}

/// The size of what would be uploaded.
fn zipped(program: &Path) -> Option<u64> {
    let zip = Command::new("zip").args(["-q", "-j", "-"]).arg(program).stderr(Stdio::null()).output().ok()?;
    zip.status.success().then_some(zip.stdout.len() as u64)
}

/// Starts a function under a Runtime API that has no event, and waits for its first request. No store is there: a
/// function that needs one to start would be seen here.
fn start(name: &str, program: &Path) -> Duration {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let runtime_api = listener.local_addr().expect("an address").to_string();
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("AWS_LAMBDA_RUNTIME_API", runtime_api)
        .env("AWS_LAMBDA_FUNCTION_NAME", name)
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "$LATEST")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", "none")
        .env("AWS_SECRET_ACCESS_KEY", "none")
        .env("TABLE_NAME", "tasks")
        .env("REDIS_URL", "redis://127.0.0.1:1")
        .stdout(Stdio::null());
    let started = Instant::now();
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let (mut connection, _) = listener.accept().expect("a connection");
    let mut request = [0; 64];
    let length = connection.read(&mut request).expect("a request");
    let took = started.elapsed();
    assert!(
        request[..length].starts_with(b"GET /2018-06-01/runtime/invocation/next "),
        "{name} asks for an event first"
    );
    process.kill().and_then(|()| process.wait().map(drop)).expect("it ends");
    took
}
