//! What SECURITY.md claims of the runner as a process, of the template, and of its own references.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use tests::{Watched, free_port, until_listening};

use crate::kill::PROGRAM;

const API_KEY: &str = "s3cret-api-key";
const REDIS_PASSWORD: &str = "s3cret-redis-password";
const WRONG_PASSWORD: &str = "s3cret-wrong-password";
/// `s3cret-webhook-secret-32-bytes-xx`, in base64.
const WEBHOOK_SECRET: &str = "whsec_czNjcmV0LXdlYmhvb2stc2VjcmV0LTMyLWJ5dGVzLXh4";

/// One request; the status and the whole answer.
fn send(port: u16, request: &str, key: Option<&str>, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the runner listens");
    let key = key.map_or_else(String::new, |key| format!("authorization: Bearer {key}\r\n"));
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{key}content-length: {length}");
    stream.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    (answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), answer)
}

/// Starts a runner that logs all it can to `log`; it ends with what is returned.
fn runner(log: &Path, data: &Path, port: u16, redis_url: &str) -> Watched {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" >"$LOG" 2>&1"#]).arg(&*PROGRAM);
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--data-dir"]).arg(data);
    command.env("LOG", log).env("RUST_LOG", "trace,dynoxide=info,hyper=info,sqlx=info").env("API_KEY", API_KEY);
    command.env("REDIS_URL", redis_url).env("WEBHOOK_SECRET", WEBHOOK_SECRET).env("WEBHOOK_ALLOWED_HOSTS", "a.example");
    Watched::start(&command, Stdio::null())
}

#[tokio::test]
async fn only_the_key_opens_the_runner_and_no_secret_is_in_its_output() {
    let folder = TempDir::new().expect("a folder");
    let redis_port = free_port();
    let mut redis = Command::new("redis-server");
    redis.args(["--bind", "127.0.0.1", "--port", &redis_port.to_string(), "--save", "", "--loglevel", "warning"]);
    redis.args(["--requirepass", REDIS_PASSWORD, "--dir"]).arg(folder.path());
    let _redis = Watched::start(&redis, Stdio::null());
    until_listening(redis_port).await;
    let mut logs = String::new();
    for (password, health) in [(REDIS_PASSWORD, "\"redis\":\"ok\""), (WRONG_PASSWORD, "\"redis\":\"not reached\"")] {
        let log = folder.path().join(format!("{password}.log"));
        let port = free_port();
        let url = format!("redis://default:{password}@127.0.0.1:{redis_port}");
        let runner = runner(&log, &folder.path().join(password), port, &url);
        until_listening(port).await;
        let task = r#"{"taskType": "t", "delay": 0, "parameters": {"card": "s3cret-parameter"}}"#;
        for wrong in [None, Some(""), Some("s3cret-api-ke"), Some("s3cret-api-key2")] {
            for request in ["POST /api/v1/task/add", "GET /api/v1/queues", "POST /local/tick/refresh", "GET /nowhere"] {
                let (status, answer) = send(port, request, wrong, task);
                assert_eq!(status, 401, "{request} with {wrong:?}: {answer}");
                assert!(answer.to_ascii_lowercase().contains("www-authenticate: bearer"), "{answer}");
            }
        }
        let (status, answer) = send(port, "GET /health", None, "");
        assert!(status == 200 && answer.contains(health) && !answer.contains("s3cret"), "{answer}");
        assert_eq!(answer.contains("\"redis\":\"ok\""), password == REDIS_PASSWORD, "{answer}");
        for request in ["POST /api/v1/task/add", "POST /api/v1/task/poll/t", "POST /local/tick/refresh"] {
            let body = if request.ends_with("add") { task } else { "" };
            let (status, answer) = send(port, request, Some(API_KEY), body);
            assert!(status == 200 || password == WRONG_PASSWORD && request.ends_with("refresh"), "{request}: {answer}");
        }
        drop(runner);
        logs += &std::fs::read_to_string(log).expect("a log");
    }
    assert!(logs.contains("tick") && logs.contains("Redis could not be told"), "the log is complete: {logs}");
    let leak = logs.lines().find(|line| line.contains("s3cret") || line.contains(&WEBHOOK_SECRET[6..30]));
    // The folders have the passwords' names in this test.
    let leak = leak.filter(|line| !line.contains("data:"));
    assert_eq!(leak, None);
}

