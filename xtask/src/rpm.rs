//! `cargo xtask rpm`: the RPM packages, of the tree that `dist` lays out.

use std::path::{Path, PathBuf};

use crate::dist::{self, Program};
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, program};

/// What builds and checks it.
pub const NEEDS: &[Need] = &[
    Need { program: "rpmbuild", package: "rpm" },
    Need { program: "rpmlint", package: "rpmlint" },
];
/// What distributions of RPM define by a package of theirs, and others don't.
const SYSTEMD_MACROS: &str = "packaging/rpm/macros.systemd";

/// Builds the packages, has rpmlint look at them, installs them into a folder and runs them there.
pub fn run(op_dbus: &Program) -> Outcome {
    packages::ensure(&[NEEDS])?;
    let packages = build(&op_dbus.path()?)?;
    let lint = ["--strict", "--config", "packaging/rpm/rpmlint.toml", "packaging/rpm/op-dbus.spec"];
    shell::run(program("rpmlint", &lint).args(&packages))?;
    try_out(&packages)?;
    for package in packages {
        println!("{}", package.display());
    }
    Ok(())
}

/// Builds the packages of this program and returns where they are.
fn build(op_dbus: &Path) -> Result<Vec<PathBuf>, String> {
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
    let mut packages = Vec::new();
    for architecture in [std::env::consts::ARCH, "noarch"] {
        let folder = top.join("RPMS").join(architecture);
        let entries = folder.read_dir().map_err(|e| format!("{}: {e}", folder.display()))?;
        packages.extend(entries.flatten().map(|entry| entry.path()));
    }
    Ok(packages)
}

/// Installs the files, without what scripts do to the system, compares them with the tree, and runs
/// the program.
fn try_out(packages: &[PathBuf]) -> Outcome {
    let root = dist::emptied("target/rpm/root")?;
    let mut install = program("rpm", &["--install", "--nodeps", "--noscripts", "--root"]);
    // Neither owner nor database of this machine is touched.
    shell::run(install.arg(&root).args(["--dbpath", "/var/lib/rpm"]).args(packages))?;
    dist::compare(&root)?;
    shell::run(&mut program(root.join("usr/bin/op-dbus"), &["--version"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fedora's package is called dbus; openSUSE has none of that name.
    #[test]
    fn every_distributions_bus_will_do() {
        let spec = shell::root().join("packaging/rpm/op-dbus.spec");
        let spec = std::fs::read_to_string(spec).expect("a recipe");
        let required = spec.lines().filter_map(|line| line.strip_prefix("Requires:"));
        let buses: Vec<&str> = required.map(str::trim).filter(|it| it.contains("dbus")).collect();
        assert!(buses.contains(&"(dbus or dbus-service)"), "{buses:?}");
        assert!(!buses.contains(&"dbus"), "{buses:?}");
    }
}
