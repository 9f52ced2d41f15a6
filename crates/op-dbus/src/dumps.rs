//! Core dumps, of processes that hold callers' texts or what they became.

use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};

/// Has this process leave no core dump from now on. The limit alone would not do, as the kernel ignores
/// it where dumps are piped to a program.
pub fn refuse() {
    let limited = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    if let Err(error) = limited.and_then(|()| prctl::set_dumpable(false)) {
        tracing::warn!(%error, "the memory of this process may be dumped");
    }
}
