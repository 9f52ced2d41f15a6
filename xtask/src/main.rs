//! Developer tasks of op-dbus: `cargo xtask test`, `demo`, `dist` and others.

mod arch;
mod bench_peers;
mod boot;
mod bus;
mod deb;
mod demo;
mod dist;
mod emulate;
mod fleet;
mod fuzz;
mod gpu;
mod kubernetes;
mod notices;
mod oci;
mod packages;
mod reproducible;
mod rpm;
mod sanitize;
mod shell;
mod supply;
mod svg;
mod test;
mod tidy;
mod trials;

use std::process::ExitCode;

use clap::Parser;

use dist::Program;

/// Developer tasks of op-dbus
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
enum Task {
    /// Build, fetch a model, and embed real text over a D-Bus
    Demo,
    Emulate(emulate::Args),
    Dist(dist::Args),
    /// Build the Debian package and check it
    Deb(Program),
    /// Build the RPM package and check it
    Rpm(Program),
    /// Build the package of Arch Linux and check it
    Arch(Program),
    /// Build a container image, run it, and embed a text in it (root)
    Oci(Program),
    /// Check the manifests against the schemas of Kubernetes
    Kubernetes,
    /// Try the Debian package on a system that really boots, in a container (root)
    Boot(Program),
    /// Hold everything that must hold: format, lints, tidy, all tests (fetches what they need)
    Test,
    /// Hold the checks of the house alone: layout, floors, sizes, names
    Tidy,
    /// Tell licences, sources and known holes of the dependencies, and write a bill of materials
    Supply,
    /// Build twice in two folders: the same files?
    Reproducible {
        /// Profile of the builds
        #[arg(long, default_value = "dist")]
        profile: String,
    },
    Fuzz(fuzz::Args),
    Trials(trials::Args),
    SimulateFleet(fleet::Args),
    Gpu(gpu::Args),
    BenchPeers(bench_peers::Args),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Demo => demo::run(),
        Task::Emulate(args) => emulate::run(&args),
        Task::Dist(args) => dist::run(&args),
        Task::Deb(program) => deb::run(&program),
        Task::Rpm(program) => rpm::run(&program),
        Task::Arch(program) => arch::run(&program),
        Task::Oci(program) => oci::run(&program),
        Task::Kubernetes => kubernetes::run(),
        Task::Boot(program) => boot::run(&program),
        Task::Test => test::run(),
        Task::Tidy => tidy::run(),
        Task::Supply => supply::run(),
        Task::Reproducible { profile } => reproducible::run(&profile),
        Task::Fuzz(args) => fuzz::run(&args),
        Task::Trials(args) => trials::run(args),
        Task::SimulateFleet(args) => fleet::run(&args),
        Task::Gpu(args) => gpu::run(&args),
        Task::BenchPeers(args) => bench_peers::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
