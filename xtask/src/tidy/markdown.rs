//! Documents: one title each, each can be reached from the index, no drop-in is left unread, and the map names what
//! is there.

use super::File;

const INDEX: &str = "docs/README.md";
const MAP: &str = "ARCHITECTURE.md";

/// Documents that break the rules.
pub fn check(files: &[File]) -> Vec<String> {
    let index = files.iter().find(|file| file.path == INDEX).map_or("", |file| &file.text);
    let mut findings = Vec::new();
    for File { path, text } in files.iter().filter(|file| file.path.ends_with(".md")) {
        let titles = titles(text);
        if titles != 1 {
            findings.push(format!("{path}: {titles} titles (`# …`), one is right"));
        }
        let page = path.strip_prefix("docs/").unwrap_or("README.md");
        if page != "README.md" && !index.contains(page) {
            findings.push(format!("{path}: can't be reached from {INDEX}"));
        }
        if path == MAP {
            findings.extend(gone(text, files));
        }
        if text.contains(".service.d/") && !text.contains("daemon-reload") {
            findings
                .push(format!("{path}: systemd reads a drop-in after `systemctl daemon-reload`"));
        }
    }
    findings
}

/// Files of code that the map names, by the end of their path, and that are not there. Several in braces are not
/// looked at.
fn gone(map: &str, files: &[File]) -> Vec<String> {
    let named = map.split('`').skip(1).step_by(2);
    let named = named.filter(|name| name.ends_with(".rs") && !name.contains(['{', '\n']));
    let is_there = |name: &&str| {
        let above = files.iter().filter_map(|file| file.path.strip_suffix(name));
        above.into_iter().any(|above| above.is_empty() || above.ends_with('/'))
    };
    named.filter(|name| !is_there(name)).map(|name| format!("{MAP}: no file {name}")).collect()
}

/// First-level headings outside code blocks.
fn titles(text: &str) -> usize {
    let mut in_code = false;
    let mut count = 0;
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if !in_code && line.starts_with("# ") {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_names_what_is_there() {
        let files = [File { path: "crates/a/src/one.rs".to_owned(), text: String::new() }];
        let map = "see `a/src/one.rs`, `one.rs`, `{x,y}.rs` and `ne.rs`, `a/src/two.rs`";
        let found = gone(map, &files);
        assert_eq!(
            found,
            ["ARCHITECTURE.md: no file ne.rs", "ARCHITECTURE.md: no file a/src/two.rs"]
        );
    }
}
