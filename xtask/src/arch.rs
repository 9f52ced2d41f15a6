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
    let mut install = installer(nix::unistd::geteuid().is_root());
    install.args(["--upgrade", "--nodeps", "--nodeps", "--noscriptlet"]);
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

/// pacman, which installs for root alone: for others, who own what they install into, fakeroot says that they are.
fn installer(is_root: bool) -> Command {
    if is_root { program("pacman", &[]) } else { program("fakeroot", &["--", "pacman"]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_package_is_tried_by_anybody() {
        let words = |is_root| {
            let install = installer(is_root);
            let args = install.get_args().map(|word| word.to_string_lossy().into_owned());
            let name = install.get_program().to_string_lossy().into_owned();
            std::iter::once(name).chain(args).collect::<Vec<_>>()
        };
        assert_eq!(words(true), ["pacman"]);
        assert_eq!(words(false), ["fakeroot", "--", "pacman"]);
        assert!(NEEDS.iter().any(|need| need.program == "fakeroot"));
    }

    /// Recipes that build of source build where they look, wherever the builder's settings have cargo build.
    #[test]
    fn what_a_recipe_builds_lies_where_it_is_looked_for() {
        for recipe in ["packaging/arch/PKGBUILD", "packaging/rpm/op-dbus.spec"] {
            let text = std::fs::read_to_string(shell::root().join(recipe)).expect("a recipe");
            assert!(text.contains("--program target/dist/op-dbus"), "{recipe}");
            let build = text.lines().map(str::trim).find(|line| line.starts_with("cargo build "));
            let build = build.expect("it builds");
            assert!(build.ends_with(" --target-dir target"), "{recipe}: {build}");
        }
    }
}
