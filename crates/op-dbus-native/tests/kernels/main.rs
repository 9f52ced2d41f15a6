//! The kernels of every instruction set against scalar references in 64-bit floats.
//!
//! One single-threaded program that includes the kernels and nothing else of the crate, so that it
//! can be built for any target with `rustc` alone and run below an emulator; `cargo xtask emulate`
//! does both. As a test of the crate it runs on the instruction sets that this machine has.
//!
//! ```text
//! kernels [--isa NAME] [--exact] [FILTER...]   run the tests whose names contain a filter
//! kernels --list                               name them
//! kernels --isas                               name the instruction sets of this architecture
//! ```
//!
//! The exit status is 0 if all passed, 1 if one failed, and 77 if this CPU lacks what `--isa` names.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

#[allow(dead_code, reason = "the tests use a part of it")]
#[path = "../../src/isa.rs"]
mod isa;
#[allow(dead_code, reason = "the tests use a part of it")]
#[path = "../../src/kernels/mod.rs"]
mod kernels;
#[allow(dead_code, reason = "the tests use a part of it")]
#[path = "../../src/precision.rs"]
mod precision;

mod attention;
mod data;
mod elementwise;
mod extremes;
mod norm;
mod operand;
mod plain;
mod product;
mod shapes;

use isa::Isa;
use kernels::Kernels;
use precision::Precision;

/// What a test is given: the functions under test, and what they claim to be.
#[derive(Clone, Copy)]
pub struct Subject {
    isa: Isa,
    kernels: Kernels,
    precision: Precision,
}

/// A test by name; it panics where a result is wrong.
type Test = (&'static str, fn(&Subject));

const LACKING: u8 = 77;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut named, mut filters, mut exact, mut list) = (None, Vec::new(), false, false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--isas" => return print_isas(),
            "--list" => list = true,
            "--exact" => exact = true,
            // What cargo and nextest say to every test program: no test is ignored, none is silent.
            "--ignored" => return ExitCode::SUCCESS,
            "--format" | "--test-threads" => drop(arguments.next()),
            "--isa" => named = arguments.next(),
            filter if !filter.starts_with('-') => filters.push(filter.to_owned()),
            _ => {}
        }
    }
    let isas = match named.map(|name| name.parse::<Isa>()) {
        None => Isa::available(),
        Some(Ok(isa)) if isa.is_available() => vec![isa],
        Some(Ok(isa)) => {
            println!("this CPU does not report what {isa} needs, or there are no kernels for it");
            return ExitCode::from(LACKING);
        }
        Some(Err(message)) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let chosen = |name: &str| {
        let matches = |filter: &String| if exact { name == filter } else { name.contains(filter) };
        filters.is_empty() || filters.iter().any(matches)
    };
    run(&isas, chosen, list)
}

/// The instruction sets of this architecture: `here` if this CPU has it, `elsewhere` if not, and
/// `nowhere` if there are no kernels for it.
fn print_isas() -> ExitCode {
    let arm = cfg!(target_arch = "aarch64");
    let multiply = |isa| kernels::kernels(isa, Precision::F32).multiply;
    for &isa in Isa::ALL {
        let portable = isa == Isa::Portable;
        if !portable && isa.as_str().starts_with("neon") != arm {
            continue;
        }
        let fallback = std::ptr::fn_addr_eq(multiply(isa), multiply(Isa::Portable));
        let place = if fallback && !portable {
            "nowhere"
        } else if isa.is_available() {
            "here"
        } else {
            "elsewhere"
        };
        println!("{isa} {place}");
    }
    ExitCode::SUCCESS
}

fn run(isas: &[Isa], chosen: impl Fn(&str) -> bool, list: bool) -> ExitCode {
    let (mut passed, mut failed) = (0, 0);
    let products = [product::TESTS, shapes::TESTS, extremes::TESTS];
    let others = [attention::TESTS, elementwise::TESTS, norm::TESTS, plain::TESTS];
    let tests: Vec<Test> = [products.concat(), others.concat()].concat();
    for (isa, precision, (test, body)) in combinations(isas, &tests) {
        let name = format!("{isa}::{precision}::{test}");
        if !chosen(&name) {
            continue;
        }
        if list {
            println!("{name}: test");
            continue;
        }
        // Before it runs: a kernel that touches a guard page ends the program.
        println!("test {name}");
        let subject = Subject { isa, kernels: kernels::kernels(isa, precision), precision };
        match catch_unwind(AssertUnwindSafe(|| body(&subject))) {
            Ok(()) => passed += 1,
            Err(_) => {
                println!("test {name} ... FAILED");
                failed += 1;
            }
        }
    }
    if !list {
        println!("{passed} passed, {failed} failed");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every instruction set with every precision and every test.
fn combinations(isas: &[Isa], tests: &[Test]) -> Vec<(Isa, Precision, Test)> {
    let mut all = Vec::new();
    for &isa in isas {
        for precision in Precision::ALL {
            all.extend(tests.iter().map(|&test| (isa, precision, test)));
        }
    }
    all
}
