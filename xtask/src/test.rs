//! `cargo xtask test`: everything that must hold before a change lands.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Instant;

use crate::dist::Program;
use crate::packages::Need;
use crate::shell::{self, Outcome, cargo, program};
use crate::{arch, boot, deb, emulate, kubernetes, packages, rpm, supply, tidy, trials};

/// Trials read what it says.
const NEXTEST: &str = "0.9.143";
/// Pure Python, so that one folder on `PYTHONPATH` serves every interpreter.
const PYTHON_CLIENT: &[&str] = &["jeepney==0.9.0"];
/// Clients of the HTTP gateway.
const PYTHON_HTTP: &[&str] = &[
    "openai==3.54.0",
    "langchain-openai==1.7.3",
    "prometheus-client==0.26.0",
    "schemathesis==4.32.5",
];

/// Servers of others that compute for the remote provider, without what they need for other uses: Triton's
/// own program, with ONNX Runtime to compute and what tokenizes, and llama.cpp's, with what writes its
/// files. Some 400 MB.
const FLEET: &[&str] = &[
    "nvidia-pytriton==0.7.0",
    "onnxruntime==1.31.1",
    "numpy==1.26.4",
    "xllamacpp==2026.10.11549",
    "pyyaml==6.0.3",
    "tqdm==4.70.1",
    "gguf==0.19.0",
    "tokenizers==0.23.2",
];

/// What divides work among machines for our examples. Some 500 MB, most of them Ray's and Arrow's.
const CLUSTER: &[&str] = &["distributed==2026.8.0", "ray[data]==2.60.0"];

/// What our own Python package depends on, is built with and checked with.
const PYTHON_PACKAGES: &[&str] =
    &["dbus-fast>=5.0.20,<6", "hatchling==1.33.0", "mypy==2.4.1", "numpy==2.4.6"];

/// Builds everything and fetches what the tests need to where they look for it, in `target`.
pub fn prepare() -> Outcome {
    packages::ensure(&[packages::BUS, packages::PIP])?;
    if let Err(message) = packages::ensure(&[packages::TESTS]) {
        shell::skip("tests that need more than there is", &message);
    }
    step("build");
    shell::run(&mut cargo(&["build", "--workspace", "--all-targets"]))?;
    step("models and ONNX Runtime");
    fetch_store();
    fetch_python("test-python", &[], PYTHON_CLIENT);
    fetch_python_packages();
    fetch_python("test-python-http", &[], PYTHON_HTTP);
    fetch_python("test-cluster", &[], CLUSTER);
    fetch_python("test-fleet", &["--no-deps"], FLEET);
    shell::need_cargo_command("nextest", NEXTEST, "some minutes")
}

/// Checks the text of the tree first, then builds, fetches models, and runs all tests.
pub fn run() -> Outcome {
    step("tidy");
    tidy::run()?;
    step("format");
    shell::run(&mut cargo(&["fmt", "--all", "--check"]))?;
    step("licences, sources, known holes");
    supply::check()?;
    step("clippy");
    shell::run(&mut cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    prepare()?;
    step("documentation tests");
    shell::run(&mut cargo(&["test", "--workspace", "--doc", "--quiet"]))?;
    step("tests");
    shell::run(&mut cargo(&["nextest", "run", "--workspace", "--no-fail-fast"]))?;
    for (test, reason) in trials::ended_early()? {
        shell::skip(&test, &reason);
    }
    step("trials that are programs");
    trials::programs()?;
    step("packages");
    check_packages()?;
    step("a system that boots");
    boot::run_if_possible(&shell::root().join("target/debug/op-dbus"))?;
    step("kernels on every instruction set");
    emulate::run(&emulate::Args::default())?;
    step("what was skipped");
    let mut all = shell::skipped();
    all.extend(trials::skips()?.lines().map(ToOwned::to_owned));
    println!("{}", if all.is_empty() { "none".to_owned() } else { all.join("\n") });
    Ok(())
}

/// The time behind it tells where that of the whole goes.
fn step(name: &str) {
    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);
    println!("\n── {name} (after {} s)", BEGUN.elapsed().as_secs());
}

/// Fills the store that the tests read: the three levels, ONNX Runtime to compare with, two providers that
/// need no device, and one whose device the CPU plays.
///
/// Where the sources can't be reached, the tests that need them are skipped and say so.
pub fn fetch_store() -> PathBuf {
    let store = shell::root().join("target/test-store");
    let program_path = shell::root().join("target/debug/op-dbus");
    let library = |name| ["runtime", "pull", "--provider", name];
    let [ggml, openvino, webgpu] = ["ggml", "openvino", "webgpu"].map(library);
    for words in [&["models", "pull", "all"][..], &["runtime", "pull"], &ggml, &openvino, &webgpu] {
        let mut pull = program(&program_path, words);
        pull.arg("--model-dir").arg(store.join("models"));
        if let Err(message) = shell::fetch(|| shell::run(&mut pull)) {
            println!("{message}; the tests that need it will be skipped");
        }
    }
    store
}

/// Builds the packages that are built fast, of the program that the tests ran, and checks the manifests.
fn check_packages() -> Outcome {
    type Package = (&'static str, &'static [Need], fn(&Program) -> Outcome);
    let program = Program::at(shell::root().join("target/debug/op-dbus"));
    let packages: [Package; 3] = [
        ("deb", deb::NEEDS, deb::run),
        ("rpm", rpm::NEEDS, rpm::run),
        ("arch", arch::NEEDS, arch::run),
    ];
    for (name, needs, check) in packages {
        match packages::ensure(&[needs]) {
            Ok(()) => check(&program)?,
            Err(message) => shell::skip(&format!("cargo xtask {name}"), &message),
        }
    }
    match kubernetes::validator() {
        Ok(validator) => kubernetes::check(&validator),
        Err(message) => {
            shell::skip("cargo xtask kubernetes", &message);
            Ok(())
        }
    }
}

/// A folder for `PYTHONPATH` with these packages.
fn fetch_python(name: &str, words: &[&str], packages: &[&str]) {
    if let Err(message) = packages::python(name, words, packages) {
        println!("{message}; the tests that need them have what was there before, or are skipped");
    }
}

/// An environment for our own Python package, which the tests build, install and use in it.
fn fetch_python_packages() {
    let folder = shell::root().join("target/test-venv");
    let python = folder.join("bin/python").display().to_string();
    let mut venv = program("python3", &["-m", "venv", "--without-pip"]);
    let words = ["--python", &python, "install"];
    let made = shell::run(venv.arg(&folder))
        .and_then(|()| shell::fetch(|| packages::pip(&folder, &words, PYTHON_PACKAGES)));
    if let Err(message) = made {
        println!(
            "{message}; the tests of the Python package have what was there before, or are skipped"
        );
    }
}
