//! Writes `docs/trials.md`: the table as it is, and what was measured last for each trial.

use std::collections::BTreeMap;
use std::fs;

use super::Figure;
use super::table::{self, How, Trial};
use crate::shell::{self, Outcome};

const HEAD: &str = "\
# Trials

<!-- Made by `cargo xtask trials`; change the table in xtask/src/trials/table/. -->

What op-dbus promises under load, faults and attacks, and what was measured when it was tried. Anyone can
try again:

```
cargo xtask trials --list            # all of them, and how each is tried
cargo xtask trials --quick           # all, each as short as it makes sense: ten minutes
cargo xtask trials --full            # as long as the promises say: hours
cargo xtask trials --full fair-share # one
cargo xtask trials --pairs stsb.tsv  # with the pairs of texts that `quality` needs, which are not ours
```

A trial is *passed* if all of its figures are within the bar, in the size that stands before them: a
*quick* one shows less than the promise says, a *full* one all of it. One that is *not passed*, or *skipped* on
the machine where it was run, says why; *not run yet* is what it says. Where times count the machine has to be
idle; a figure that was taken beside other work says so. The last column has what of the promise a trial does
not show.

| trial | promise | bar | outcome | figure | not shown |
|---|---|---|---|---|---|
";

/// Writes the document: `verdicts` for the trials that were run, for others what stands there.
pub fn write(verdicts: &BTreeMap<&str, Figure>) -> Outcome {
    let path = shell::root().join("docs/trials.md");
    // Before the first time there is none.
    let old = fs::read_to_string(&path).unwrap_or_default();
    let mut text = HEAD.to_owned();
    for trial in table::all() {
        let (outcome, figure) = match verdicts.get(trial.number) {
            Some(verdict) => (verdict.end.to_string(), verdict.text.clone()),
            None => standing(&old, trial),
        };
        let Trial { number, name, promise, bar, rest, .. } = trial;
        text +=
            &format!("| {number} `{name}` | {promise} | {bar} | {outcome} | {figure} | {rest} |\n");
    }
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Outcome and figure of a trial in the document as it is.
fn standing(old: &str, trial: &Trial) -> (String, String) {
    let start = format!("| {} `", trial.number);
    let row = old.lines().find(|line| line.starts_with(&start));
    let cells: Vec<&str> = row.into_iter().flat_map(|row| row.split('|')).map(str::trim).collect();
    match (cells.get(4), cells.get(5)) {
        (Some(outcome), Some(figure)) if is_of_as_many_tests(figure, &trial.how) => {
            ((*outcome).to_owned(), (*figure).to_owned())
        }
        _ => ("not run yet".to_owned(), String::new()),
    }
}

/// Whether a figure, if it is one of tests, was taken with as many as the trial has now.
fn is_of_as_many_tests(figure: &str, how: &How) -> bool {
    let How::Tests(names) = how else { return true };
    let told = ["failed: ", "there is no test "];
    told.iter().any(|told| figure.starts_with(told))
        || figure.contains(&format!(" of {} test", names.len()))
}
