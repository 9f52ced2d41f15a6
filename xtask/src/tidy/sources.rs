//! Rules for the text of Rust files.

use super::File;

/// What a test may not do: it would wait for a clock, a network or a port instead of an event.
const NOT_IN_TESTS: &[(&str, &str)] = &[
    ("thread::sleep", "wait for the event instead"),
    ("time::sleep(", "wait for the event instead"),
    ("#[ignore", "a test that can't run here is skipped with its reason"),
];
/// Assembled here, so that this file does not find itself.
fn machine_paths() -> [String; 3] {
    ["/wo", "/ro", "/ho"].map(|head| {
        let tail = match head {
            "/wo" => "rk/main",
            "/ro" => "ot/",
            _ => "me/",
        };
        format!("{head}{tail}")
    })
}

/// Lines that break the rules.
pub fn check(files: &[File]) -> Vec<String> {
    let paths = machine_paths();
    let mut findings = Vec::new();
    for File { path, text } in files {
        for (number, line) in text.lines().enumerate() {
            if paths.iter().any(|name| line.contains(name.as_str())) {
                findings.push(format!("{path}:{}: names a path of one machine", number + 1));
            }
        }
        if !path.ends_with(".rs") {
            continue;
        }
        if !text.starts_with("//!") {
            findings.push(format!("{path}: open with a //! line that says what it is for"));
        }
        if path.starts_with("xtask/") {
            continue;
        }
        let tests_from = if path.starts_with("tests/") || path.contains("/tests/") {
            0
        } else {
            text.find("#[cfg(test)]").unwrap_or(text.len())
        };
        let first_line = text[..tests_from].lines().count();
        for (number, line) in text[tests_from..].lines().enumerate() {
            if fixed_port(line) {
                let number = first_line + number + 1;
                findings.push(format!("{path}:{number}: let the system choose the port"));
            }
            for (call, instead) in NOT_IN_TESTS.iter().filter(|(call, _)| line.contains(call)) {
                findings.push(format!("{path}:{}: {call}: {instead}", first_line + number + 1));
            }
        }
    }
    findings
}

/// A loopback address with a port that somebody chose; port 0 lets the system choose.
fn fixed_port(line: &str) -> bool {
    let ports = line.split("127.0.0.1:").skip(1);
    let mut first_digits = ports.filter_map(|rest| rest.chars().next());
    first_digits.any(|digit| ('1'..='9').contains(&digit))
}
