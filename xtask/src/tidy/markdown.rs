//! Documents: one title each, each can be reached from the index, and no drop-in is left unread.

use super::File;

const INDEX: &str = "docs/README.md";

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
        if text.contains(".service.d/") && !text.contains("daemon-reload") {
            findings
                .push(format!("{path}: systemd reads a drop-in after `systemctl daemon-reload`"));
        }
    }
    findings
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
