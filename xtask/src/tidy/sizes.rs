//! Length of files and functions.

use super::File;

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;

/// What is longer than the limit.
pub fn check(files: &[File]) -> Vec<String> {
    files.iter().filter(|file| file.path.ends_with(".rs")).flat_map(long).collect()
}

/// The file and the functions in it that are over the limit.
fn long(file: &File) -> Vec<String> {
    let mut found = Vec::new();
    let mut over = |place: &str, lines: usize, max: usize| {
        if lines > max {
            found.push(format!("{place}: {lines} lines, {max} at most"));
        }
    };
    let lines: Vec<&str> = file.text.lines().collect();
    over(&file.path, lines.len(), FILE_LINES_MAX);
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
        over(&format!("{}::{name}", file.path), length, FUNCTION_LINES_MAX);
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
