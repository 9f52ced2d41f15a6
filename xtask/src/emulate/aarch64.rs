//! aarch64 below QEMU's user mode, by Debian's compiler and standard library.
//!
//! The compiler that builds op-dbus brings no standard library for other targets. Debian has one,
//! for its own compiler. Only that one package is foreign, so it is unpacked into `target/` instead
//! of teaching the system a second architecture.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Emulator;
use crate::dist;
use crate::packages;
use crate::shell::{self, Outcome, cargo, program};

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Where Debian has the libraries of the architecture.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
const LINKER: &str = "aarch64-linux-gnu-gcc";
pub(super) const EMULATOR: &str = "/usr/bin/qemu-aarch64";
const COMPILER: &str = "/usr/bin/rustc";
const COMPILER_PACKAGE: &str = "rustc-web";
const LIBRARY_PACKAGE: &str = "libstd-rust-web-dev";

/// Where the library is unpacked.
const UNPACKED: &str = "target/emulate/aarch64-library";
/// Where cargo builds.
const FOLDER: &str = "target/emulate/engine";

/// Where a file lies that [`Qemu::cargo`] has built.
pub(super) fn built(file: &str) -> PathBuf {
    shell::root().join(FOLDER).join(TARGET).join(file)
}

/// The emulator, and where the standard library was unpacked.
#[derive(Default)]
pub struct Qemu {
    library: PathBuf,
}

impl Qemu {
    /// cargo, for programs that the emulator finds the libraries of.
    pub(super) fn cargo(&self, arguments: &[&str]) -> Command {
        let mut cargo = cargo(arguments);
        // Of another compiler than ours, so that neither has the other build anew.
        cargo
            .args(["--target", TARGET])
            .env("RUSTC", COMPILER)
            .env(shell::TARGET, shell::root().join(FOLDER));
        let mut of_target = |key: &str, value: &str| {
            cargo.env(format!("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_{key}"), value);
        };
        of_target("LINKER", LINKER);
        of_target("RUNNER", &format!("{EMULATOR} -cpu {}", self.whole_cpu()));
        // Where a target is named they are for it alone, and for no program that runs while it is built.
        let flags = [
            format!("--sysroot={}", self.library.display()),
            // Found without a variable: a worker has none.
            format!("-Clink-arg=-Wl,--dynamic-linker={LIBRARIES}/ld-linux-aarch64.so.1"),
            format!("-Clink-arg=-Wl,-rpath,{LIBRARIES}"),
        ];
        shell::compiler_flags(&mut cargo, &flags);
        cargo
    }
}

impl Emulator for Qemu {
    fn arch(&self) -> &'static str {
        "aarch64"
    }

    fn cpus(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("portable", "cortex-a53"),
            ("neon", "cortex-a53"),
            ("neon-dotprod", "cortex-a76"),
            // QEMU has no CPU with one of these two but not the other.
            ("neon-i8mm", "max"),
            ("neon-bf16", "max"),
        ]
    }

    fn whole_cpu(&self) -> &'static str {
        "max"
    }

    fn prepare(&mut self) -> Outcome {
        packages::ensure(&[packages::AARCH64])?;
        self.library = fetch_library()?;
        Ok(())
    }

    fn compiler(&self) -> Command {
        let mut command = program(COMPILER, &["--target", TARGET]);
        command.arg(format!("-Clinker={LINKER}")).arg("--sysroot").arg(&self.library);
        command
    }

    fn command(&self, cpu: &str, tests: &Path) -> Command {
        let mut command = program(EMULATOR, &["-cpu", cpu]);
        command.arg(tests);
        command
    }
}

/// The folder that has `lib/rustlib/aarch64-unknown-linux-gnu`, of the compiler's very version.
fn fetch_library() -> Result<PathBuf, String> {
    let query = ["--show", "--showformat", "${Version}", COMPILER_PACKAGE];
    let version = shell::read(&mut program("dpkg-query", &query))
        .map_err(|_| format!("{COMPILER} is not of Debian's package {COMPILER_PACKAGE}"))?;
    let folder = shell::root().join(UNPACKED);
    let mark = folder.join("version");
    if fs::read_to_string(&mark).is_ok_and(|found| found == version) {
        return Ok(folder.join("usr"));
    }
    println!("fetching {LIBRARY_PACKAGE} for arm64, version {version}");
    dist::emptied(UNPACKED)?;
    dist::emptied(&format!("{UNPACKED}/lists/partial"))?;
    dist::emptied(&format!("{UNPACKED}/cache/archives/partial"))?;
    // Lists and cache of our own: the system's package state stays as it is, and root is not needed.
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.current_dir(&folder).args(["-qq", "-o", "APT::Architectures::=arm64"]);
        apt.args(["-o", "Acquire::Languages=none", "-o", "APT::Sandbox::User="]);
        apt.arg("-o").arg(format!("Dir::State::lists={}", folder.join("lists").display()));
        apt.arg("-o").arg(format!("Dir::Cache={}", folder.join("cache").display()));
        shell::run(apt.args(arguments))
    };
    apt(&["update"])?;
    apt(&["download", &format!("{LIBRARY_PACKAGE}:arm64={version}")])?;
    let files = fs::read_dir(&folder).map_err(|e| place(&folder, &e))?;
    let package = files.flatten().map(|file| file.path());
    let package = package.filter(|path| path.extension().is_some_and(|end| end == "deb")).last();
    let package =
        package.ok_or_else(|| format!("apt-get left no package in {}", folder.display()))?;
    shell::run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(&folder))?;
    for leftover in [folder.join("lists"), folder.join("cache")] {
        fs::remove_dir_all(&leftover).map_err(|e| place(&leftover, &e))?;
    }
    fs::remove_file(&package).map_err(|e| place(&package, &e))?;
    fs::write(&mark, version).map_err(|e| place(&mark, &e))?;
    Ok(folder.join("usr"))
}

fn place(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the library nothing is built; flags of a builder's own would take its place.
    #[test]
    fn the_library_is_found_whatever_flags_a_builder_has() {
        let qemu = Qemu { library: PathBuf::from("/the library") };
        let cargo = qemu.cargo(&["check"]);
        let mut set = cargo.get_envs().filter(|(name, _)| *name == shell::COMPILER_FLAGS);
        let flags = set.next().and_then(|(_, flags)| flags).expect("flags").to_string_lossy();
        assert!(flags.split('\u{1f}').any(|flag| flag == "--sysroot=/the library"), "{flags:?}");
        // Else programs that run here would have them as well.
        let words: Vec<_> = cargo.get_args().collect();
        assert!(words.windows(2).any(|two| two == ["--target", TARGET]), "{words:?}");
    }
}
