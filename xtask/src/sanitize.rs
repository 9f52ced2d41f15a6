//! The trial `sanitizers`: the tests of what is `unsafe`, where every access to memory is looked at.
//!
//! AddressSanitizer comes with the stable compiler. ThreadSanitizer has to see into the standard library,
//! and Miri interprets it: both take a nightly compiler with components of its own, and are skipped
//! where that is not there.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::fuzz::instrumented;
use crate::shell::{self, program};
use crate::trials::{Conditions, Figure};

/// The compiler that has what the stable one has not.
const NIGHTLY: &str = "nightly";
/// The libraries that a sanitizer looks into are built for a target that is named.
const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Where programs of each tool are built, apart from all others.
const FOLDER: &str = "target/sanitize";

/// Tests of what has both threads and `unsafe` code. One of the engine's is not among them: it counts
/// what is allocated, which is more under a sanitizer.
const TESTS: &[&str] = &[
    "--package=op-dbus-engine",
    "--package=op-dbus-native",
    "--package=op-dbus-daemon",
    "--lib",
    "--test=engine",
    "--test=worker",
];

/// For AddressSanitizer as well: the rest of what is `unsafe`. The program has its tests in itself; and it is
/// named so that libraries are those of other builds.
const MORE: &[&str] = &[
    "--package=op-dbus",
    "--bins",
    "--package=op-dbus-ort",
    "--package=op-dbus-tests",
    "--test=kernels",
];

/// Left out, as it bounds the memory of a process: a sanitizer takes terabytes of addresses.
const SKIP: [&str; 2] = ["--", "--skip=a_process_that_wants_too_much_memory_ends"];

/// What is never freed on purpose.
const LEAKS: &str = "tests/fuzz/leaks";

/// The only crate whose `unsafe` code asks the kernel for nothing that Miri has not.
const MIRI: &[&str] = &["--package=op-dbus-native", "--lib"];

/// Runs the tests under one tool after the other.
///
/// # Errors
/// One can't be run.
pub fn try_out(_: &Conditions) -> Result<Vec<Figure>, String> {
    let mut address = instrumented(&["test", "--no-fail-fast"]);
    address.args(MORE).args(TESTS).args(SKIP);
    let leaks = shell::root().join(LEAKS);
    address.env("LSAN_OPTIONS", format!("suppressions={}", leaks.display()));
    Ok(vec![
        counted("AddressSanitizer", &mut address)?,
        match missing("lib/rustlib/src/rust/library/std/Cargo.toml", "rust-src")? {
            None => counted("ThreadSanitizer", &mut thread())?,
            Some(reason) => Figure::skipped(format!("ThreadSanitizer: {reason}")),
        },
        match missing("bin/miri", "miri rust-src")? {
            None => counted("Miri", &mut miri())?,
            Some(reason) => Figure::skipped(format!("Miri: {reason}")),
        },
    ])
}

fn thread() -> Command {
    let mut command =
        nightly(&["cargo", "test", "--no-fail-fast", "-Zbuild-std", "--target", TARGET]);
    command.args(["--target-dir", &format!("{FOLDER}/thread")]).args(TESTS).args(SKIP);
    command.env("RUSTFLAGS", "-Zsanitizer=thread");
    command
}

fn miri() -> Command {
    let mut command = nightly(&["cargo", "miri", "test", "--no-fail-fast"]);
    command.args(["--target-dir", &format!("{FOLDER}/miri")]).args(MIRI);
    // Tests read clocks and make folders.
    // Else Miri has `exp` and the like be a little wrong by chance, and tests that compare bits fail.
    command.env("MIRIFLAGS", "-Zmiri-disable-isolation -Zmiri-deterministic-floats");
    command
}

/// A program of the nightly compiler.
fn nightly(words: &[&str]) -> Command {
    let mut command = program("rustup", &["run", NIGHTLY]);
    command.args(words);
    command
}

/// Why there is no such file of the nightly compiler, which comes with these components.
fn missing(file: &str, components: &str) -> Result<Option<String>, String> {
    if !shell::exists("rustup") {
        return Ok(Some(format!("it needs a {NIGHTLY} compiler by rustup")));
    }
    let sysroot = nightly(&["rustc", "--print", "sysroot"]).stderr(Stdio::null()).output();
    let sysroot = sysroot.map_err(|e| format!("can't run rustup: {e}"))?;
    let sysroot = String::from_utf8_lossy(&sysroot.stdout);
    let there = !sysroot.is_empty() && Path::new(sysroot.trim()).join(file).is_file();
    let remedy = format!("rustup component add --toolchain {NIGHTLY} {components}");
    Ok((!there).then(|| format!("it needs what `{remedy}` brings")))
}

/// Runs tests; how many passed decides too, so that none is not taken for all.
fn counted(tool: &str, test: &mut Command) -> Result<Figure, String> {
    let output = test.stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("can't run the tests under {tool}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    let passed: u64 = said.lines().filter_map(passed).sum();
    let held = output.status.success() && passed > 0;
    Ok(Figure::new(held, format!("{passed} tests passed under {tool}")))
}

/// The tests that passed, of the last line of a test program.
fn passed(line: &str) -> Option<u64> {
    line.split_once(" passed")?.0.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::passed;

    #[test]
    fn tests_that_passed_are_counted() {
        assert_eq!(passed("test result: ok. 12 passed; 0 failed; 0 ignored"), Some(12));
        assert_eq!(passed("312 passed, 0 failed"), Some(312));
        assert_eq!(passed("test tests::a_password_passed ... ok"), None);
    }
}
