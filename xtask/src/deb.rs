//! `cargo xtask deb`: the Debian package, of the tree that `dist` lays out.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::dist;
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, cargo, program};

const CARGO_DEB: &str = "3.8.0";
const LINTIAN: &[Need] = &[Need { program: "lintian", package: "lintian" }];

/// Builds the package, compares it with the tree, and has lintian look at it.
pub fn run(words: &[String]) -> Outcome {
    packages::ensure(&[LINTIAN])?;
    let package = build(&dist::program(words)?)?;
    let root = dist::emptied("target/debian/root")?;
    shell::run(program("dpkg-deb", &["--extract"]).arg(&package).arg(&root))?;
    dist::compare(&root)?;
    let mut lintian = program("lintian", &["--tag-display-limit=0", "--fail-on=error,warning"]);
    if nix::unistd::geteuid().is_root() {
        lintian.arg("--allow-root");
    }
    shell::run(lintian.arg(&package))?;
    println!("{}", package.display());
    Ok(())
}

/// Builds the package of this program and returns where it is.
pub fn build(op_dbus: &Path) -> Result<PathBuf, String> {
    ensure_cargo_deb()?;
    dist::tree_for_package(op_dbus)?;
    let package = shell::root().join("target/debian/op-dbus.deb");
    // What cargo-deb would build and strip is what it finds in target/release.
    let words = ["deb", "--quiet", "--package", "op-dbus", "--no-build", "--no-strip", "--output"];
    shell::run(cargo(&words).arg(&package))?;
    Ok(package)
}

fn ensure_cargo_deb() -> Outcome {
    let mut version = cargo(&["deb", "--version"]);
    let there = version.stdout(Stdio::null()).stderr(Stdio::null());
    if there.status().is_ok_and(|status| status.success()) {
        return Ok(());
    }
    println!("installing cargo-deb (a minute)");
    shell::run(&mut cargo(&["install", "--locked", "--quiet", "cargo-deb", "--version", CARGO_DEB]))
}
