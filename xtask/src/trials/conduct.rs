//! Runs trials: all their tests in one go, then each program and each task by itself.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::table::{Clock, How, MAY_END_EARLY, Trial};
use super::{Conditions, End, Figure, Size, WORDS};
use crate::shell::{self, cargo};

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Held => "passed",
            Self::Missed | Self::Late => "not passed",
            Self::Skipped => "skipped",
        })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10} {}", self.end.to_string(), self.text)
    }
}

/// The verdicts of `trials`, by their numbers.
pub fn all(
    trials: &[&'static Trial],
    conditions: &Conditions,
) -> Result<BTreeMap<&'static str, Figure>, String> {
    let size = conditions.size;
    let mut names: Vec<&str> = Vec::new();
    for trial in trials {
        if let How::Tests(tests) = trial.how {
            names.extend(tests);
        }
    }
    let tests = if names.is_empty() { Tests::default() } else { Tests::run(&names, size)? };
    let mut verdicts = BTreeMap::new();
    for trial in trials {
        let verdict = match trial.how {
            How::Tests(names) => tests.verdict(names),
            How::Program(clock) => program(trial, clock, size)?,
            How::Task(task) | How::Build(task) => {
                let figures = task(conditions).unwrap_or_else(|why| vec![Figure::new(false, why)]);
                summed(&figures, size)
            }
        };
        println!("{:4} {:20} {verdict}", trial.number, trial.name);
        verdicts.insert(trial.number, verdict);
    }
    Ok(verdicts)
}

/// What became of tests.
#[derive(Default)]
struct Tests {
    /// Whether a test passed, by its name.
    ended: BTreeMap<String, bool>,
    /// Why a test can't be run here.
    skipped: BTreeMap<String, String>,
    /// What passed tests have measured.
    figures: BTreeMap<String, Vec<String>>,
}

impl Tests {
    /// Runs each of these tests once, and asks for those of the integration tests that can't be run here.
    fn run(names: &[&str], size: Size) -> Result<Self, String> {
        let mut tests = Self::of_nextest(names, size)?;
        for line in skips()?.lines() {
            let reason = line.strip_prefix("SKIP ").and_then(|line| line.split_once(": "));
            let Some((name, reason)) = reason else { continue };
            tests.skipped.insert(name.to_owned(), reason.to_owned());
        }
        Ok(tests)
    }

