//! Versions: what is released together has one.

use super::File;

const WORKSPACE: &str = "Cargo.toml";
/// Where the Python package's build reads its version.
const PYTHON: (&str, &str) = ("packaging/python/src/op_dbus/__init__.py", "__version__");
/// Where Debian's package of the gateway says which service it wants.
const DEBIAN: &str = "crates/op-dbus/Cargo.toml";

/// Files whose version is not the workspace's.
pub fn check(files: &[File]) -> Vec<String> {
    let version = stated(files, WORKSPACE, "version");
    let (path, key) = PYTHON;
    let mut findings = match stated(files, path, key) {
        found if version.is_some() && found == version => Vec::new(),
        found => vec![format!("{path}: {key} is {found:?}; {WORKSPACE} says {version:?}")],
    };
    let wanted = format!("depends = \"op-dbus (>= {})\"", version.unwrap_or_default());
    if !files.iter().any(|file| file.path == DEBIAN && file.text.contains(&wanted)) {
        findings.push(format!("{DEBIAN}: the gateway's package lacks {wanted}"));
    }
    findings
}

/// The string in the first line `KEY = "…"` of a file.
fn stated<'a>(files: &'a [File], path: &str, key: &str) -> Option<&'a str> {
    let text = &files.iter().find(|file| file.path == path)?.text;
    let value = |line: &'a str| line.strip_prefix(key)?.trim_start().strip_prefix('=');
    Some(text.lines().find_map(value)?.trim().trim_matches('"'))
}
