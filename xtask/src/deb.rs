//! `cargo xtask deb`: the Debian package, of the tree that `dist` lays out.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use crate::dist;
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, cargo, program};

const CARGO_DEB: &str = "3.8.0";
const LINTIAN: &[Need] = &[Need { program: "lintian", package: "lintian" }];

/// Builds the package and has lintian look at it.
pub fn run(words: &[String]) -> Outcome {
    let profile = match words {
        [] => "dist",
        [flag, profile] if flag == "--profile" => profile,
        _ => return Err("Usage: cargo xtask deb [--profile PROFILE]".to_owned()),
    };
    packages::ensure(&[LINTIAN])?;
    let package = build(profile)?;
    let mut lintian = program("lintian", &["--tag-display-limit=0", "--fail-on=error,warning"]);
    if nix::unistd::geteuid().is_root() {
        lintian.arg("--allow-root");
    }
    shell::run(lintian.arg(&package))?;
    println!("{}", package.display());
    Ok(())
}

/// Builds the package and returns where it is.
pub fn build(profile: &str) -> Result<PathBuf, String> {
    ensure_cargo_deb()?;
    let tree = shell::root().join("target/dist-tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|e| format!("can't remove {}: {e}", tree.display()))?;
    }
    dist::lay_out(&dist::build(profile)?, &tree)?;
    let package = shell::root().join("target/debian/op-dbus.deb");
    // One of the profile `dist` is stripped already.
    shell::run(program("strip", &["--strip-unneeded"]).arg(tree.join("usr/bin/op-dbus")))?;
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
