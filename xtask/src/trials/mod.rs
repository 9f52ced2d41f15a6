//! `cargo xtask trials`: what the service promises under load, faults and attacks, tried.
//!
//! A trial is a set of tests that `cargo xtask test` runs as well, or a program of `tests/trials/` that
//! takes time. What is not passed, skipped or open stays in the table with its reason.

mod conduct;
mod document;
mod table;

use std::collections::BTreeMap;

use crate::shell::Outcome;
use crate::test;
use conduct::{Result, Verdict};
use table::{Clock, How, Trial};

/// How long the programs load the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All of them within ten minutes on two idle cores.
    Quick,
    /// As the promises are written: hours.
    Full,
}

impl Size {
    /// The flag that names it, for us and for the programs.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Quick => "--quick",
            Self::Full => "--full",
        }
    }
}

const USAGE: &str = "\
usage: cargo xtask trials [--quick | --full] [NAME…]
       cargo xtask trials --list

NAME is the number or the name of a trial; without one all are run. What was measured is written to
docs/trials.md, where trials that were not run keep what they have.";

/// Runs trials, prints the table, and writes the document.
pub fn run(words: &[String]) -> Outcome {
    if words == ["--list"] {
        table::all().for_each(|trial| println!("{}", listed(trial)));
        return Ok(());
    }
    let (flags, names): (Vec<_>, Vec<_>) = words.iter().partition(|word| word.starts_with('-'));
    let size = match flags.as_slice() {
        [] => Size::Quick,
        [flag] if *flag == Size::Quick.flag() => Size::Quick,
        [flag] if *flag == Size::Full.flag() => Size::Full,
        _ => return Err(USAGE.to_owned()),
    };
    let trials = chosen(&names)?;
    let settings = test::prepare()?;
    let verdicts = conduct::all(&trials, size, &settings)?;
    println!();
    for trial in &trials {
        if let Some(verdict) = verdicts.get(trial.number) {
            println!("{:4} {:20} {verdict}", trial.number, trial.name);
        }
    }
    document::write(&verdicts)?;
    missed(&verdicts)
}

/// Runs the programs whose figures do not depend on the machine: a part of `cargo xtask test`.
pub fn counted(settings: &test::Settings) -> Outcome {
    let counts = |trial: &&Trial| matches!(trial.how, How::Program(Clock::Counts));
    let trials: Vec<&Trial> = table::all().filter(counts).collect();
    missed(&conduct::all(&trials, Size::Quick, settings)?)
}

fn missed(verdicts: &BTreeMap<&str, Verdict>) -> Outcome {
    let missed = |verdict: &&Verdict| verdict.result == Result::Missed;
    match verdicts.values().filter(missed).count() {
        0 => Ok(()),
        missed => Err(format!("{missed} of {} trials not passed", verdicts.len())),
    }
}

fn chosen(names: &[&String]) -> std::result::Result<Vec<&'static Trial>, String> {
    if names.is_empty() {
        return Ok(table::all().collect());
    }
    let found = |name: &&String| {
        let is = |trial: &&Trial| trial.name == name.as_str() || trial.number == name.as_str();
        table::all().find(is).ok_or_else(|| format!("there is no trial {name:?}; --list has them"))
    };
    names.iter().map(found).collect()
}

fn listed(trial: &Trial) -> String {
    let how = match trial.how {
        How::Tests(tests) => format!("{} tests", tests.len()),
        How::Program(Clock::Counts) => "counts".to_owned(),
        How::Program(Clock::Timed) => "takes times".to_owned(),
        How::Open(reason) => format!("open: {reason}"),
    };
    format!("{:4} {:20} {} ({how})", trial.number, trial.name, trial.promise)
}
