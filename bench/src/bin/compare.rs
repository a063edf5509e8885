//! Two results of `bench`, beside each other.

use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::{Map, Value};

/// Prints each figure of two results, as `before -> after`.
#[derive(Parser)]
struct Arguments {
    /// The earlier result.
    before: PathBuf,
    /// The later one.
    after: PathBuf,
}

fn main() {
    let arguments = Arguments::parse();
    let (before, after) = (read(&arguments.before), read(&arguments.after));
    for table in &after {
        let Some(other) = before.iter().find(|other| other["title"] == table["title"]) else {
            println!("**{}**: only in {}\n", text(&table["title"]), arguments.after.display());
            continue;
        };
        print(table, other);
    }
}

/// The tables of a result.
fn read(path: &Path) -> Vec<Value> {
    let stop = |reason: String| -> ! {
        eprintln!("{}: {reason}", path.display());
        std::process::exit(2)
    };
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| stop(error.to_string()));
    serde_json::from_str(&text).unwrap_or_else(|error| stop(format!("is no result of bench: {error}")))
}

fn print(after: &Value, before: &Value) {
    println!("**{}**\n", text(&after["title"]));
    let columns: Vec<&str> = after["columns"].as_array().into_iter().flatten().map(text).collect();
    println!("| {} |\n|{}", columns.join(" | "), "---|".repeat(columns.len()));
    let rows = |table: &Value| table["rows"].as_array().cloned().unwrap_or_default();
    for (row, was) in rows(after).iter().zip(rows(before)) {
        let (Value::Object(row), Value::Object(was)) = (row, was) else { continue };
        println!("| {} |", columns.iter().map(|column| cell(row, &was, column)).collect::<Vec<_>>().join(" | "));
    }
    println!();
}

fn cell(row: &Map<String, Value>, was: &Map<String, Value>, column: &str) -> String {
    let (now, was) = (row.get(column).map_or("", text), was.get(column).map_or("", text));
    if now == was { now.to_owned() } else { format!("{was} -> {now}") }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
