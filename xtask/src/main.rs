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

const HELP: &str = "\
Usage: cargo xtask <TASK>

Tasks:
  demo         build, fetch a model, and embed real text over a D-Bus
  emulate      run the kernel tests for CPUs that this machine is not [--arch NAME] [--isa NAME]
  dist         lay out an installed op-dbus in a folder: dist DESTDIR [PROGRAM]
  deb          build the Debian package and check it [PROGRAM]
  rpm          build the RPM package and check it [PROGRAM]
  arch         build the package of Arch Linux and check it [PROGRAM]
  oci          build a container image, run it, and embed a text in it (root) [PROGRAM]
  kubernetes   check the manifests against the schemas of Kubernetes
  boot         the Debian package on a system that really boots, in a container (root) [PROGRAM]
  test         everything that must hold: format, lints, tidy, all tests (fetches what they need)
  tidy         the checks of the house alone: layout, floors, sizes, names
  supply       licences, sources and known holes of the dependencies, and a bill of materials
  reproducible two builds in two folders: the same files? [--profile PROFILE]
  fuzz         everything that is read, by a fuzzer under a sanitizer: fuzz [--seconds N] [TARGET…]
  trials       load, faults and attacks, with figures: trials [--quick | --full | --list] [--pairs FILE] [NAME…]
  simulate-fleet   how long requests take with more nodes and more load (see its --help)
  gpu          on a machine with an accelerator: correctness, speed and memory (see its --help)
  bench-peers  measure op-dbus beside other libraries and write docs/performance.md (see its --help)

PROGRAM is `--profile PROFILE`, `dist` by default, or `--program PATH` for one that is built already.
";

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let task = words.next();
    let outcome = match task.as_deref() {
        Some("arch") => arch::run(&words.collect::<Vec<_>>()),
        Some("demo") => demo::run(),
        Some("dist") => dist::run(&words.collect::<Vec<_>>()),
        Some("boot") => boot::run(&words.collect::<Vec<_>>()),
        Some("deb") => deb::run(&words.collect::<Vec<_>>()),
        Some("emulate") => emulate::run(&words.collect::<Vec<_>>()),
        Some("fuzz") => fuzz::run(&words.collect::<Vec<_>>()),
        Some("gpu") => gpu::run(words),
        Some("kubernetes") => kubernetes::run(),
        Some("oci") => oci::run(&words.collect::<Vec<_>>()),
        Some("reproducible") => reproducible::run(&words.collect::<Vec<_>>()),
        Some("rpm") => rpm::run(&words.collect::<Vec<_>>()),
        Some("supply") => supply::run(),
        Some("test") => test::run(),
        Some("tidy") => tidy::run(),
        Some("trials") => trials::run(&words.collect::<Vec<_>>()),
        Some("simulate-fleet") => fleet::run(&words.collect::<Vec<_>>()),
        Some("bench-peers") => bench_peers::run(words),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        other => {
            eprint!("{HELP}");
            Err(match other {
                Some(task) => format!("there is no task {task:?}"),
                None => "name a task".to_owned(),
            })
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
