//! `cargo xtask trials`: what the service promises under load, faults and attacks, tried.
//!
//! A trial is a set of tests that `cargo xtask test` runs as well, a program of `tests/trials/` that
//! takes time, or a task of ours about how the program is made. What is not passed or skipped stays in the
//! table with its reason.

mod conduct;
mod document;
mod quality;
mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::shell::{self, Outcome};
use crate::test;
pub use conduct::{ended_early, skips};
use table::{Clock, How, Trial};

/// Whether a figure is within its bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is.
    Held,
    /// It is not.
    Missed,
    /// It is a time, or depends on one, and is not: a machine that is slow or busy misses that, too.
    Late,
    /// It can't be had here.
    Skipped,
}

/// What stands before a figure where it is printed.
const WORDS: [(&str, End); 4] =
    [("held", End::Held), ("missed", End::Missed), ("late", End::Late), ("skipped", End::Skipped)];

/// One thing that was measured or counted, in words; or all that was in a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figure {
    pub end: End,
    pub text: String,
}

impl Figure {
    /// A figure, and whether it is within its bar.
    pub fn new(held: bool, text: impl Into<String>) -> Self {
        Self { end: if held { End::Held } else { End::Missed }, text: text.into() }
    }

    /// One that can't be had here, and why.
    pub fn skipped(why: impl Into<String>) -> Self {
        Self { end: End::Skipped, text: why.into() }
    }
}

/// Prints figures, a line each.
///
/// # Errors
/// One of them is missed.
pub fn tell(figures: &[Figure]) -> Outcome {
    let mut missed = 0;
    for Figure { end, text } in figures {
        let word = WORDS.iter().find(|(_, of)| of == end).map_or("", |(word, _)| word);
        missed += usize::from([End::Missed, End::Late].contains(end));
        println!("{word}: {text}");
    }
    if missed == 0 { Ok(()) } else { Err(format!("{missed} of {} figures missed", figures.len())) }
}

/// What a task is given.
pub struct Conditions {
    /// How long it may take.
    pub size: Size,
    /// A file of pairs of texts with scores, which is not part of the repository.
    pub pairs: Option<PathBuf>,
}

/// How long the programs load the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All that need no build of their own within ten minutes on two idle cores.
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

/// Try load, faults and attacks, with figures
///
/// What was measured is written to docs/trials.md, where trials that were not run keep what they have.
#[derive(clap::Args)]
pub struct Args {
    /// Each as short as it makes sense, which is the default
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// As long as the promises say
    #[arg(long)]
    full: bool,
    /// Tell which trials there are
    #[arg(long)]
    list: bool,
    /// What the trial of quality compares with: text, text and score, tabs between, one pair a line
    #[arg(long, value_name = "FILE", value_parser = shell::path)]
    pairs: Option<PathBuf>,
    /// Number or name of a trial; without one all are run; a quick run leaves out what builds the program anew
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// Runs trials, prints the table, and writes the document.
pub fn run(Args { full, list, pairs, names, .. }: Args) -> Outcome {
    if list {
        table::all().for_each(|trial| println!("{}", listed(trial)));
        return Ok(());
    }
    let size = if full { Size::Full } else { Size::Quick };
    // As it is now: a run takes long, and the source may change meanwhile.
    let taken = document::circumstances();
    let trials = chosen(&names, size)?;
    // Tasks see to what they need themselves.
    if trials.iter().any(|trial| matches!(trial.how, How::Tests(_) | How::Program(_))) {
        test::prepare()?;
    }
    let verdicts = conduct::all(&trials, &Conditions { size, pairs })?;
    println!();
    for trial in &trials {
        if let Some(verdict) = verdicts.get(trial.number) {
            println!("{:4} {:20} {verdict}", trial.number, trial.name);
        }
    }
    document::write(&verdicts, &taken)?;
    not_passed(&verdicts, &[End::Missed, End::Late])
}

/// Runs the programs in their quick size: a part of `cargo xtask test`, which no clock decides.
pub fn programs() -> Outcome {
    let is_program = |trial: &&Trial| matches!(trial.how, How::Program(_));
    let trials: Vec<&Trial> = table::all().filter(is_program).collect();
    let conditions = Conditions { size: Size::Quick, pairs: None };
    let verdicts = conduct::all(&trials, &conditions)?;
    for trial in trials {
        let name = format!("trial {}", trial.name);
        match verdicts.get(trial.number) {
            Some(Figure { end: End::Skipped, text }) => shell::skip(&name, text),
            Some(Figure { end: End::Late, text }) => {
                println!("{name} is late, which decides only on an idle machine: {text}");
            }
            _ => {}
        }
    }
    not_passed(&verdicts, &[End::Missed])
}

fn not_passed(verdicts: &BTreeMap<&str, Figure>, decide: &[End]) -> Outcome {
    match verdicts.values().filter(|verdict| decide.contains(&verdict.end)).count() {
        0 => Ok(()),
        missed => Err(format!("{missed} of {} trials not passed", verdicts.len())),
    }
}

/// The trials of these names; without one all, but for those that a quick run has no time for.
fn chosen(names: &[String], size: Size) -> Result<Vec<&'static Trial>, String> {
    if names.is_empty() {
        let is_left = |trial: &&Trial| size == Size::Quick && matches!(trial.how, How::Build(_));
        let (left, trials): (Vec<_>, Vec<_>) = table::all().partition(is_left);
        for trial in left {
            shell::skip(trial.name, "it builds the program in another way: name it, or use --full");
        }
        return Ok(trials);
    }
    let found = |name: &String| {
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
        How::Task(_) => "a task".to_owned(),
        How::Build(_) => "a task, with a build of its own".to_owned(),
    };
    format!("{:4} {:20} {} ({how})", trial.number, trial.name, trial.promise)
}
