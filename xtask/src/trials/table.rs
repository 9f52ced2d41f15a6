//! The trials as data: what is promised, where the bar is, and what shows it.

mod clients;
mod faults;
mod files;
mod load;
mod making;
mod scale;
mod tools;
mod vectors;

use super::{Conditions, Figure};

/// One promise and how it is tried.
pub struct Trial {
    /// `T1`, `T2`, …
    pub number: &'static str,
    /// What is typed after `cargo xtask trials`.
    pub name: &'static str,
    /// What holds if it is passed.
    pub promise: &'static str,
    /// What is measured or counted, and how much is allowed.
    pub bar: &'static str,
    /// What shows it.
    pub how: How,
    /// What of the promise that does not show; empty if it is all of it.
    pub rest: &'static str,
}

/// What shows that a promise is kept.
pub enum How {
    /// Tests that `cargo xtask test` runs as well, by their full names.
    Tests(&'static [&'static str]),
    /// A program of `tests/trials/`, called by the trial's name.
    Program(Clock),
    /// A task of ours, which needs no daemon.
    Task(Task),
    /// One that builds the program in another way, which alone takes longer than all that is quick.
    Build(Task),
}

/// Tries what it is named for.
pub type Task = fn(&Conditions) -> Result<Vec<Figure>, String>;

/// Unit tests that end early where the machine lacks what they need, and say so in a line `SKIP: reason`: their runner,
/// which knows no other end, tells them as passed.
pub const MAY_END_EARLY: &[&str] = &[
    "cli::doctor::folders::tests::who_is_on_a_list_is_asked_to_try",
    "cli::doctor::loader::tests::the_loader_of_this_machine_answers",
    "kept::tests::what_others_may_write_is_not_opened",
    "service::provider::libraries::tests::what_the_stores_owner_may_write_is_the_services_own",
    "settings::tests::writers::files_of_somebody_else_are_refused",
    "staging::owner::tests::a_store_behind_a_link_is_followed_unless_somebody_else_laid_it",
    "staging::owner::tests::who_acts_as_the_owner_is_in_none_of_roots_groups",
    "staging::tests::root_writes_nothing_where_a_link_in_place_of_the_stage_leads",
    "staging::tests::root_writes_nothing_where_a_link_in_place_of_the_store_leads",
    "staging::tests::what_may_not_be_removed_stops_the_removal_of_nothing_else",
    "team::tests::a_member_is_kept_on_its_cpu",
    "team::tests::who_loads_a_model_is_kept_on_the_first_cpu",
    "tests::owners::a_link_in_place_of_the_stage_leads_an_import_nowhere",
    "tests::owners::errors_of_root_tell_the_stores_folder",
    "tests::owners::files_of_somebody_else_are_refused",
    "tests::owners::what_only_root_may_read_is_imported_for_the_stores_owner",
];

/// Whether a figure depends on how fast the machine is and what else it does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// Only things are counted: the figure is the same on every machine.
    Counts,
    /// Times are measured: the machine has to be idle.
    Timed,
}

/// All trials in the order of their numbers.
pub fn all() -> impl Iterator<Item = &'static Trial> {
    let first = [load::TRIALS, faults::TRIALS, clients::TRIALS, files::TRIALS];
    let last = [vectors::TRIALS, making::TRIALS, scale::TRIALS, tools::TRIALS];
    first.into_iter().chain(last).flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::shell;

    #[test]
    fn numbers_ascend_and_names_are_distinct() {
        let number = |trial: &Trial| trial.number[1..].parse::<usize>().unwrap();
        assert!(all().map(number).eq(1..=all().count()));
        let mut names: Vec<_> = all().map(|trial| trial.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all().count());
    }

    #[test]
    fn cells_of_the_table_hold_no_bar() {
        for trial in all() {
            let texts = [trial.promise, trial.bar, trial.rest];
            assert!(texts.iter().all(|text| !text.contains(['|', '\n'])), "{}", trial.number);
        }
    }

    /// The files in a folder and below that are Rust: the path of each, and what it says.
    fn read(folder: &Path, files: &mut Vec<(String, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.display().to_string(), fs::read_to_string(path).unwrap()));
            }
        }
    }

    #[test]
    fn who_may_end_early_is_known_and_says_so() {
        let mut files = Vec::new();
        read(&shell::root().join("crates"), &mut files);
        let mut found = Vec::new();
        for (path, said) in &files {
            for test in said.split("#[test]").skip(1) {
                let Some((head, body)) = test.split_once("() {") else { continue };
                let name = head.rsplit(' ').next().unwrap();
                let lines: Vec<&str> = body.lines().map(str::trim).collect();
                let is_silent =
                    |two: &[&str]| two[0].ends_with("is_root() {") && two[1] == "return;";
                assert!(!lines.windows(2).any(is_silent), "{path}: {name} does not say so");
                if lines.iter().any(|line| line.starts_with("eprintln!(\"SKIP: ")) {
                    found.push(name);
                }
            }
        }
        let known = MAY_END_EARLY.iter().map(|name| name.rsplit("::").next().unwrap());
        let mut known: Vec<&str> = known.collect();
        found.sort_unstable();
        known.sort_unstable();
        assert_eq!(found, known);
    }

    #[test]
    fn every_test_is_there() {
        let mut files = Vec::new();
        for folder in ["crates", "tests"] {
            read(&shell::root().join(folder), &mut files);
        }
        for trial in all() {
            let How::Tests(names) = trial.how else { continue };
            for name in names {
                let (path, test) = name.rsplit_once("::").unwrap_or(("", name));
                // Many have a module of that name: it counts in the file, or the folder, of the one around it.
                let around =
                    path.strip_suffix("::tests").map(|path| path.rsplit("::").next().unwrap());
                let module = around.unwrap_or_else(|| path.rsplit("::").next().unwrap());
                // A function, or a line of `tests!`, in a file or a folder of the module, or in the module itself.
                let tests = [format!("fn {test}("), format!(" {test}: [")];
                let files_of = ["", "/mod", "/tests"].map(|file| format!("/{module}{file}.rs"));
                let is_there = |(path, said): &(String, String)| {
                    let of_module = files_of.iter().any(|end| path.ends_with(end.as_str()))
                        || around.is_none() && said.contains(&format!("mod {module} {{"));
                    (module.is_empty() || of_module) && tests.iter().any(|test| said.contains(test))
                };
                assert!(files.iter().any(is_there), "{}: there is no test {name}", trial.number);
            }
        }
    }
}
