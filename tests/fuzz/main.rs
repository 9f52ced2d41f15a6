//! A coverage-guided fuzzer (libFuzzer) of everything that op-dbus reads. What is driven, and what has
//! to hold, is a module `fuzz` of each crate; `cargo xtask fuzz` builds this and runs it.

#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

/// Which target this process drives.
const VARIABLE: &str = "OP_DBUS_FUZZ_TARGET";

static TARGET: OnceLock<fn(&[u8]) -> bool> = OnceLock::new();

fn find() -> fn(&[u8]) -> bool {
    // A panic that is caught where a library may panic is no find: it has to reach libFuzzer.
    drop(std::panic::take_hook());
    let wanted = std::env::var(VARIABLE).unwrap_or_default();
    let all = [
        op_dbus_daemon::fuzz::TARGETS,
        op_dbus_engine::fuzz::TARGETS,
        op_dbus_gateway::fuzz::TARGETS,
        op_dbus_graph::fuzz::TARGETS,
        op_dbus_models::fuzz::TARGETS,
        op_dbus_native::fuzz::TARGETS,
        op_dbus_remote::fuzz::TARGETS,
    ];
    let found = all.into_iter().flatten().find(|(name, _)| *name == wanted);
    found.map(|(_, target)| *target).unwrap_or_else(|| {
        eprintln!("{VARIABLE} names no target: {wanted:?}");
        std::process::exit(2)
    })
}

// Whether they were understood matters to the tests alone.
fuzz_target!(|bytes: &[u8]| {
    TARGET.get_or_init(find)(bytes);
});
