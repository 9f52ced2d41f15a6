//! `cargo xtask tidy`: the rules of the house that a machine can hold.

mod floors;
mod markdown;
mod names;
mod sizes;
mod sources;

use std::fs;
use std::path::PathBuf;

use crate::shell::{self, Outcome};

/// One file of the tree, with its path from the root.
pub struct File {
    /// Path from the root, `/` between its parts.
    pub path: String,
    /// Content; empty for a file that is not UTF-8.
    pub text: String,
}

/// Runs every check and reports all findings together.
pub fn run() -> Outcome {
    let files = files()?;
    let mut findings = Vec::new();
    findings.extend(names::check(&files));
    findings.extend(floors::check()?);
    findings.extend(sources::check(&files));
    findings.extend(sizes::check(&files));
    findings.extend(markdown::check(&files));
    if findings.is_empty() {
        println!("tidy: {} files", files.len());
        return Ok(());
    }
    for finding in &findings {
        eprintln!("{finding}");
    }
    Err(format!("tidy found {} thing(s) to mend", findings.len()))
}

/// Every file that git tracks or would track.
fn files() -> Result<Vec<File>, String> {
    let words = ["ls-files", "--cached", "--others", "--exclude-standard", "-z"];
    let list = shell::read(&mut shell::program("git", &words))?;
    let mut paths: Vec<&str> = list.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    let read = |path: &str| {
        let full: PathBuf = shell::root().join(path);
        // A file that was deleted but not yet removed from the index is no file.
        let bytes = fs::read(full).ok()?;
        Some(File { path: path.to_owned(), text: String::from_utf8(bytes).unwrap_or_default() })
    };
    Ok(paths.into_iter().filter_map(read).collect())
}
