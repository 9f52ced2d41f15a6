//! How many descriptors this process may have: of connections, and of what comes over them.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows as many as it may allow itself. A shell leaves a program 1,024, as more would be too many for select(2).
pub fn allow_most() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Nobody is refused what the hard limit allows.
        setrlimit(Resource::RLIMIT_NOFILE, most, most).ok();
    }
}
