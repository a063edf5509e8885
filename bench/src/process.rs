//! What the system knows of a process and its children. Linux only.

use std::fs::{read_dir, read_to_string};
use std::time::Duration;

/// Clock ticks in a second, as `getconf CLK_TCK` says on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// The process and all that it started.
pub fn family(pid: u32) -> Vec<u32> {
    let processes = read_dir("/proc").expect("/proc tells of processes");
    let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = ids.filter_map(|id| Some((id, stat(id)?.get(1)?.parse().ok()?))).collect();
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(parent) = family.get(next).copied() {
        family.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(id, _)| *id));
        next += 1;
    }
    family
}

/// Processor time that the process and its children have used.
pub fn processor_time(pid: u32) -> Duration {
    let ticks = family(pid).into_iter().filter_map(|id| {
        let stat = stat(id)?;
        let field = |index: usize| stat.get(index)?.parse::<u64>().ok();
        Some(field(11)? + field(12)?)
    });
    Duration::from_millis(ticks.sum::<u64>() * 1_000 / TICKS_PER_SECOND)
}

/// The most memory that one process of the family has held, in bytes.
pub fn peak_memory(pid: u32) -> u64 {
    family(pid).into_iter().filter_map(|id| status(id, "VmHWM:")).max().unwrap_or_default()
}

/// The memory that the process and its children hold, in bytes.
pub fn memory(pid: u32) -> u64 {
    family(pid).into_iter().filter_map(|id| status(id, "VmRSS:")).sum()
}

/// `/proc/<pid>/stat` from its third field, the state, on: the second may hold spaces.
fn stat(pid: u32) -> Option<Vec<String>> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = stat.rsplit_once(')')?;
    Some(after.split_whitespace().map(str::to_owned).collect())
}

fn status(pid: u32, name: &str) -> Option<u64> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1_024)
}
