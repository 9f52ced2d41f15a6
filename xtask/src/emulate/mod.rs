//! `cargo xtask emulate`: the kernels of every instruction set, natively where this machine has it
//! and on an emulated CPU where it has not.
//!
//! The kernel tests are one program without dependencies, so it takes no more than a compiler for
//! each architecture. The emulated CPU is the plainest that has the instruction set: a kernel that
//! needs more than its set has fails there.

mod aarch64;
mod whole;
mod x86_64;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use crate::shell::{self, Outcome};

const KERNELS: &str = "crates/op-dbus-native/tests/kernels/main.rs";
/// How the test program says that the CPU lacks the instruction set.
const LACKING: i32 = 77;

/// Run the kernel tests for CPUs that this machine is not, and check that the program compiles for them
#[derive(Default, clap::Args)]
pub struct Args {
    /// The instruction sets of this architecture alone: x86_64 or aarch64
    #[arg(long)]
    arch: Option<String>,
    /// This instruction set alone, always emulated
    #[arg(long)]
    isa: Option<String>,
    /// In their place the tests of the whole native engine on aarch64: a quarter of an hour
    #[arg(long, conflicts_with_all = ["arch", "isa"])]
    engine: bool,
    /// In their place integration tests with the whole program built for aarch64: a quarter of an hour
    #[arg(long, conflicts_with_all = ["arch", "isa", "engine"])]
    service: bool,
}

/// An architecture whose kernels can be tested here.
trait Emulator: Sync {
    /// As in `std::env::consts::ARCH`.
    fn arch(&self) -> &'static str;
    /// Instruction sets, each with the emulated CPU for it.
    fn cpus(&self) -> &'static [(&'static str, &'static str)];
    /// The CPU that has everything.
    fn whole_cpu(&self) -> &'static str;
    /// Fetches what it needs; an error is the reason for skipping.
    fn prepare(&mut self) -> Outcome;
    /// The compiler's command line, but for source and output.
    fn compiler(&self) -> Command;
    /// A program's command line on an emulated CPU.
    fn command(&self, cpu: &str, program: &Path) -> Command;
}

enum Verdict {
    Passed(String),
    Skipped(String),
    Failed(String),
}

/// Runs what the arguments ask for, prints a line for each instruction set, and fails if one failed.
pub fn run(args: &Args) -> Outcome {
    if args.engine {
        return whole::engine();
    }
    if args.service {
        return whole::service();
    }
    let (arch, isa) = (args.arch.as_deref(), args.isa.as_deref());
    let mut emulators: [Box<dyn Emulator>; 2] =
        [Box::new(x86_64::Bochs), Box::new(aarch64::Qemu::default())];
    let mut failed = Vec::new();
    let mut known = false;
    for emulator in &mut emulators {
        let named = |name: &str| isa.is_none_or(|isa| isa == name);
        let cpus = emulator.cpus().iter().filter(|(name, _)| named(name)).copied();
        let cpus: Vec<_> = cpus.collect();
        if cpus.is_empty() || arch.is_some_and(|arch| arch != emulator.arch()) {
            continue;
        }
        known = true;
        failed.extend(run_arch(emulator.as_mut(), &cpus, isa.is_some())?);
    }
    match (known, failed.as_slice()) {
        (false, _) => Err("no such instruction set or architecture".to_owned()),
        (true, []) if arch.or(isa).is_none() => whole::check(),
        (true, []) => Ok(()),
        (true, failed) => Err(format!("the kernels failed on {}", failed.join(", "))),
    }
}

/// Runs the given instruction sets of one architecture; returns the names of those that failed.
fn run_arch(
    emulator: &mut dyn Emulator,
    cpus: &[(&'static str, &'static str)],
    always_emulate: bool,
) -> Result<Vec<&'static str>, String> {
    if let Err(reason) = emulator.prepare() {
        for (isa, _) in cpus {
            print_line(emulator.arch(), isa, &Verdict::Skipped(reason.clone()));
        }
        return Ok(Vec::new());
    }
    let emulator = &*emulator;
    let kernels = build(emulator)?;
    let native = emulator.arch() == std::env::consts::ARCH;
    let mut list = if native {
        Command::new(&kernels)
    } else {
        emulator.command(emulator.whole_cpu(), &kernels)
    };
    let list = shell::read(list.arg("--isas"))?;
    let is = |isa: &str, place: &str| list.lines().any(|line| line == format!("{isa} {place}"));
    let verdict = |&(isa, cpu): &(&'static str, &'static str)| {
        if is(isa, "nowhere") {
            return Verdict::Skipped("op-dbus has no kernels for it".to_owned());
        }
        if native && is(isa, "here") && !always_emulate {
            let mut command = Command::new(&kernels);
            return judge(command.args(["--isa", isa]), "on this machine");
        }
        let mut command = emulator.command(cpu, &kernels);
        judge(command.args(["--isa", isa]), &format!("on an emulated {cpu}"))
    };
    let verdicts: Vec<Verdict> = thread::scope(|scope| {
        let running: Vec<_> = cpus.iter().map(|cpu| scope.spawn(move || verdict(cpu))).collect();
        let panicked = |_| Verdict::Failed("its thread panicked".to_owned());
        running.into_iter().map(|one| one.join().unwrap_or_else(panicked)).collect()
    });
    let mut failed = Vec::new();
    for ((isa, _), verdict) in cpus.iter().zip(verdicts) {
        print_line(emulator.arch(), isa, &verdict);
        if matches!(verdict, Verdict::Failed(_)) {
            failed.push(*isa);
        }
    }
    Ok(failed)
}

/// Builds the tests as the kernels are shipped: with all optimisations.
fn build(emulator: &dyn Emulator) -> Result<PathBuf, String> {
    let folder = shell::root().join("target/emulate").join(emulator.arch());
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let program = folder.join("kernels");
    let mut compiler = emulator.compiler();
    compiler.args(["--edition", "2024", "-C", "opt-level=3", "-C", "overflow-checks=on"]);
    compiler.args(["-C", "target-feature=+crt-static"]);
    shell::run(compiler.arg(KERNELS).arg("-o").arg(&program))?;
    Ok(program)
}

fn judge(command: &mut Command, place: &str) -> Verdict {
    let start = Instant::now();
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => return Verdict::Failed(format!("{place}: {error}")),
    };
    let printed = text(&output);
    let last = printed.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
    match output.status.code() {
        Some(0) => {
            Verdict::Passed(format!("{place}: {last}, {:.0} s", start.elapsed().as_secs_f32()))
        }
        Some(LACKING) => Verdict::Failed(format!("{place}: {last}")),
        _ => Verdict::Failed(format!("{place} ({}):\n{printed}", output.status)),
    }
}

fn text(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    text
}

fn print_line(arch: &str, isa: &str, verdict: &Verdict) {
    let (word, detail) = match verdict {
        Verdict::Passed(detail) => ("passed", detail),
        Verdict::Skipped(reason) => return shell::skip(&format!("{arch} {isa}"), reason),
        Verdict::Failed(detail) => ("FAILED", detail),
    };
    println!("{arch:<9}{isa:<14}{word:<8}{detail}");
}
