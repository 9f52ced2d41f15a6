//! Standard output that was closed when the program was started (`>&-`): Rust puts `/dev/null` in its place
//! before `main`, so that a command would succeed of which nobody gets anything.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::unistd::dup2_stdout;

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Called before Rust's own start.
// SAFETY: the section holds pointers to such functions, and this one needs nothing that is not there yet.
#[unsafe(link_section = ".init_array")]
#[used]
static LOOK: extern "C" fn() = {
    extern "C" fn look() {
        // SAFETY: it takes a number and gives one.
        let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
        CLOSED.store(flags == -1, Ordering::Relaxed);
    }
    look
};

/// Whether it was closed.
pub fn was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Has what is written to it fail where it was closed.
pub fn refuse_if_closed() {
    if was_closed()
        && let Ok(full) = File::options().write(true).open("/dev/full")
    {
        dup2_stdout(full).ok();
    }
}
