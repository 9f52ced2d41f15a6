//! Running other programs, with the command line in every message.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;

/// What a task answers: nothing, or one sentence.
pub type Outcome = Result<(), String>;

/// Names the folder in which cargo builds.
pub const TARGET: &str = "CARGO_TARGET_DIR";
/// Has the flags of the compiler. cargo takes them from nowhere else then: neither from `RUSTFLAGS` nor from settings.
pub const COMPILER_FLAGS: &str = "CARGO_ENCODED_RUSTFLAGS";

/// How often what fetches is begun in all, and how long after it has failed.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_secs(10);

/// What was passed over since the start, a line each.
static SKIPS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Says that something is passed over on this machine, and keeps it for [`skipped`].
pub fn skip(what: &str, why: &str) {
    let line = format!("SKIP {what}: {why}");
    println!("{line}");
    SKIPS.lock().unwrap_or_else(|e| e.into_inner()).push(line);
}

/// All that was passed over.
pub fn skipped() -> Vec<String> {
    SKIPS.lock().unwrap_or_else(|e| e.into_inner()).clone()
}

/// The root of the checkout.
pub fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_owned()
}

/// A path as the caller means it: commands run in the root of the checkout, wherever we were started.
pub fn path(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

/// A program, to be run in the root of the checkout.
pub fn program(name: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(args).current_dir(root());
    command
}

/// The cargo that runs us. It builds below the checkout, where what it has built is looked for, whatever the
/// caller's settings say.
pub fn cargo(args: &[&str]) -> Command {
    let mut cargo = program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()), args);
    cargo.env(TARGET, root().join("target"));
    cargo
}

/// Has cargo give the compiler these flags, and none that the caller's environment or settings have.
pub fn compiler_flags(cargo: &mut Command, flags: &[String]) {
    cargo.env(COMPILER_FLAGS, flags.join("\u{1f}"));
}

/// Sees to it that cargo has a command of its own: the one that is there, or else `version`, which takes `time`.
///
/// # Errors
/// It can't be installed.
pub fn need_cargo_command(name: &str, version: &str, time: &str) -> Outcome {
    let mut there = cargo(&[name, "--version"]);
    if there.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|it| it.success()) {
        return Ok(());
    }
    println!("installing cargo-{name} ({time})");
    let crate_name = format!("cargo-{name}");
    let words = ["install", "--locked", "--quiet", "--version", version, &crate_name];
    let mut install = cargo(&words);
    // Of a build that is not ours nothing is to be left here.
    install.env_remove(TARGET);
    fetch(|| run(&mut install))
}

/// Does what fetches from others, and again where it has failed: a server that was busy, or a download that broke
/// off, is no reason to do without.
///
/// # Errors
/// The last failure, after each try has had one.
pub fn fetch(mut once: impl FnMut() -> Outcome) -> Outcome {
    for _ in 1..TRIES {
        let Err(message) = once() else { return Ok(()) };
        println!("{message}; it is tried again in {} s", PAUSE.as_secs());
        sleep(PAUSE);
    }
    once()
}

/// Runs to the end, with our own output streams.
pub fn run(command: &mut Command) -> Outcome {
    let status = command.status().map_err(|e| format!("can't run {}: {e}", line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", line(command))) }
}

/// Runs to the end and returns what it printed; its errors go to our own stderr.
pub fn read(command: &mut Command) -> Result<String, String> {
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("can't run {}: {e}", line(command)))?;
    if !output.status.success() {
        return Err(format!("{} failed ({})", line(command), output.status));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{}: {e}", line(command)))
}

/// Runs to the end and returns the JSON that it printed.
pub fn read_json(command: &mut Command) -> Result<Value, String> {
    let said = read(command)?;
    serde_json::from_str(&said)
        .map_err(|e| format!("what {} printed is not JSON: {e}", line(command)))
}

/// Whether a program can be found on the `PATH`.
pub fn exists(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).exists())
}

/// The command line as a person would type it.
fn line(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_lies_where_it_is_looked_for() {
        let cargo = cargo(&["build"]);
        let mut set = cargo.get_envs().filter(|(name, _)| *name == TARGET);
        let folder = set.next().and_then(|(_, folder)| folder);
        assert_eq!(folder, Some(root().join("target").as_os_str()));
    }
}
