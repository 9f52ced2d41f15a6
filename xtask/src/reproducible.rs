//! `cargo xtask reproducible`: whether two builds of the same source, in two folders, are the same files.

use std::fs;
use std::path::Path;

use crate::dist;
use crate::shell::{self, Outcome, cargo, program};
use crate::trials::{self, Conditions, Figure, Size};

/// Two folders below `target` that no file should tell apart: neither the names nor their length.
const FOLDERS: [&str; 2] = ["target/reproducible/one", "target/reproducible/another-one"];

/// Builds twice in `profile` and compares.
///
/// # Errors
/// A build fails, or the files differ.
pub fn run(profile: &str) -> Outcome {
    trials::tell(&compare(profile)?)
}

/// The trial of the same name, which takes two whole builds.
///
/// # Errors
/// A build fails.
pub fn try_out(conditions: &Conditions) -> Result<Vec<Figure>, String> {
    if conditions.size == Size::Quick {
        return Ok(vec![Figure::skipped("it takes two whole builds: --full")]);
    }
    compare("dist")
}

fn compare(profile: &str) -> Result<Vec<Figure>, String> {
    let mut sums = Vec::new();
    // Both before the first build, so that they are the same whatever is edited meanwhile.
    let sources = FOLDERS.map(|folder| {
        let source = dist::emptied(folder)?;
        dist::export(&source)?;
        Ok::<_, String>(source)
    });
    for source in sources {
        let source = source?;
        let mut build = cargo(&["run", "--quiet", "--locked", "--package", "xtask", "--", "dist"]);
        build.arg(source.join("tree")).args(["--profile", profile]);
        let built = source.join("target");
        shell::run(build.current_dir(&source).env(shell::TARGET, &built))?;
        sums.push(digests(&source.join("tree"))?);
        // Of a build, the tree is all that is still needed: the rest is a gigabyte.
        fs::remove_dir_all(&built).map_err(|e| format!("{}: {e}", built.display()))?;
    }
    let [one, other] = [&sums[0], &sums[1]];
    let differing: Vec<&str> = one
        .lines()
        .filter(|line| !other.lines().any(|other| other == *line))
        .filter_map(|line| line.split_whitespace().nth(1))
        .collect();
    let program = one.lines().find(|line| line.ends_with("/usr/bin/op-dbus"));
    let digest = program.and_then(|line| line.split_whitespace().next()).unwrap_or_default();
    Ok(vec![Figure::new(
        one == other && !digest.is_empty(),
        match differing.is_empty() {
            true => format!(
                "{} of {} files the same; op-dbus has the SHA-256 {digest}",
                one.lines().count(),
                other.lines().count()
            ),
            false => format!("{} files differ: {}", differing.len(), differing.join(", ")),
        },
    )])
}

/// A line for each file of a tree, by name: its digest and its path.
fn digests(tree: &Path) -> Result<String, String> {
    let script = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";
    shell::read(program("sh", &["-c", script]).current_dir(tree))
}
