//! Rules for the text of Rust files.

use super::File;

/// Whether a line breaks it.
type Rule = fn(&str) -> bool;

/// What a test may not do: it would wait for a clock or a port instead of an event, or be passed over
/// without a word.
const NOT_IN_TESTS: &[(Rule, &str)] = &[
    (fixed_port, "let the system choose the port"),
    (sleeps, "wait for the event instead of a clock"),
    (|line| line.contains("#[ignore"), "a test that can't run here is skipped with its reason"),
];
/// Assembled here, so that this file does not find itself.
fn machine_paths() -> [String; 3] {
    [["/wo", "rk/main"], ["/ro", "ot/"], ["/ho", "me/"]].map(|parts| parts.concat())
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
            for (_, instead) in NOT_IN_TESTS.iter().filter(|(does, _)| does(line)) {
                findings.push(format!("{path}:{}: {instead}", first_line + number + 1));
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

/// A call of a function of that name, wherever it is imported from. A method is our own: the engine's, which
/// lets go of its devices.
fn sleeps(line: &str) -> bool {
    let calls = ["sleep(", "sleep_until("].into_iter().flat_map(|call| line.match_indices(call));
    let mut before = calls.map(|(start, _)| line[..start].chars().next_back());
    let is_part = |last: char| last.is_alphanumeric() || ['_', '.'].contains(&last);
    before.any(|last| !last.is_some_and(is_part))
}

#[cfg(test)]
mod tests {
    use super::sleeps;

    #[test]
    fn a_sleep_is_found_however_it_is_imported() {
        for call in ["sleep(pause).await;", "std::thread::sleep(x)", "    time::sleep_until(then)"]
        {
            assert!(sleeps(call), "{call}");
        }
        for other in ["engine.sleep().await;", "asleep(worker)?", "released_for_a_sleep()"] {
            assert!(!sleeps(other), "{other}");
        }
    }
}
