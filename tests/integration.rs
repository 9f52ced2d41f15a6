//! Integration tests: the daemon as a process on a private bus, spoken to as users speak to it.
//!
//! `cargo xtask test` fills the test store and runs them. What a test needs and the machine lacks
//! makes it skipped; `integration --skips` lists those with the reason. `integration --trial NAME`
//! runs a trial, `integration --keep PATH` and `--pull STORE FROM` write what a test wants to see written.

use std::process::ExitCode;

use libtest_mimic::Arguments;

mod harness;

/// Who may own, call and change.
mod access;
/// The measuring instrument.
mod bench;
/// Texts and vectors through file descriptors.
mod bulk;
/// Vectors that are kept for texts that come again.
mod cache;
/// Changes that fail, and what goes on.
mod changes;
/// The command line: text, JSON, exit codes.
mod cli;
/// A wall clock that is set.
mod clock;
/// What shells offer behind the command.
mod completions;
/// The names, signatures and properties of the interface, as three different clients see them.
mod contract;
/// Vectors against the references, alone, in batches and from many clients.
mod correctness;
/// A daemon that's killed while it writes.
mod crashes;
/// What there is to compute on, and how busy it is.
mod devices;
/// Connections past the bus.
mod direct;
/// What is missing on a machine, and what to do about it.
mod doctor;
/// The commands that the documents show.
mod documents;
/// Every refusal by its name.
mod errors;
/// The examples of the documentation.
mod examples;
/// Devices that fail on purpose.
mod failing_devices;
/// Killed workers and daemons, callers that leave, a bus that dies.
mod faults;
/// The HTTP gateway.
mod gateway;
/// Arguments and texts that no well-meaning client sends.
mod hostile;
/// A user's own models.
mod imports;
/// Work that no call waits for.
mod jobs;
/// The engine as a library.
mod library;
/// Start, reload, stop, and what the service manager is told.
mod lifecycle;
/// What `man` shows.
mod manual;
/// Memory that is given back.
mod memory;
/// Damaged files of a model and of the cache.
mod models;
/// What the native engine promises beside its vectors.
mod native;
/// The CPU and an accelerator at once.
mod offload;
/// OpenVINO, which any x86-64 CPU is a device of.
mod openvino;
/// Graphs of the user's own that are refused, or answer nonsense.
mod own_graphs;
/// Memory that stays what it is.
mod plateau;
/// Half precision.
mod precision;
/// Execution providers beside the CPU.
mod providers;
/// Models that are fetched and removed.
mod pulls;
/// The Python package, as it is built and installed.
mod python;
/// A fleet that others run.
mod remote;
/// Which of two kinds of workers a batch goes to.
mod routing;
/// What a worker can do to the machine.
mod sandbox;
/// Where a caller's text can't be found.
mod secrets;
/// Wrong values in each source of settings.
mod settings;
/// Token ids in place of texts.
mod tokens;
/// The live view, in a terminal.
mod top;
/// Load and ill-treatment for longer than a test may take.
mod trials;
/// What an import tries of a model, and how it ends.
mod tried_imports;
/// The systemd units and the profiles laid over them.
mod units;
/// Clients that leave their replies in the bus.
mod unread;
/// A GPU's way, on a device that the CPU plays.
mod webgpu;
/// Files that others may write.
mod writers;

fn main() -> ExitCode {
    let tests = [
        access::tests(),
        bench::all(),
        bulk::all(),
        cache::tests(),
        changes::tests(),
        cli::all(),
        completions::tests(),
        clock::tests(),
        contract::tests(),
        correctness::tests(),
        crashes::all(),
        devices::tests(),
        direct::all(),
        doctor::all(),
        documents::tests(),
        errors::tests(),
        examples::tests(),
        failing_devices::tests(),
        faults::tests(),
        gateway::all(),
        harness::fleet::tests(),
        hostile::all(),
        imports::tests(),
        jobs::tests(),
        library::tests(),
        lifecycle::all(),
        manual::tests(),
        memory::tests(),
        models::tests(),
        native::tests(),
        offload::tests(),
        openvino::tests(),
        own_graphs::tests(),
        plateau::tests(),
        precision::tests(),
        providers::tests(),
        pulls::tests(),
        python::tests(),
        remote::all(),
        routing::tests(),
        sandbox::tests(),
        secrets::tests(),
        settings::tests(),
        tokens::tests(),
        top::tests(),
        tried_imports::tests(),
        units::tests(),
        unread::tests(),
        webgpu::tests(),
        writers::tests(),
    ];
    let tests = tests.into_iter().flatten();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("--trial") => return trials::run(&words[1..]),
        Some("--keep") => return crashes::cached::keep(&words[1..]),
        Some("--pull") => return crashes::pulled::pull(&words[1..]),
        Some("--skips") => {
            for test in tests {
                if let Some(reason) = test.skipped() {
                    println!("SKIP {}: {reason}", test.name());
                }
            }
            return ExitCode::SUCCESS;
        }
        _ => (),
    }
    let trials = tests.map(harness::registry::Test::trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