    fn of_nextest(names: &[&str], size: Size) -> Result<Self, String> {
        let exact: Vec<String> = names.iter().map(|name| format!("test(={name})")).collect();
        let mut nextest = cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        nextest.args(["--status-level", "all", "--final-status-level", "none"]);
        nextest.args(["--success-output", "immediate", "--color", "never", "--no-tests", "pass"]);
        nextest.arg("-E").arg(exact.join(" + "));
        if size == Size::Full {
            // For the tests that can be made to last.
            nextest.env("OP_DBUS_HISTORIES", "100000").env("OP_DBUS_RANDOM_CALLS", "100000");
        }
        let output = nextest.output().map_err(|e| format!("can't run cargo nextest: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = shell::root().join("target/trials.log");
        fs::write(&log, &said).map_err(|e| format!("{}: {e}", log.display()))?;
        let tests = Self::read(&said);
        if tests.ended.is_empty() && !output.status.success() {
            return Err(format!("tests can't be run ({}); see {}", output.status, log.display()));
        }
        Ok(tests)
    }

    /// Reads what nextest says: a line for each test, after it what a passed one printed.
    fn read(said: &str) -> Self {
        let mut tests = Self::default();
        let mut last = String::new();
        for line in said.lines().map(str::trim) {
            if let Some(figure) = line.strip_prefix("figure: ") {
                tests.figures.entry(last.clone()).or_default().push(figure.to_owned());
            }
            if let Some(reason) = line.strip_prefix("SKIP: ") {
                // It ended early, which its runner has told as passed.
                if tests.ended.get(&last) == Some(&true) {
                    tests.ended.remove(&last);
                    tests.skipped.insert(last.clone(), reason.to_owned());
                }
                continue;
            }
            let Some((status, rest)) = line.split_once(" [") else { continue };
            let Some(name) = rest.rsplit(' ').next().filter(|_| rest.contains(']')) else {
                continue;
            };
            if !["SKIP", "SLOW"].contains(&status) && status.chars().all(|c| c.is_ascii_uppercase())
            {
                last = name.to_owned();
                // Several binaries may have a test of that name: all of them have to pass.
                let passed = tests.ended.entry(last.clone()).or_insert(true);
                *passed &= status == "PASS";
            }
        }
        tests
    }

    fn verdict(&self, names: &[&str]) -> Figure {
        let failed: Vec<&str> =
            names.iter().copied().filter(|name| self.ended.get(*name) == Some(&false)).collect();
        if !failed.is_empty() {
            return Figure::new(false, format!("failed: {}", failed.join(", ")));
        }
        let passed = names.iter().filter(|name| self.ended.contains_key(**name)).count();
        let of = if names.len() == 1 { "test" } else { "tests" };
        let mut figures = vec![format!("{passed} of {} {of}", names.len())];
        figures.extend(names.iter().filter_map(|name| self.figures.get(*name)).flatten().cloned());
        for name in names.iter().filter(|name| !self.ended.contains_key(**name)) {
            let Some(reason) = self.skipped.get(*name) else {
                return Figure::new(false, format!("there is no test {name}"));
            };
            figures.push(format!("{name} skipped: {reason}"));
        }
        let end = if passed == names.len() { End::Held } else { End::Skipped };
        Figure { end, text: figures.join("; ") }
    }
}

/// Which unit tests have nothing to go on here and end early, with the reasons.
pub fn ended_early() -> Result<BTreeMap<String, String>, String> {
    let tests = Tests::of_nextest(MAY_END_EARLY, Size::Quick)?;
    let is_told = |name: &str| tests.ended.contains_key(name) || tests.skipped.contains_key(name);
    match MAY_END_EARLY.iter().find(|name| !is_told(name)) {
        Some(name) => Err(format!("nextest ran no test {name}; target/trials.log has what it ran")),
        None => Ok(tests.skipped),
    }
}

/// Which integration tests can't be run here, with the reasons.
pub fn skips() -> Result<String, String> {
    let mut skips = cargo(&["test", "--quiet", "--workspace", "--test", "integration", "--"]);
    shell::read(skips.arg("--skips"))
}

/// Runs a program, which prints a line for each figure: `held: …`, `missed: …`, `late: …` or `skipped: …`.
fn program(trial: &Trial, clock: Clock, size: Size) -> Result<Figure, String> {
    let busy = clock == Clock::Timed && is_busy();
    let mut command = cargo(&["test", "--quiet", "--workspace", "--test", "integration", "--"]);
    command.args(["--trial", trial.name, size.flag()]);
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| format!("can't run the trial {}: {e}", trial.name))?;
    let mut figures = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(|e| format!("{}: {e}", trial.name))?;
        let Some((kind, text)) = line.split_once(": ") else { continue };
        let Some((_, end)) = WORDS.iter().find(|(word, _)| *word == kind) else { continue };
        figures.push(Figure { end: *end, text: text.to_owned() });
        println!("     {line}");
    }
    let status = child.wait().map_err(|e| format!("{}: {e}", trial.name))?;
    if figures.is_empty() || !status.success() {
        figures.push(Figure::new(false, format!("it ended with {status}")));
    }
    if busy && !figures.iter().any(|figure| figure.end == End::Skipped) {
        figures.push(Figure::new(true, "taken on a busy machine, to be taken again"));
    }
    // Whoever chooses how long it takes has not tried what is promised.
    let chosen = trial.name == "soak" && env::var_os("OP_DBUS_SOAK_SECONDS").is_some();
    Ok(summed(&figures, if chosen { Size::Quick } else { size }))
}

/// What figures come to: one that was missed decides, then one that was late, then one that can't be had.
fn summed(figures: &[Figure], size: Size) -> Figure {
    let decides = [End::Missed, End::Late, End::Skipped];
    let decided = decides.into_iter().find(|end| figures.iter().any(|figure| figure.end == *end));
    let texts: Vec<&str> = figures.iter().map(|figure| figure.text.as_str()).collect();
    // A bar would end a cell of the table.
    let texts = texts.join("; ").replace('|', "/").replace('\n', " ");
    let text = format!("{}: {texts}", size.flag().trim_start_matches('-'));
    Figure { end: decided.unwrap_or(End::Held), text }
}

