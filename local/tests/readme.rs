//! What README.md shows is what happens.

use std::path::Path;
use std::process::Command;

use local::template::Template;
use punctual_core::time::Timestamp;
use tempfile::TempDir;
use tests::Runner;

const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");
const README: &str = include_str!("../../README.md");

/// Ends the runner of the test instead of every runner on the machine.
const PKILL: &str = r#"pkill() { [ "$*" = "-9 -x punctual" ] && kill -9 "$RUNNER"; }; "#;
/// What the README shows and no test runs by its text: it installs, builds, deploys, or goes on for ever. `make run` in
/// the tour is the runner, started by the test; `examples/tests/run.rs` runs the examples and the webhook.
const NOT_RUN: [&str; 14] = [
    "$ make run      # builds, and serves everything on 127.0.0.1:3000",
    "$ make test     # sets everything up, and runs all checks and tests",
    "$ make run",
    "$ make run",
    "$ export WEBHOOK_SECRET=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "$ export WEBHOOK_ALLOWED_HOSTS=127.0.0.1 WEBHOOK_ALLOW_HTTP=true WEBHOOK_ALLOW_PRIVATE=true",
    "$ make run",
    "$ export WEBHOOK_SECRET=whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "$ cargo run -p examples --bin webhook_receiver",
    r#"$ curl -s http://127.0.0.1:3000/api/v1/task/add -d '{"taskId": "mail-1", "taskType": "mail", "delay": 1000,"#,
    r#"$ make run ARGS="--manual-clock 1800000000000 --data-dir /tmp/my-test""#,
    "$ cargo run -p examples --bin order_auto_cancel     # added on order, cancelled on payment",
    "$ cargo run -p examples --bin call_retry            # growing delays until a threshold, then dead",
    "$ cargo run -p examples --bin article_publishing    # the poll-each-second consumer, by GET poll",
];

/// A section's text.
fn section(title: &str) -> &'static str {
    let rest = README.split(&format!("\n## {title}\n")).nth(1).unwrap_or_else(|| panic!("there is no section {title}"));
    rest.split("\n## ").next().unwrap_or_default()
}

/// Runs commands against the runner at `address`; their output.
fn run(commands: &str, address: &str, folder: &Path, runner: u32) -> String {
    let commands = PKILL.to_owned() + &commands.replace("127.0.0.1:3000", address);
    let ran =
        Command::new("bash").args(["-c", &commands]).env("RUNNER", runner.to_string()).current_dir(folder).output();
    let ran = ran.expect("bash runs");
    assert!(ran.status.success(), "{commands}{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).expect("UTF-8")
}

/// The fenced blocks of a markdown text: language and content.
fn blocks(text: &str) -> Vec<(&str, String)> {
    let mut blocks: Vec<(&str, String)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(language) if !inside => {
                blocks.push((language, String::new()));
                inside = true;
            }
            Some(_) => inside = false,
            None if inside => {
                let (_, content) = blocks.last_mut().expect("inside one");
                content.push_str(line);
                content.push('\n');
            }
            None => {}
        }
    }
    blocks
}

/// The text with what differs from run to run made the same: times, tokens.
fn normalised(text: &str) -> String {
    let mut normal = String::new();
    for (index, part) in text.split("\"leaseToken\":\"").enumerate() {
        let part = if index == 0 { part } else { part.split_once('"').map_or("", |(_, rest)| rest) };
        let mut digits = 0;
        for character in part.chars() {
            digits = if character.is_ascii_digit() { digits + 1 } else { 0 };
            normal.push(character);
            if digits == 13 {
                normal.truncate(normal.len() - 13);
                normal.push_str("<time>");
            }
        }
    }
    normal
}

#[test]
fn the_tour_goes_as_the_readme_says() {
    let (data, scratch) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let mut runner = Runner::start(PUNCTUAL, "127.0.0.1:0", data.path(), &[]);
    let address = runner.url.strip_prefix("http://").expect("an address").to_owned();
    let mut pending: Option<String> = None;
    let mut compared = 0;
    for (language, content) in blocks(section("Five-minute tour")) {
        match language {
            "sh" => {
                assert_eq!(pending, None, "each block of commands is followed by its output");
                pending = Some(run(&content, &address, scratch.path(), runner.pid()));
            }
            "text" => {
                let output = pending.take().expect("output follows commands");
                assert_eq!(normalised(&output), normalised(&content));
                compared += 1;
            }
            // The runner is started by hand here; the second time after it was killed.
            "console" if compared > 0 => {
                drop(runner);
                runner = Runner::start(PUNCTUAL, &address, data.path(), &[]);
            }
            _ => {}
        }
    }
    assert_eq!((pending, compared), (None, 5));
}

#[tokio::test(flavor = "multi_thread")]
async fn time_moves_as_the_readme_says() {
    let (data, scratch) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let options = local::Options {
        listen: "127.0.0.1:0".to_owned(),
        data_dir: data.path().to_owned(),
        manual_clock: Some(Timestamp::from_ms(1_800_000_000_000)),
        ..local::Options::default()
    };
    let runner = local::start(options).await.expect("the runner starts");
    let blocks = blocks(section("Testing your own application"));
    let [("console", _), ("sh", commands), ("text", wanted)] = &blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(run(commands, &runner.address.to_string(), scratch.path(), 0), *wanted);
    runner.stop().await;
}

#[test]
fn every_command_is_run_or_known_not_to_be() {
    let shown = blocks(README).into_iter().filter(|(language, _)| *language == "console");
    let commands: String = shown.map(|(_, content)| content).collect();
    let commands: Vec<&str> = commands.lines().filter(|line| line.starts_with("$ ")).collect();
    assert_eq!(commands, NOT_RUN);
    let run = ["Five-minute tour", "Testing your own application"].map(section);
    let in_sections: usize = run.iter().map(|text| text.matches("```sh\n").count()).sum();
    assert_eq!(README.matches("```sh\n").count(), in_sections, "only these sections' commands are run");
}

#[test]
fn every_route_and_every_variable_of_the_template_is_in_the_readme() {
    let template = Template::embedded().expect("template.yaml is readable");
    let configuration = section("Configuration");
    for function in &template.functions {
        for route in &function.routes {
            assert!(section("The API").contains(&route.path), "{}", route.path);
        }
        for (name, default) in &function.variables {
            let row = configuration.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("{name} has no row"));
            let default = default.as_deref().filter(|_| !["RUST_LOG", "REDIS_URL"].contains(&name.as_str()));
            let wanted = match default {
                Some("") => "empty",
                Some(value) => value,
                None => continue,
            };
            let shown = row.split(" | ").nth(2).unwrap_or_default();
            assert!(shown.contains(wanted), "{name} is {wanted}, not {shown}");
        }
    }
}
