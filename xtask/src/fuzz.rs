//! `cargo xtask fuzz`: what op-dbus reads, driven by a coverage-guided fuzzer under AddressSanitizer.
//!
//! It is built by the stable compiler, which has the sanitizer's runtime and the passes of LLVM that a
//! fuzzer needs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Outcome, cargo, program};
use crate::trials::{self, Conditions, Figure, Size};

/// The compiler, with what a fuzzer and a sanitizer need.
const COMPILER: &str = "tests/fuzz/rustc";
/// Cases that are kept, a folder for each target.
const CORPUS: &str = "tests/fuzz/corpus";
/// What is built, found and added by runs here.
const FOLDER: &str = "target/fuzz";
/// An input that takes longer hangs.
const SECONDS_MAX: &str = "-timeout=10";
/// Memory that no input of some kilobytes is worth.
const MEMORY_MIB_MAX: &str = "-rss_limit_mb=2048";

/// Drive everything that is read by a fuzzer under a sanitizer
#[derive(clap::Args)]
pub struct Args {
    /// Seconds for each target
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Without one, all are driven
    #[arg(value_name = "TARGET")]
    names: Vec<String>,
}

/// Drives targets.
///
/// # Errors
/// What an input did, with the file that holds it.
pub fn run(Args { seconds, names }: &Args) -> Outcome {
    let targets = targets()?;
    if let Some(name) = names.iter().find(|name| !targets.contains(name)) {
        return Err(format!("there is no target {name:?}; there are {}", targets.join(", ")));
    }
    let fuzzer = build()?;
    let mut found = Vec::new();
    for target in targets.iter().filter(|name| names.is_empty() || names.contains(name)) {
        if trials::tell(&[drive(&fuzzer, target, *seconds)?]).is_err() {
            found.push(target.as_str());
        }
    }
    match found.is_empty() {
        true => Ok(()),
        false => Err(format!("harm was done to {}; see {FOLDER}/finds", found.join(", "))),
    }
}

/// The trial `fuzz`: five seconds for each target in its quick size, or ten minutes.
///
/// # Errors
/// It can't be built.
pub fn try_out(conditions: &Conditions) -> Result<Vec<Figure>, String> {
    let seconds = if conditions.size == Size::Quick { 5 } else { 600 };
    let fuzzer = build()?;
    targets()?.iter().map(|target| drive(&fuzzer, target, seconds)).collect()
}

/// The names of the targets.
fn targets() -> Result<Vec<String>, String> {
    let folder = shell::root().join(CORPUS);
    let entries = folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))?;
    let folders = entries.flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    Ok(names)
}

/// Cargo, for crates of ours that tell where they have been and are watched in their memory.
pub fn instrumented(words: &[&str]) -> Command {
    let mut command = cargo(words);
    command.env("RUSTC_WORKSPACE_WRAPPER", shell::root().join(COMPILER));
    // What other builds go on from lies in the same place: they would not link with pieces of this one.
    command.env("CARGO_INCREMENTAL", "0");
    command
}

fn build() -> Result<PathBuf, String> {
    let words = ["build", "--workspace", "--bin", "op-dbus-fuzz", "--features"];
    shell::run(instrumented(&words).arg("op-dbus-fuzz/fuzzer"))?;
    Ok(shell::root().join("target/debug/op-dbus-fuzz"))
}

/// Drives one target for so long; what is new goes to a folder of its own, so that the next run goes
/// on from there.
fn drive(fuzzer: &Path, target: &str, seconds: u64) -> Result<Figure, String> {
    let folder = shell::root().join(FOLDER);
    let (grown, finds) = (folder.join("corpus").join(target), folder.join("finds"));
    for folder in [&grown, &finds] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    let mut command = program(fuzzer, &[SECONDS_MAX, MEMORY_MIB_MAX, "-print_final_stats=1"]);
    command.arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/{target}-", finds.display()));
    command.arg(&grown).arg(shell::root().join(CORPUS).join(target));
    command.env("OP_DBUS_FUZZ_TARGET", target);
    let output = command.output().map_err(|e| format!("can't run {}: {e}", fuzzer.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let log = finds.join(format!("{target}.log"));
    fs::write(&log, said.as_bytes()).map_err(|e| format!("{}: {e}", log.display()))?;
    if !output.status.success() {
        let case = said.lines().find_map(|line| line.split("Test unit written to ").nth(1));
        let case = case.map_or(log.display().to_string(), str::to_owned);
        return Ok(Figure::new(false, format!("{target}: harm is done by {case}")));
    }
    let (inputs, edges) = told(&said);
    let text = format!("{target}: {inputs} inputs in {seconds} s, {edges} edges of the code");
    Ok(Figure::new(inputs > 0, text))
}

/// Inputs, and the most edges that were reached, of what libFuzzer says.
fn told(said: &str) -> (u64, u64) {
    let mut told = (0, 0);
    for line in said.lines() {
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            told.0 = number.trim().parse().unwrap_or_default();
        }
        let edges = line.split_once(" cov: ").and_then(|(_, rest)| rest.split(' ').next());
        if let Some(edges) = edges.and_then(|edges| edges.parse().ok()) {
            told.1 = edges;
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_fuzzer_says_is_understood() {
        let told = told(
            "#2\tINITED cov: 9 ft: 10 corp: 1/1b exec/s: 0 rss: 30Mb\n\
             #99\tDONE   cov: 417 ft: 812 corp: 44/1234b lim: 4 exec/s: 50 rss: 40Mb\n\
             stat::number_of_executed_units: 99\nstat::average_exec_per_sec:     50\n",
        );
        assert_eq!(told, (99, 417));
    }

    #[test]
    fn every_target_has_cases() {
        assert!(targets().expect("a corpus").len() > 5);
    }
}
