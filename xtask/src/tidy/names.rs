//! What may stand at the root, and what no file may be called.

use super::File;

const ROOT: &[&str] = &[
    ".cargo",
    ".ci",
    ".config",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "clippy.toml",
    "config",
    "crates",
    "dbus-policy",
    "docs",
    "packaging",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "systemd",
    "tests",
    "xtask",
];
/// A file of these names collects what has no place; the place is what is missing.
const NO_PLACE: &[&str] = &["util", "common", "helper", "misc"];
const SECOND_COPY: &[&str] = &["_v2", "_new", "_old", "_refactored", "_improved", ".bk", ".orig"];

/// Names that break the rules.
pub fn check(files: &[File]) -> Vec<String> {
    let mut findings = Vec::new();
    for File { path, .. } in files {
        let top = path.split('/').next().unwrap_or(path);
        if !ROOT.contains(&top) {
            findings.push(format!("{path}: {top} may not stand at the root"));
        }
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = name.split('.').next().unwrap_or(name);
        if NO_PLACE.iter().any(|word| stem.starts_with(word)) {
            findings.push(format!("{path}: name it after what it does"));
        }
        if SECOND_COPY.iter().any(|mark| stem.ends_with(mark) || name.ends_with(mark)) {
            findings.push(format!("{path}: edit the file that this is a copy of"));
        }
    }
    findings
}
