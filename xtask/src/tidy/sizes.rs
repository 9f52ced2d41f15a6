//! Length of files. That of functions is clippy's (`clippy.toml`).

use super::File;

const FILE_LINES_MAX: usize = 400;

/// What is longer than the limit.
pub fn check(files: &[File]) -> Vec<String> {
    let sources = files.iter().filter(|file| file.path.ends_with(".rs"));
    let sized = sources.map(|file| (&file.path, file.text.lines().count()));
    let over = sized.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    over.map(|(path, lines)| format!("{path}: {lines} lines, {FILE_LINES_MAX} at most")).collect()
}