/// Whether others use more than a fifth of the machine's time, looked at for a second.
fn is_busy() -> bool {
    let stat = || fs::read_to_string("/proc/stat").unwrap_or_default();
    let before = stat();
    thread::sleep(Duration::from_secs(1));
    is_used(&before, &stat())
}

/// Whether more than a fifth of the time was used from one reading of `/proc/stat` to the next.
fn is_used(before: &str, after: &str) -> bool {
    let times = |stat: &str| -> Option<(u64, u64)> {
        let numbers = stat.lines().next()?.split_whitespace().skip(1);
        let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
        // User, nice, system, idle, waiting for a disk, …
        Some((numbers.iter().take(8).sum(), numbers.get(3)? + numbers.get(4)?))
    };
    match (times(before), times(after)) {
        (Some((all, idle)), Some((all_after, idle_after))) => {
            // That of waiting for a disk may be less the next time.
            5 * idle_after.saturating_sub(idle) < 4 * all_after.saturating_sub(all)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_figure_that_is_missed_decides() {
        let of = |figures: &[Figure]| summed(figures, Size::Quick);
        assert_eq!(of(&[Figure::new(true, "1 | 2")]).text, "quick: 1 / 2");
        let all = [End::Missed, End::Skipped, End::Late, End::Held];
        let all = all.map(|end| Figure { end, text: String::new() });
        assert_eq!(of(&all).end, End::Missed);
        assert_eq!(of(&all[1..]).end, End::Late);
        assert_eq!(of(&all[1..2]).end, End::Skipped);
        assert_eq!(of(&all[3..]).end, End::Held);
    }

    #[test]
    fn what_nextest_says_is_understood() {
        let tests = Tests::read(
            "    Starting 3 tests across 2 binaries\n\
             \x20       PASS [   0.005s] (1/3) op-dbus-engine tests::one\n\
             \x20   stdout ───\n\n    figure: 7 calls\n    something else\n\
             \x20       PASS [   0.005s] (1/3) op-dbus-engine tests::early\n\
             \x20   stderr ───\n\n    SKIP: not root\n\
             \x20       FAIL [   0.005s] (2/3) op-dbus-tests::integration faults::two\n\
             \x20       SKIP [         ] (3/3) op-dbus-tests::integration faults::three\n\
             \x20    SIGKILL [   0.005s] (3/3) op-dbus-tests::integration faults::four\n\
             ------------\n     Summary [   0.1s] 3 tests run: 1 passed, 1 failed, 1 skipped\n",
        );
        assert_eq!(tests.verdict(&["tests::one"]).text, "1 of 1 test; 7 calls");
        assert_eq!(tests.verdict(&["faults::two", "tests::one"]).text, "failed: faults::two");
        assert_eq!(tests.verdict(&["faults::four"]).end, End::Missed);
        assert_eq!(tests.verdict(&["faults::three"]).text, "there is no test faults::three");
        let early = tests.verdict(&["tests::one", "tests::early"]);
        assert_eq!(early.text, "1 of 2 tests; 7 calls; tests::early skipped: not root");
        assert_eq!(early.end, End::Skipped);
    }

    #[test]
    fn a_machine_is_busy_from_a_fifth_of_its_time_on() {
        // User, nice, system, idle, waiting for a disk, three more, and what counts as user's already.
        let stat = |user: u64, idle: u64, waiting: u64| {
            format!("cpu  {user} 0 100 {idle} {waiting} 0 0 0 7 7\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
        };
        let before = stat(1000, 5000, 50);
        assert!(is_used(&before, &stat(1041, 5159, 50)));
        assert!(!is_used(&before, &stat(1039, 5141, 70)));
        assert!(is_used(&before, &stat(1041, 5000, 20)));
        assert!(!is_used(&before, &before) && !is_used("", &before));
    }
}
