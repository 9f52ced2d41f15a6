//! More than the kernels on aarch64: the native engine, and the program as its users have it.

use super::Emulator;
use super::aarch64::{EMULATOR, Qemu, built};
use crate::shell::{self, Outcome, cargo, program};
use crate::test;

/// Of the integration tests those that the emulator has time for, and no memory to be measured: every member of the
/// contract by three clients, connections past the bus, jobs, errors, and a model that computes.
const TESTS: &str = "package(op-dbus-tests) & (test(/^(contract|direct|errors|jobs)::/) \
                     | test(=cache::what_comes_again_is_not_computed_again))";

/// Registers the emulator with a kernel that does so for a namespace alone (6.7 and newer), and runs the words that
/// follow there.
const REGISTERED: &str = r#"
mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc || exit
printf '%s' "$1" > /proc/sys/fs/binfmt_misc/register || exit
shift
exec "$@"
"#;
/// What programs of aarch64 begin with, and which of these bytes count.
const MAGIC: &str = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00";
const MASK: &str =
    r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff";

/// The native engine's own tests, on the CPU that has everything: all kernels against the reference, as parts of an
/// engine that loads, shares out and calibrates. What takes hours there is left out, and told.
pub fn engine() -> Outcome {
    const LEFT_OUT: &str = "long_texts_are_the_same_bits_wherever_they_stand";
    let Some(qemu) = prepared("the engine on aarch64") else { return Ok(()) };
    shell::skip(LEFT_OUT, "it takes hours below an emulator");
    let mut tests = qemu.cargo(&["test", "--package", "op-dbus-native", "--lib"]);
    // Read while the tests are built.
    tests.env("OP_DBUS_TESTS_EMULATED", "1");
    shell::run(tests.args(["--", "--skip", LEFT_OUT]))
}

/// Integration tests of this machine, with a program for the other one as daemon, worker, gateway and command.
pub fn service() -> Outcome {
    const WHAT: &str = "the service on aarch64";
    let Some(qemu) = prepared(WHAT) else { return Ok(()) };
    let registered = |words: &[&str]| {
        let mut command = program("unshare", &["--user", "--map-root-user", "--mount"]);
        let format = format!(":op-dbus:M::{MAGIC}:{MASK}:{EMULATOR}:F");
        command.args(["sh", "-c", REGISTERED, "sh", &format]).args(words);
        command
    };
    if shell::run(&mut registered(&["true"])).is_err() {
        shell::skip(
            WHAT,
            "an emulator for a namespace alone takes binfmt_misc and a kernel from 6.7 on",
        );
        return Ok(());
    }
    shell::run(&mut qemu.cargo(&["build", "--package", "op-dbus"]))?;
    test::prepare()?;
    let tests = cargo(&["nextest", "run", "--workspace", "--no-fail-fast", "-E", TESTS]);
    let mut words = vec![tests.get_program()];
    words.extend(tests.get_args());
    let mut tests = registered(&[]);
    tests.args(words).env(shell::TARGET, shell::root().join("target"));
    tests.env("OP_DBUS_TEST_BINARY", built("debug/op-dbus"));
    shell::run(&mut tests)
}

/// The program for aarch64, as far as its compiler finds mistakes.
pub fn check() -> Outcome {
    match prepared("the program for aarch64") {
        Some(qemu) => shell::run(&mut qemu.cargo(&["check", "--package", "op-dbus"])),
        None => Ok(()),
    }
}

/// The emulator, unless the machine lacks something for it, which is told.
fn prepared(what: &str) -> Option<Qemu> {
    let mut qemu = Qemu::default();
    match qemu.prepare() {
        Ok(()) => Some(qemu),
        Err(reason) => {
            shell::skip(what, &reason);
            None
        }
    }
}