#[test]
fn a_blank_key_is_refused_at_start() {
    let folder = TempDir::new().expect("a folder");
    let mut command = Command::new(&*PROGRAM);
    command.args(["--listen", "127.0.0.1:0", "--data-dir"]).arg(folder.path()).env("API_KEY", " ");
    let output = command.stdin(Stdio::null()).output().expect("the runner runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("API_KEY"), "{message}");
}

#[test]
fn the_template_lets_nobody_in_who_is_not_known() {
    let template = include_str!("../../template.yaml");
    let parameter = template.split_once("\n  Authorization:\n").expect("the parameter").1;
    let default = parameter.lines().find_map(|line| line.trim().strip_prefix("Default: "));
    assert_eq!(default, Some("AWS_IAM"));
    assert!(parameter.contains("    AllowedValues: [AWS_IAM, JWT]\n"), "there is no way to leave it open");
    let paths = template.split_once("\n        paths:\n").expect("the API's definition").1;
    let paths = paths.split_once("\n        components:\n").expect("the end of the paths").0;
    let mut count = 0;
    for route in paths.split("\n          /").map(|route| route.trim_start_matches([' ', '/'])) {
        let is_open = !route.contains("security: !If [TakesTokens, [{ Jwt: [] }], [{ Signed: [] }]]");
        assert_eq!(is_open, route.starts_with("health:"), "{route}");
        count += 1;
    }
    assert!(count > 10, "{count}");
}

/// Each test that a page names is there.
#[test]
fn every_test_that_a_page_names_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let docs = std::fs::read_dir(root.join("docs")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let pages: Vec<String> = ["SECURITY.md", "ARCHITECTURE.md", "README.md"]
        .map(|page| root.join(page))
        .into_iter()
        .chain(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")))
        .map(|page| std::fs::read_to_string(page).expect("a page"))
        .collect();
    let mut sources = String::new();
    let mut folders: Vec<_> = ["tests", "shared/src", "local/src", "functions"].map(|name| root.join(name)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = std::fs::File::open(&path).expect("a source");
                let lines = BufReader::new(file).lines().map_while(Result::ok);
                let is_of_folder = path.ends_with("mod.rs") || path.ends_with("tests.rs");
                let named = if is_of_folder { path.parent() } else { Some(path.as_path()) };
                let module = named.and_then(Path::file_stem).expect("a name").to_string_lossy().into_owned();
                for line in lines.filter(|line| line.contains("fn ")) {
                    let name = line.split_once("fn ").expect("filtered").1.split(['(', '<']).next().expect("a name");
                    sources += &format!("{module}::{name}\n");
                }
            }
        }
    }
    let words = pages.iter().flat_map(|page| page.split('`').skip(1).step_by(2));
    // Types, and the way in which a page says how it names tests, aside.
    let is_test =
        |word: &&str| word.contains("::") && word.starts_with(|c: char| c.is_lowercase()) && !word.contains(' ');
    let named: Vec<&str> = words.filter(is_test).filter(|word| *word != "file::test_name").collect();
    for name in &named {
        // The folder of a file does not matter.
        let last_two = name.rmatch_indices("::").nth(1).map_or(*name, |(at, _)| &name[at + 2..]);
        let found = match last_two.strip_suffix('*') {
            Some(prefix) => sources.lines().any(|line| line.starts_with(prefix)),
            None => sources.lines().any(|line| line == last_two),
        };
        assert!(found, "a page names {name}");
    }
    assert!(named.len() > 40, "{}", named.len());
}
