//! What README.md shows is what happens.

use std::process::Command;

use tempfile::TempDir;
use tests::Runner;

const PUNCTUAL: &str = env!("CARGO_BIN_EXE_punctual");
const README: &str = include_str!("../../README.md");

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
    let tour = README.split("## Five-minute tour").nth(1).and_then(|rest| rest.split("\n## ").next());
    let (data, scratch) = (TempDir::new().expect("a folder"), TempDir::new().expect("a folder"));
    let mut runner = Runner::start(PUNCTUAL, "127.0.0.1:0", data.path(), &[]);
    let address = runner.url.strip_prefix("http://").expect("an address").to_owned();
    let mut pending: Option<String> = None;
    let mut compared = 0;
    for (language, content) in blocks(tour.expect("the README has a tour")) {
        match language {
            "sh" => {
                assert_eq!(pending, None, "each block of commands is followed by its output");
                let commands = content.replace("127.0.0.1:3000", &address);
                let ran = Command::new("bash")
                    .args(["-c", &commands])
                    .env("RUNNER", runner.pid().to_string())
                    .current_dir(scratch.path())
                    .output();
                let ran = ran.expect("bash runs");
                assert!(ran.status.success(), "{content}{}", String::from_utf8_lossy(&ran.stderr));
                pending = Some(String::from_utf8(ran.stdout).expect("UTF-8"));
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
