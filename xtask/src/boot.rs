//! `cargo xtask boot`: the Debian package on a system that really boots, in a container of its own:
//! installed, started, called, changed, stopped, broken, upgraded and purged.

mod container;
mod steps;

use std::path::{Path, PathBuf};

use crate::deb;
use crate::dist;
use crate::packages::{self, Need};
use crate::shell::{self, Outcome};

use container::Container;

const NEEDS: &[Need] = &[
    Need { program: "debootstrap", package: "debootstrap" },
    Need { program: "systemd-nspawn", package: "systemd-container" },
    Need { program: "nsenter", package: "util-linux" },
];

/// Builds the package, boots, and goes through every step; the first that fails ends it.
pub fn run(words: &[String]) -> Outcome {
    prepare()?;
    let packages = deb::build(&dist::program(words)?)?;
    go_through(Container::boot(&packages, &models()?)?)
}

/// The same with this program; a machine on which no container boots is passed over, and said.
pub fn run_if_possible(op_dbus: &Path) -> Outcome {
    let skip = |message| {
        println!("SKIP cargo xtask boot: {message}");
        Ok(())
    };
    if let Err(message) = prepare() {
        return skip(message);
    }
    let packages = deb::build(op_dbus)?;
    match Container::boot(&packages, &models()?) {
        Ok(container) => go_through(container),
        Err(message) => skip(message),
    }
}

/// What a container needs of this machine.
fn prepare() -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Err("a container can be booted by root alone; use sudo".to_owned());
    }
    packages::ensure(&[NEEDS, packages::PIP])
}

fn go_through(mut container: Container) -> Outcome {
    for (name, step) in steps::ALL {
        println!("\n── {name}");
        step(&mut container).map_err(|error| format!("{name}: {error}"))?;
    }
    container.power_off()
}

/// The models of the smaller levels, as the tests' store has them or gets them now.
pub fn models() -> Result<PathBuf, String> {
    let store = shell::root().join("target/test-store/models");
    for (level, name) in steps::MODELS {
        if !store.join(name).join("op-dbus.json").is_file() {
            let program = shell::root().join("target/dist-tree/usr/bin/op-dbus");
            let mut pull = shell::program(program, &["models", "pull", level]);
            shell::run(pull.arg("--model-dir").arg(&store))?;
        }
    }
    store.canonicalize().map_err(|e| format!("{}: {e}", store.display()))
}
