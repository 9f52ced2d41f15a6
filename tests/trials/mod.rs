//! Trials: programs that load and mistreat the service for longer than a test may take.
//!
//! `cargo xtask trials` runs them, `integration --trial NAME --quick` one of them by itself. Each figure
//! is a line on standard output: `held: …`, `missed: …`, or `late: …` where the bar that was missed is a
//! time. Only here may it be one.

use std::process::ExitCode;

use crate::harness::Outcome;
use crate::harness::needs::Need;
use crate::harness::registry::Test;

mod bulk;
mod burst;
mod cut_off;
mod descriptors;
mod fairness;
mod kills;
mod large_job;
mod pipeline;
mod quitters;
mod soak;
mod tiny_calls;
pub mod watch;

/// How long a trial loads the service.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Size {
    Quick,
    Full,
}

impl Size {
    /// The one or the other number.
    fn of<T>(self, quick: T, full: T) -> T {
        if self == Self::Quick { quick } else { full }
    }
}

/// Prints a figure, and whether it is within its bar.
fn figure(held: bool, text: std::fmt::Arguments<'_>) {
    println!("{}: {text}", if held { "held" } else { "missed" });
}

/// As [`figure`], of how long something took, or of a share of a speed: a busy machine misses that, too.
fn timed(held: bool, text: std::fmt::Arguments<'_>) {
    println!("{}: {text}", if held { "held" } else { "late" });
}

/// The trial of that name.
fn trial(name: &str, size: Size) -> Option<Test> {
    use Need::{Bus, Curl, Haproxy, Low, Network, PythonHttp, Root};
    let trials = [
        Test::new("tiny-calls", &[Bus], move || tiny_calls::tiny_calls(size)),
        Test::new("soak", &[Bus, Low], move || soak::soak(size)),
        Test::new("crowd", &[Bus, Root], move || fairness::crowd(size)),
        Test::new("bulk-beside", &[Bus, Low], move || bulk::bulk_beside(size)),
        Test::new("burst", &[Bus, Low], move || burst::burst(size)),
        Test::new("large-job", &[Bus], move || large_job::large_job(size)),
        Test::new("worker-killed", &[Bus, Low], move || kills::worker_killed(size)),
        Test::new("daemon-killed", &[Bus], move || kills::daemon_killed(size)),
        Test::new("deaf-client", &[Bus], move || quitters::deaf_client(size)),
        Test::new("quitters", &[Bus], move || quitters::quitters(size)),
        Test::new("huge-requests", &[Bus, Curl], move || descriptors::huge_requests(size)),
        Test::new("descriptor-flood", &[Bus], move || descriptors::descriptor_flood(size)),
        Test::new("fleet-cut-off", &[Network, Haproxy, Bus, Low, PythonHttp], move || {
            cut_off::fleet_cut_off(size)
        }),
        Test::new("fair-share", &[Bus, Low, Root], move || fairness::fair_share(size)),
    ];
    trials.into_iter().find(|trial| trial.name() == name)
}

/// Runs the trial that the words name.
pub fn run(words: &[String]) -> ExitCode {
    let size = match words.get(1).map(String::as_str) {
        None | Some("--quick") => Size::Quick,
        _ => Size::Full,
    };
    let name = words.first().map_or("", String::as_str);
    let Some(trial) = trial(name, size) else {
        eprintln!("there is no trial {name:?}");
        return ExitCode::FAILURE;
    };
    if let Some(reason) = trial.skipped() {
        println!("skipped: {reason}");
        return ExitCode::SUCCESS;
    }
    match trial.conduct() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{}", failure.message().unwrap_or_default());
            let first = failure.message().and_then(|text| text.lines().next());
            println!("missed: {}", first.unwrap_or("it failed"));
            ExitCode::FAILURE
        }
    }
}
