//! Length of files and functions, with a ratchet: what is too long already may not grow.

use std::collections::BTreeMap;

use super::File;

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const RATCHET: &str = "xtask/ratchet.txt";

/// What is longer than the limit, or shorter than the ratchet still allows.
pub fn check(files: &[File]) -> Vec<String> {
    let mut allowed = ratchet(files);
    let mut findings = Vec::new();
    for (place, lines, max) in files.iter().filter(|f| f.path.ends_with(".rs")).flat_map(long) {
        match allowed.remove(&place) {
            None => findings.push(format!("{place}: {lines} lines, {max} at most")),
            Some(now) if lines > now => {
                findings.push(format!("{place}: grew from {now} to {lines} lines"));
            }
            Some(now) if lines < now => {
                findings.push(format!("{place}: only {lines} lines now; lower {RATCHET}"));
            }
            Some(_) => {}
        }
    }
    findings.extend(allowed.keys().map(|place| format!("{place}: no longer in need of {RATCHET}")));
    findings
}

/// `PLACE LINES` on each line: exceptions that stand for now.
fn ratchet(files: &[File]) -> BTreeMap<String, usize> {
    let text = files.iter().find(|file| file.path == RATCHET).map_or("", |file| &file.text);
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (place, lines) = line.rsplit_once(' ')?;
            Some((place.to_owned(), lines.parse().ok()?))
        })
        .collect()
}

/// The file and the functions in it that are over the limit: place, lines, limit.
fn long(file: &File) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    if lines.len() > FILE_LINES_MAX {
        found.push((file.path.clone(), lines.len(), FILE_LINES_MAX));
    }
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        // Without a body, or with one on the same line, there is nothing to count.
        let head = lines[start..].iter().find(|line| line.ends_with(['{', ';', '}']));
        if !head.is_some_and(|line| line.ends_with('{')) {
            continue;
        }
        // The formatter closes a function at the indentation that it opens at.
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let length = lines[start..].iter().position(|l| *l == close).map_or(1, |end| end + 1);
        if length > FUNCTION_LINES_MAX {
            found.push((format!("{}::{name}", file.path), length, FUNCTION_LINES_MAX));
        }
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    for word in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next()
}
