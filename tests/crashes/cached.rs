//! A file of the cache that is being written is whole or not there, whatever befalls its writer; one that can't be
//! read is made anew.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use op_dbus_graph::kept::Kind;

use super::tracer::{FAULTS, KILL, points, traced};
use crate::harness::Outcome;
use crate::harness::command::clean;
use crate::harness::needs::{self, example};
use crate::harness::registry::tests;

tests! {
    a_file_survives_a_fault_at_every_system_call: [Strace],
    weights_that_the_disk_cannot_read_are_packed_anew: [Low, LibraryExamples, Strace],
}

/// Packed weights, calibrations, compiled graphs and costs are others by their names alone.
const FILES: Kind = Kind { finished: "kept", unfinished: ".keeping-", kept: 12 };

/// The file, and what is written to it.
const NAME: &str = "one.kept";
const NEW: &str = "new";

/// What a write consists of, and what it looks for before and after.
const CALLS: &str =
    "/^(openat|mkdir|getdents|flock|f?stat|newfstatat|write|fsync|f?chmod|rename|unlink)";

fn make(path: &Path, content: &str) -> io::Result<()> {
    FILES.make(path, |file| file.write_all(content.as_bytes()))
}

/// What this program does with `--keep PATH`: it writes the file, in a process that may be ended.
pub fn keep(words: &[String]) -> ExitCode {
    match make(Path::new(words.first().map_or("", String::as_str)), NEW) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder as it is before the first write, or with an old file and what a killed writer has left.
fn begin(folder: &Path, old: Option<&str>) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    let Some(old) = old else { return Ok(()) };
    fs::create_dir(folder)?;
    fs::write(folder.join(format!("{}left", FILES.unfinished)), "ol")?;
    fs::write(folder.join(NAME), old)
}

async fn a_file_survives_a_fault_at_every_system_call() -> Outcome {
    let root = tempfile::tempdir()?;
    let folder = root.path().join("cache");
    let path = folder.join(NAME);
    let mut write = clean(std::env::current_exe()?);
    write.arg("--keep").arg(&path);
    let (mut killed, mut refused) = (0, 0);
    for old in [None, Some("old")] {
        begin(&folder, old)?;
        let (finished, log) = traced(&write, CALLS, &[]).await?;
        finished.success()?;
        let expected = ["openat", "mkdir", "flock", "write", "fsync", "rename"];
        for (name, number) in points(&log, &folder, &expected) {
            for fault in FAULTS {
                begin(&folder, old)?;
                let inject = format!("--inject={name}:{fault}:when={number}");
                let (finished, log) = traced(&write, CALLS, &[&inject]).await?;
                let what = format!("{fault} at {name} {number}, {old:?}: {}", finished.stderr);
                let found = fs::read_to_string(&path).ok();
                let found = found.as_deref();
                assert!(found == old || found == Some(NEW), "{what}: {found:?}");
                match finished.code {
                    None => killed += 1,
                    Some(0) => assert_eq!(found, Some(NEW), "{what}"),
                    code => {
                        refused += 1;
                        assert_eq!(code, Some(1), "{what}");
                        assert!(finished.stderr.contains("os error"), "{what}");
                    }
                }
                assert_eq!(finished.code.is_none(), fault == KILL, "{what}");
                assert!(fault == KILL || log.contains("(INJECTED)"), "{what}");

                make(&path, "next").map_err(|error| format!("{what}: {error}"))?;
                let left: Vec<_> = folder.read_dir()?.flatten().map(|f| f.file_name()).collect();
                assert_eq!(left, [NAME], "left over, {what}");
                assert_eq!(fs::read_to_string(&path)?, "next", "{what}");
            }
        }
    }
    println!("figure: a write of the cache killed at {killed} system calls, {refused} refused");
    assert!(killed > 20 && refused > 20, "only {killed} kills and {refused} errors hit the write");
    Ok(())
}

/// A page of a mapped file that can't be read ends the process that looks at it: it has to be read before.
async fn weights_that_the_disk_cannot_read_are_packed_anew() -> Outcome {
    let root = tempfile::tempdir()?;
    let (texts, vectors) = (root.path().join("texts"), root.path().join("vectors"));
    fs::write(&texts, "disk full\n")?;
    let script = format!("exec \"$@\" < {}", texts.display());
    let mut embed = clean("sh");
    embed.args(["-c", &script, "sh"]).arg(example("bulk")).arg(&vectors);
    embed.arg(needs::store().join("models")).arg("low").env("XDG_CACHE_HOME", root.path());
    traced(&embed, "read", &[]).await?.0.success()?;
    let expected = fs::read(&vectors)?;
    let (folder, _) = only(root.path().join("op-dbus/by-model"))?;
    let (weights, bytes) = only(folder.join("weights"))?;
    let of_weights = weights.to_str().ok_or("a path that is no text")?;

    // By parts of a MiB, from one of them on: a second look finds no more than the first.
    for read in (1..bytes >> 20).step_by(8) {
        let before = fs::metadata(&weights)?.ino();
        let inject = format!("--inject=read:error=EIO:when={read}+");
        let (finished, log) = traced(&embed, "read", &["-P", of_weights, &inject]).await?;
        assert!(log.contains("(INJECTED)"), "read {read}: {log}");
        finished.success().map_err(|error| format!("read {read}: {error}"))?;
        assert_ne!(fs::metadata(&weights)?.ino(), before, "not packed anew, read {read}");
        assert!(fs::read(&vectors)? == expected, "other vectors, read {read}");
    }
    Ok(())
}

/// The only file of a folder, and its bytes.
fn only(folder: PathBuf) -> Outcome<(PathBuf, u64)> {
    let mut found = fs::read_dir(&folder)?;
    let (Some(one), None) = (found.next(), found.next()) else {
        return Err(format!("not one file in {}", folder.display()).into());
    };
    let one = one?;
    Ok((one.path(), one.metadata()?.len()))
}
