//! `cargo xtask deb`: the Debian packages, of the tree that `dist` lays out.

use std::path::{Path, PathBuf};

use crate::dist::{self, Program};
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, cargo, program};

const CARGO_DEB: &str = "3.8.0";
/// What it takes beside Debian's own tools for packages.
pub const NEEDS: &[Need] = &[Need { program: "lintian", package: "lintian" }];

/// The packages: the service, and HTTP in front of it.
pub struct Packages {
    pub service: PathBuf,
    pub gateway: PathBuf,
}

/// Builds the packages, compares them with the tree, and has lintian look at them.
pub fn run(op_dbus: &Program) -> Outcome {
    packages::ensure(&[NEEDS])?;
    let Packages { service, gateway } = build(&op_dbus.path()?)?;
    let root = dist::emptied("target/debian/root")?;
    for package in [&service, &gateway] {
        shell::run(program("dpkg-deb", &["--extract"]).arg(package).arg(&root))?;
    }
    dist::compare(&root)?;
    let mut lintian = program("lintian", &["--tag-display-limit=0", "--fail-on=error,warning"]);
    if nix::unistd::geteuid().is_root() {
        lintian.arg("--allow-root");
    }
    shell::run(lintian.args([&service, &gateway]))?;
    println!("{}\n{}", service.display(), gateway.display());
    Ok(())
}

/// Builds the packages of this program and returns where they are.
pub fn build(op_dbus: &Path) -> Result<Packages, String> {
    shell::need_cargo_command("deb", CARGO_DEB, "a minute")?;
    let tree = dist::tree_for_package(op_dbus)?;
    dist::move_gateway(&tree, &dist::emptied("target/dist-tree-gateway")?)?;
    let service = package("op-dbus.deb", &[])?;
    let gateway = package("op-dbus-gateway.deb", &["--variant", "gateway"])?;
    Ok(Packages { service, gateway })
}

/// The service's package once more, a revision later, of the tree that the last build has left: what
/// the other is upgraded to.
pub fn build_successor() -> Result<PathBuf, String> {
    package("op-dbus-successor.deb", &["--deb-revision", "2"])
}

fn package(file: &str, words: &[&str]) -> Result<PathBuf, String> {
    let package = shell::root().join("target/debian").join(file);
    // What cargo-deb would build and strip is what it finds in target/release.
    let mut deb = cargo(&["deb", "--quiet", "--package", "op-dbus", "--no-build", "--no-strip"]);
    shell::run(deb.arg("--output").arg(&package).args(words))?;
    Ok(package)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_service_runs_is_depended_on() {
        let read = |file: &str| std::fs::read_to_string(shell::root().join(file)).expect("a file");
        assert!(read("systemd/op-dbus.service").contains("\nExecReload=/bin/kill "));
        let manifest = read("crates/op-dbus/Cargo.toml");
        let depends = manifest.lines().find_map(|line| line.strip_prefix("depends = "));
        let depends = depends.expect("what the service's package depends on");
        // On Debian that program is no part of what every system has.
        assert!(depends.contains(" procps,"), "{depends}");
    }
}
