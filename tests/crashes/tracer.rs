//! A program that is traced, and what befalls it at one of its system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::harness::Outcome;
use crate::harness::command::{Finished, clean, finish, started_by};

/// Of [`FAULTS`] the one that ends who makes the call.
pub const KILL: &str = "signal=KILL";

/// What may befall a call: the end of who makes it, and what a file system answers that is full, broken or read-only.
pub const FAULTS: [&str; 4] = [KILL, "error=ENOSPC", "error=EIO", "error=EROFS"];

/// The command traced, of which the tracer sees `calls`, with what else it is told; its log as well.
pub async fn traced(command: &Command, calls: &str, told: &[&str]) -> Outcome<(Finished, String)> {
    let log = NamedTempFile::new()?;
    let mut tracer = clean("strace");
    tracer.args(["-f", "-qq", "-y", "-o"]).arg(log.path()).arg(format!("--trace={calls}"));
    tracer.args(told);
    let finished = finish(started_by(tracer, command), "").await?;
    Ok((finished, fs::read_to_string(log.path())?))
}

/// Each call in a log that has to do with the folder: its name, and how many of that name its thread has made by then.
/// The names that begin with one of `expected` must be among them.
pub fn points(log: &str, folder: &Path, expected: &[&str]) -> BTreeSet<(String, usize)> {
    let folder = folder.display().to_string();
    let mut made = BTreeMap::<_, usize>::new();
    let mut points = BTreeSet::new();
    for line in log.lines() {
        let call = line.split_once('(').and_then(|(call, _)| call.split_once(' '));
        let Some((thread, name)) = call else { continue };
        let number = made.entry((thread, name.trim())).or_default();
        *number += 1;
        // Where root writes into a store, it is a descriptor.
        if line.contains(&folder) || line.contains("/fd/") {
            points.insert((name.trim().to_owned(), *number));
        }
    }
    for call in expected {
        let is_there = points.iter().any(|(name, _)| name.starts_with(call));
        assert!(is_there, "no {call} among {points:?}");
    }
    points
}
