//! Descriptors that a process was started with and knows nothing of.
//!
//! What clients send over the bus is received as what programs inherit, and so a program that is started
//! meanwhile has it: a user's texts, the end of their pipe. It is closed before anything of others is read.

use std::fs;
use std::io;
use std::os::fd::RawFd;

use nix::errno::Errno;
use nix::unistd::close;

/// Closes all that is open but the standard streams; what this process opens itself has to come after it.
///
/// # Errors
/// When what is open can't be told, or one can't be closed.
pub fn let_go() -> io::Result<()> {
    let mut open: Vec<RawFd> = Vec::new();
    for entry in fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok()));
    }
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        match close(descriptor) {
            // It was the list's own.
            Err(Errno::EBADF) | Ok(()) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
