//! Other programs that are started, and not to outlive us.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{getpid, getppid};

/// Has what `command` starts end with this process, also where that is killed. What counts for the kernel is the
/// end of the thread that starts it.
pub fn end_with_us(command: &mut Command) {
    let us = getpid();
    // SAFETY: what runs between fork and exec makes two system calls, allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(move || {
            prctl::set_pdeathsig(Signal::SIGKILL)?;
            // Had we ended before that, nothing would tell it.
            if getppid() == us { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
        });
    }
}
