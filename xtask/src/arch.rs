//! `cargo xtask arch`: the package of Arch Linux, of the tree that `dist` lays out.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::dist::{self, Program};
use crate::packages::{self, Need};
use crate::shell::{self, Outcome, program};

/// What builds and checks it.
pub const NEEDS: &[Need] = &[
    Need { program: "makepkg", package: "makepkg" },
    Need { program: "pacman", package: "pacman-package-manager" },
    Need { program: "fakeroot", package: "fakeroot" },
    Need { program: "bsdtar", package: "libarchive-tools" },
    Need { program: "setpriv", package: "util-linux" },
];
/// makepkg refuses to run as root; this user has nothing.
const NOBODY: u32 = 65534;

/// Builds the package, installs it into a folder and runs it there.
pub fn run(op_dbus: &Program) -> Outcome {
    packages::ensure(&[NEEDS])?;
    let package = build(&op_dbus.path()?)?;
    let root = dist::emptied("target/arch/installed")?;
    let database = dist::emptied("target/arch/installed/var/lib/pacman")?;
    let mut install = program("pacman", &["--upgrade", "--nodeps", "--nodeps", "--noscriptlet"]);
    install.args(["--noconfirm", "--noprogressbar", "--root"]).arg(&root);
    // No hook of this machine, and no hook for it.
    install.arg("--dbpath").arg(database).args(["--hookdir", "/nonexistent", "--config"]);
    shell::run(install.arg("/dev/null").arg(&package))?;
    dist::compare(&root)?;
    shell::run(&mut program(root.join("usr/bin/op-dbus"), &["--version"]))?;
    println!("{}", package.display());
    Ok(())
}

/// Builds the package of this program and returns where it is.
fn build(op_dbus: &Path) -> Result<PathBuf, String> {
    let tree = dist::tree_for_package(op_dbus)?;
    // Outside of the checkout, which nobody else may have to be able to enter.
    let folder = tempfile::Builder::new().prefix("arch-").tempdir().map_err(|e| e.to_string())?;
    let copy = |from: &Path, to: &str| {
        shell::run(program("cp", &["-r"]).arg(from).arg(folder.path().join(to)))
    };
    for file in ["PKGBUILD", "op-dbus.install"] {
        copy(&shell::root().join("packaging/arch").join(file), file)?;
    }
    copy(&shell::root().join("LICENSE"), "LICENSE")?;
    copy(&tree, "tree")?;
    let mut makepkg = as_nobody(folder.path())?;
    makepkg.args(["--nodeps", "--noconfirm", "--nocheck"]).current_dir(folder.path());
    makepkg.env("OP_DBUS_TREE", folder.path().join("tree")).env("HOME", folder.path());
    makepkg.env("PKGDEST", folder.path()).env("PKGEXT", ".pkg.tar.gz");
    // Asked for what is installed, of which it knows nothing here.
    makepkg.env("PACMAN", "true");
    shell::run(&mut makepkg)?;
    let entries = folder.path().read_dir().map_err(|e| e.to_string())?;
    let made = entries.flatten().find(|e| e.file_name().to_string_lossy().ends_with(".pkg.tar.gz"));
    let made = made.ok_or("makepkg made no package")?;
    let package = dist::emptied("target/arch")?.join(made.file_name());
    std::fs::copy(made.path(), &package).map_err(|e| format!("{}: {e}", package.display()))?;
    Ok(package)
}

/// makepkg, as another user if we are root, who is given `folder`.
fn as_nobody(folder: &Path) -> Result<Command, String> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(program("makepkg", &[]));
    }
    chown(folder, Some(NOBODY), Some(NOBODY)).map_err(|e| format!("{}: {e}", folder.display()))?;
    let id = NOBODY.to_string();
    Ok(program("setpriv", &["--reuid", &id, "--regid", &id, "--clear-groups", "makepkg"]))
}
