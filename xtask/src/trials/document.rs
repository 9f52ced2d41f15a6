//! Writes `docs/trials.md`: the table as it is, and what was measured last for each trial.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::fs;

use super::Figure;
use super::table::{self, How, Trial};
use crate::shell::{self, Outcome, program};

const HEAD: &str = "\
# Trials

<!-- Made by `cargo xtask trials`; change the table in xtask/src/trials/table/. -->

What op-dbus promises under load, faults and attacks, and what was measured when it was tried. Anyone can
try again:

```
cargo xtask trials --list            # all of them, and how each is tried
cargo xtask trials --quick           # each as short as it makes sense
cargo xtask trials --full            # as long as the promises say: hours
cargo xtask trials --full fair-share # one
cargo xtask trials --pairs stsb.tsv  # with the pairs of texts that `quality` needs, which are not ours
```

A trial is *passed* if all of its figures are within the bar, in the size that stands before them: a
*quick* one shows less than the promise says, a *full* one all of it. One that is *not passed*, or *skipped* on
the machine where it was run, says why; *not run yet* is what it says. Where times count the machine has to be
idle; a figure that was taken beside other work says so. *taken* has the day of the run, the commit that it was
a run of, `-dirty` where the source was another than that, and the CPU. What was taken before that was noted has
the day and the commit with which the figure came here. The last column has what of the promise a trial does not
show.

A quick run that names no trial took nine minutes on two cores of an AMD EPYC (Zen 4), and eleven on two of an older one
(Zen 3), once the program was built. It leaves
`sanitizers`, `reproducible` and `fuzz` out, which build it in other ways: half an hour, two whole builds, and one with
5 s for each target. Name them, or use `--full`.

CI runs `cargo xtask test`: of the trials that is the tests, and the programs in their quick size. A *time* that is
missed there (`bulk-beside`, `burst`, `worker-killed`, `daemon-killed`, `deaf-client`, `fair-share`, `fleet-cut-off`)
is told and fails nothing, as the machine may be busy. Not run there are `quality`, `reproducible`, `fuzz` and
`sanitizers`, and of `supply` all but licences and sources; `histories` goes through 2,000 of its 100,000 there and in
a quick run.

| trial | promise | bar | outcome | figure | taken | not shown |
|---|---|---|---|---|---|---|
";

/// Which day it is, of what commit the source is, and what computes.
pub fn circumstances() -> String {
    let told = |name: &str, words: &[&str]| shell::read(&mut program(name, words)).ok();
    let day = told("date", &["--utc", "+%F"]).unwrap_or_default();
    let commit = told("git", &["describe", "--always", "--dirty", "--exclude=*"]);
    let commit = commit.unwrap_or_else(|| "no commit".to_owned());
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let cpu = named.and_then(|line| line.split_once(": ")).map_or(ARCH, |(_, cpu)| cpu);
    format!("{}, {}, {}", day.trim(), commit.trim(), cpu.trim()).replace('|', "/")
}

/// Writes the document: `verdicts` for the trials that were run, `taken` so; for others what stands there.
pub fn write(verdicts: &BTreeMap<&str, Figure>, taken: &str) -> Outcome {
    let path = shell::root().join("docs/trials.md");
    // Before the first time there is none.
    let old = fs::read_to_string(&path).unwrap_or_default();
    let text = HEAD.to_owned() + &rows(&old, verdicts, taken);
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

fn rows(old: &str, verdicts: &BTreeMap<&str, Figure>, taken: &str) -> String {
    let row = |trial: &Trial| {
        let [outcome, figure, taken] = match verdicts.get(trial.number) {
            Some(verdict) => [verdict.end.to_string(), verdict.text.clone(), taken.to_owned()],
            None => standing(old, trial),
        };
        let Trial { number, name, promise, bar, rest, .. } = trial;
        format!(
            "| {number} `{name}` | {promise} | {bar} | {outcome} | {figure} | {taken} | {rest} |\n"
        )
    };
    table::all().map(row).collect()
}

/// Outcome, figure and circumstances of a trial in the document as it is.
fn standing(old: &str, trial: &Trial) -> [String; 3] {
    let start = format!("| {} `", trial.number);
    let row = old.lines().find(|line| line.starts_with(&start));
    let cells: Vec<&str> = row.into_iter().flat_map(|row| row.split('|')).map(str::trim).collect();
    match cells.get(4..7) {
        Some([outcome, figure, taken]) if is_of_as_many_tests(figure, &trial.how) => {
            [outcome, figure, taken].map(|cell| (*cell).to_owned())
        }
        _ => ["not run yet".to_owned(), String::new(), String::new()],
    }
}

/// Whether a figure, if it is one of tests, was taken with as many as the trial has now.
fn is_of_as_many_tests(figure: &str, how: &How) -> bool {
    let How::Tests(names) = how else { return true };
    let told = ["failed: ", "there is no test "];
    told.iter().any(|told| figure.starts_with(told))
        || figure.contains(&format!(" of {} test", names.len()))
}

#[cfg(test)]
mod tests {
    use super::super::End;
    use super::*;

    #[test]
    fn a_figure_keeps_the_circumstances_that_it_was_taken_in() {
        let verdict = |text: &str| Figure { end: End::Held, text: text.to_owned() };
        let ran = |number, text| BTreeMap::from([(number, verdict(text))]);
        let first = rows("", &ran("T1", "full: 0 lost"), "a day, a commit, a CPU");
        let second = rows(&first, &ran("T2", "quick: 0.0 MiB"), "another day");
        let of = |number: &str| {
            let row = second.lines().find(|line| line.starts_with(&format!("| {number} `")));
            row.unwrap_or_default().split(" | ").skip(3).take(3).collect::<Vec<_>>().join(" | ")
        };
        assert_eq!(of("T1"), "passed | full: 0 lost | a day, a commit, a CPU");
        assert_eq!(of("T2"), "passed | quick: 0.0 MiB | another day");
        assert_eq!(of("T3"), "not run yet |  | ");
    }

    #[test]
    fn circumstances_are_a_day_a_commit_and_a_cpu() {
        let told = circumstances();
        let parts: Vec<&str> = told.splitn(3, ", ").collect();
        assert!(parts.len() == 3 && parts.iter().all(|part| !part.is_empty()), "{told}");
        assert_eq!(parts[0].split('-').map(str::len).collect::<Vec<_>>(), [4, 2, 2], "{told}");
    }
}
