//! `cargo xtask rpm`: the RPM package, of the tree that `dist` lays out.

use std::path::{Path, PathBuf};

use crate::dist;
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, program};

/// What builds and checks it.
pub const NEEDS: &[Need] = &[
    Need { program: "rpmbuild", package: "rpm" },
    Need { program: "rpmlint", package: "rpmlint" },
];
/// What distributions of RPM define by a package of theirs, and others don't.
const SYSTEMD_MACROS: &str = "packaging/rpm/macros.systemd";

/// Builds the package, has rpmlint look at it, installs it into a folder and runs it there.
pub fn run(words: &[String]) -> Outcome {
    packages::ensure(&[NEEDS])?;
    let package = build(&dist::program(words)?)?;
    let lint = ["--strict", "--config", "packaging/rpm/rpmlint.toml", "packaging/rpm/op-dbus.spec"];
    shell::run(program("rpmlint", &lint).arg(&package))?;
    try_out(&package)?;
    println!("{}", package.display());
    Ok(())
}

/// Builds the package of this program and returns where it is.
fn build(op_dbus: &Path) -> Result<PathBuf, String> {
    let tree = dist::tree_for_package(op_dbus)?;
    let top = dist::emptied("target/rpm")?;
    let mut rpmbuild = program("rpmbuild", &["-bb", "--quiet"]);
    // What it is built with is cargo's matter here, and no package.
    rpmbuild.arg("--nodeps");
    let defined = shell::read(&mut program("rpm", &["--eval", "%{?_unitdir}"]))?;
    if defined.trim().is_empty() {
        rpmbuild.arg(format!("--load={SYSTEMD_MACROS}"));
    }
    rpmbuild.arg("--define").arg(format!("_topdir {}", top.display()));
    rpmbuild.arg("--define").arg(format!("_sourcedir {}", shell::root().display()));
    rpmbuild.arg("--define").arg(format!("tree {}", tree.display()));
    // Debian has these scripts for another shell than its own. They would compress pages.
    rpmbuild.args(["--define", "__os_install_post %{nil}"]);
    shell::run(rpmbuild.arg("packaging/rpm/op-dbus.spec"))?;
    let folder = top.join("RPMS").join(std::env::consts::ARCH);
    let entries = folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))?;
    let package = entries.flatten().map(|entry| entry.path()).next();
    package.ok_or_else(|| format!("no package in {}", folder.display()))
}

/// Installs the files, without what scripts do to the system, compares them with the tree, and runs
/// the program.
fn try_out(package: &Path) -> Outcome {
    let root = dist::emptied("target/rpm/root")?;
    let mut install = program("rpm", &["--install", "--nodeps", "--noscripts", "--root"]);
    // Neither owner nor database of this machine is touched.
    shell::run(install.arg(&root).args(["--dbpath", "/var/lib/rpm"]).arg(package))?;
    dist::compare(&root)?;
    shell::run(&mut program(root.join("usr/bin/op-dbus"), &["--version"]))
}
