//! x86-64 below Bochs, whose CPU comes as a Python package; `tests/emulator/bochs.py` drives it.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Emulator;
use crate::packages;
use crate::shell::{self, Outcome, program};

const PACKAGE: &str = "bochscpu-python==0.4.0";
/// Where it is put, below `target`.
const FOLDER: &str = "bochs";
const RUNNER: &str = "tests/emulator/bochs.py";
/// The wheel wants two C library functions of glibc 2.38 that it never calls: lazy binding.
const IMPORT: &str = "import os, sys; sys.setdlopenflags(os.RTLD_LAZY); import bochscpu";

/// The emulator.
pub struct Bochs;

impl Emulator for Bochs {
    fn arch(&self) -> &'static str {
        "x86_64"
    }

    fn cpus(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("portable", "corei7_haswell_4770"),
            ("avx2", "corei7_haswell_4770"),
            ("avx-vnni", "arrow_lake"),
            ("avx512", "corei7_skylake_x"),
            ("avx512-vnni", "corei7_icelake_u"),
            ("avx512-bf16", "sapphire_rapids"),
            ("amx", "sapphire_rapids"),
        ]
    }

    fn whole_cpu(&self) -> &'static str {
        "sapphire_rapids"
    }

    fn prepare(&mut self) -> Outcome {
        if std::env::consts::ARCH != self.arch() {
            return Err("the compiler and the emulator are for x86-64 machines".to_owned());
        }
        packages::ensure(&[packages::PIP])?;
        // Its dependencies are for building it.
        packages::python(FOLDER, &["--no-deps"], &[PACKAGE])?;
        let mut import = program("python3", &["-c", IMPORT]);
        import.env("PYTHONPATH", folder()).stderr(Stdio::null());
        match import.status().is_ok_and(|status| status.success()) {
            true => Ok(()),
            false => Err(format!("{PACKAGE} can't be imported by python3")),
        }
    }

    fn compiler(&self) -> Command {
        // Cargo names the compiler that it was told to use, for us as for itself.
        let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        program(compiler, &["-C", "relocation-model=static"])
    }

    fn command(&self, cpu: &str, tests: &Path) -> Command {
        let mut command = program("python3", &[RUNNER, "--model", cpu]);
        command.arg(tests).env("PYTHONPATH", folder()).env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

fn folder() -> std::path::PathBuf {
    shell::root().join("target").join(FOLDER)
}
