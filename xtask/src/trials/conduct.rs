//! Runs trials: all their tests in one go, then each program and each task by itself.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use super::table::{Clock, How, Trial};
use super::{Conditions, Figure, Size};
use crate::shell::{self, cargo};
use crate::test::Settings;

/// How a trial ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    Passed,
    Missed,
    /// Only times are beyond their bars.
    Late,
    /// It can't be run on this machine.
    Skipped,
}

/// How a trial ended, and what was measured.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub result: Result,
    pub figure: String,
}

impl Verdict {
    fn new(result: Result, figure: impl Into<String>) -> Self {
        Self { result, figure: figure.into() }
    }
}

impl fmt::Display for Result {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Passed => "passed",
            Self::Missed | Self::Late => "not passed",
            Self::Skipped => "skipped",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:10} {}", self.result.to_string(), self.figure)
    }
}

/// The verdicts of `trials`, by their numbers.
pub fn all(
    trials: &[&'static Trial],
    conditions: &Conditions,
    settings: &Settings,
) -> std::result::Result<BTreeMap<&'static str, Verdict>, String> {
    let size = conditions.size;
    let mut names: Vec<&str> = Vec::new();
    for trial in trials {
        if let How::Tests(tests) = trial.how {
            names.extend(tests);
        }
    }
    let tests =
        if names.is_empty() { Tests::default() } else { Tests::run(&names, size, settings)? };
    let mut verdicts = BTreeMap::new();
    for trial in trials {
        let verdict = match trial.how {
            How::Tests(names) => tests.verdict(names),
            How::Program(clock) => program(trial, clock, size, settings)?,
            How::Task(task) => {
                let figures = task(conditions).unwrap_or_else(|why| vec![Figure::Missed(why)]);
                summed(figures, size)
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
    /// Runs each of these tests once.
    fn run(names: &[&str], size: Size, settings: &Settings) -> std::result::Result<Self, String> {
        let exact: Vec<String> = names.iter().map(|name| format!("test(={name})")).collect();
        let mut nextest = cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        nextest.args(["--status-level", "all", "--final-status-level", "none"]);
        nextest.args(["--success-output", "immediate", "--color", "never"]);
        nextest.arg("-E").arg(exact.join(" + ")).envs(settings.iter().cloned());
        if size == Size::Full {
            // For the one test that can be made to last.
            nextest.env("OP_DBUS_HISTORIES", "100000");
        }
        let output = nextest.output().map_err(|e| format!("can't run cargo nextest: {e}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let log = shell::root().join("target/trials.log");
        fs::write(&log, &said).map_err(|e| format!("{}: {e}", log.display()))?;
        let mut tests = Self::read(&said);
        for line in skips(settings)?.lines() {
            let reason = line.strip_prefix("SKIP ").and_then(|line| line.split_once(": "));
            let Some((name, reason)) = reason else { continue };
            tests.skipped.insert(name.to_owned(), reason.to_owned());
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

    fn verdict(&self, names: &[&str]) -> Verdict {
        let failed: Vec<&str> =
            names.iter().copied().filter(|name| self.ended.get(*name) == Some(&false)).collect();
        if !failed.is_empty() {
            return Verdict::new(Result::Missed, format!("failed: {}", failed.join(", ")));
        }
        let passed = names.iter().filter(|name| self.ended.contains_key(**name)).count();
        let of = if names.len() == 1 { "test" } else { "tests" };
        let mut figures = vec![format!("{passed} of {} {of}", names.len())];
        figures.extend(names.iter().filter_map(|name| self.figures.get(*name)).flatten().cloned());
        for name in names.iter().filter(|name| !self.ended.contains_key(**name)) {
            let Some(reason) = self.skipped.get(*name) else {
                return Verdict::new(Result::Missed, format!("there is no test {name}"));
            };
            figures.push(format!("{name} skipped: {reason}"));
        }
        let result = if passed == names.len() { Result::Passed } else { Result::Skipped };
        Verdict::new(result, figures.join("; "))
    }
}

/// Which tests can't be run here, with the reasons.
fn skips(settings: &Settings) -> std::result::Result<String, String> {
    let mut skips = cargo(&["test", "--quiet", "--workspace", "--test", "integration", "--"]);
    shell::read(skips.arg("--skips").envs(settings.iter().cloned()))
}

/// Runs a program, which prints a line for each figure: `held: …`, `missed: …`, `late: …` or `skipped: …`.
fn program(
    trial: &Trial,
    clock: Clock,
    size: Size,
    settings: &Settings,
) -> std::result::Result<Verdict, String> {
    let busy = clock == Clock::Timed && is_busy();
    let mut command = cargo(&["test", "--quiet", "--workspace", "--test", "integration", "--"]);
    command.args(["--trial", trial.name, size.flag()]).envs(settings.iter().cloned());
    let child = command.stdout(Stdio::piped()).spawn();
    let mut child = child.map_err(|e| format!("can't run the trial {}: {e}", trial.name))?;
    let mut figures = Vec::new();
    for line in child.stdout.take().into_iter().flat_map(|stdout| BufReader::new(stdout).lines()) {
        let line = line.map_err(|e| format!("{}: {e}", trial.name))?;
        let Some((kind, figure)) = line.split_once(": ") else { continue };
        figures.push(match kind {
            "held" => Figure::Held(figure.to_owned()),
            "missed" => Figure::Missed(figure.to_owned()),
            "late" => Figure::Late(figure.to_owned()),
            "skipped" => Figure::Skipped(figure.to_owned()),
            _ => continue,
        });
        println!("     {line}");
    }
    let status = child.wait().map_err(|e| format!("{}: {e}", trial.name))?;
    if figures.is_empty() || !status.success() {
        figures.push(Figure::Missed(format!("it ended with {status}")));
    }
    if busy && !figures.iter().any(|figure| matches!(figure, Figure::Skipped(_))) {
        figures.push(Figure::Held("taken on a busy machine, to be taken again".to_owned()));
    }
    Ok(summed(figures, size))
}

/// What figures come to: one that was missed decides, then one that was late, then one that can't be had.
fn summed(figures: Vec<Figure>, size: Size) -> Verdict {
    let (mut results, mut texts) = (Vec::new(), Vec::new());
    for figure in figures {
        let (result, text) = match figure {
            Figure::Held(text) => (Result::Passed, text),
            Figure::Missed(text) => (Result::Missed, text),
            Figure::Late(text) => (Result::Late, text),
            Figure::Skipped(text) => (Result::Skipped, text),
        };
        results.push(result);
        texts.push(text);
    }
    let decides = [Result::Missed, Result::Late, Result::Skipped];
    let decided = decides.into_iter().find(|result| results.contains(result));
    let result = decided.unwrap_or(Result::Passed);
    // A bar would end a cell of the table.
    let texts = texts.join("; ").replace('|', "/").replace('\n', " ");
    Verdict::new(result, format!("{}: {texts}", size.flag().trim_start_matches('-')))
}

/// Whether others use more than a fifth of the machine's time, looked at for a second.
fn is_busy() -> bool {
    let times = || -> Option<(u64, u64)> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let numbers = stat.lines().next()?.split_whitespace().skip(1);
        let numbers: Vec<u64> = numbers.filter_map(|number| number.parse().ok()).collect();
        // User, nice, system, idle, waiting for a disk, …
        Some((numbers.iter().take(8).sum(), numbers.get(3)? + numbers.get(4)?))
    };
    let before = times();
    thread::sleep(Duration::from_secs(1));
    match (before, times()) {
        (Some((all, idle)), Some((all_after, idle_after))) => {
            5 * (idle_after - idle) < 4 * (all_after - all)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_figure_that_is_missed_decides() {
        let [held, missed, late] = [Figure::Held, Figure::Missed, Figure::Late];
        let of = |figures: &[Figure]| summed(figures.to_vec(), Size::Quick);
        assert_eq!(of(&[held("1 | 2".into())]).figure, "quick: 1 / 2");
        let skipped = Figure::Skipped("b".into());
        let all = [missed("a".into()), skipped, late("d".into()), held("c".into())];
        assert_eq!(of(&all).result, Result::Missed);
        assert_eq!(of(&all[1..]).result, Result::Late);
        assert_eq!(of(&all[1..2]).result, Result::Skipped);
        assert_eq!(of(&all[3..]).result, Result::Passed);
    }

    #[test]
    fn what_nextest_says_is_understood() {
        let tests = Tests::read(
            "    Starting 3 tests across 2 binaries\n\
             \x20       PASS [   0.005s] (1/3) op-dbus-engine tests::one\n\
             \x20   stdout ───\n\n    figure: 7 calls\n    something else\n\
             \x20       FAIL [   0.005s] (2/3) op-dbus-tests::integration faults::two\n\
             \x20       SKIP [         ] (3/3) op-dbus-tests::integration faults::three\n\
             \x20    SIGKILL [   0.005s] (3/3) op-dbus-tests::integration faults::four\n\
             ------------\n     Summary [   0.1s] 3 tests run: 1 passed, 1 failed, 1 skipped\n",
        );
        assert_eq!(tests.verdict(&["tests::one"]).figure, "1 of 1 test; 7 calls");
        assert_eq!(tests.verdict(&["faults::two", "tests::one"]).figure, "failed: faults::two");
        assert_eq!(tests.verdict(&["faults::four"]).result, Result::Missed);
        assert_eq!(tests.verdict(&["faults::three"]).figure, "there is no test faults::three");
    }
}
