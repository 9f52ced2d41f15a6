//! `op-dbus devices`: one reading of the machine's accelerators, for the daemon that started it.
//!
//! Not for people, who ask the service. It is a process of its own because it calls drivers: one that
//! crashes or hangs takes nobody along.

mod amd;
mod nvidia;

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use nix::sys::prctl;
use nix::sys::signal::Signal;

use crate::inherited;

/// Prints the devices as JSON.
pub fn run() -> ExitCode {
    if let Err(error) = inherited::let_go() {
        eprintln!("op-dbus devices: it may have files of the daemon's clients open: {error}");
    }
    // Nobody is left to read what a driver says after the daemon has ended.
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        eprintln!("op-dbus devices: it may outlive a killed daemon: {error}");
    }
    let mut devices = nvidia::devices(OsStr::new(nvidia::LIBRARY));
    devices.extend(amd::devices(Path::new("/")));
    match serde_json::to_writer(std::io::stdout().lock(), &devices) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("op-dbus devices: the reading could not be told: {error}");
            ExitCode::FAILURE
        }
    }
}
