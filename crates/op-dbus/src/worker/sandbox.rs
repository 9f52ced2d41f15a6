//! What a worker gives up before it opens the first file of others: everything that it does not
//! compute with.
//!
//! A model, a tokenizer and a provider's library are not ours, and the code that reads them is large.
//! So whoever takes a worker over through them is to find nothing there: no file but the model's and
//! the libraries', no place to write but the cache, no network, no bus, no other process, no program. Who computes on other machines
//! has a network, and of the rest still less.
//! The unit shuts the service off from the machine; this shuts the worker off from the service. It
//! holds without the unit as well. Where the kernel lacks a part of it the worker goes on, and says so.

mod calls;
mod files;
mod places;

use std::fs::File;

use landlock::LandlockStatus;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use op_dbus_daemon::service::WorkerConfig;

use crate::dumps;

/// Files that are open at once: a driver opens some dozens for each device. Beyond this number
/// `select`, which old libraries use, writes outside its memory.
const OPEN_FILES_MAX: u64 = 1024;

/// Landlock's version from which on it restricts all that is asked of it here: files, TCP, devices,
/// signals and abstract sockets. Later ones add to it.
const LANDLOCK_WANTED: i32 = 6;

/// What is in force, for as long as the process lives.
pub struct Sandbox {
    /// What is in force and what is not, in a few words for the status.
    pub told: String,
    /// Landlock knows a folder by its inode, and the kernel makes another one for our own folder in
    /// `/proc` when it has forgotten it. It does not forget what is open.
    _process: Option<File>,
}

/// Confines this process, which must not have a second thread yet: a thread confines itself and those
/// that it starts.
pub fn confine(config: &WorkerConfig) -> Sandbox {
    limit(config.memory_max);
    let process = File::open("/proc/self").ok();
    let (mut enforced, mut lacking) = (Vec::new(), Vec::new());
    let places = places::of(config);
    let needs = calls::Needs {
        programs: places.programs,
        placing: places::by_libraries(&config.backend),
        network: places::network(config),
    };
    match files::restrict(places) {
        Ok(LandlockStatus::Available { effective_abi, .. }) => {
            let version = effective_abi as i32;
            enforced.push(format!("landlock {version}"));
            if version < LANDLOCK_WANTED {
                lacking
                    .push(format!("the kernel's Landlock is older than version {LANDLOCK_WANTED}"));
            }
        }
        Ok(LandlockStatus::NotEnabled) => lacking.push("the kernel's Landlock is off".to_owned()),
        Ok(LandlockStatus::NotImplemented) => lacking.push("the kernel has no Landlock".to_owned()),
        Err(error) => lacking.push(format!("Landlock failed ({error})")),
    }
    match calls::refuse(needs) {
        Ok(()) => enforced.push("seccomp".to_owned()),
        Err(error) => lacking.push(format!("seccomp failed ({error})")),
    }
    for missing in &lacking {
        tracing::warn!("the worker can do more than it needs: {missing}");
    }
    Sandbox { told: told(&enforced, &lacking), _process: process }
}

/// Few open files, so much memory, and none of it in a file: it holds what callers' texts became.
///
/// Memory is what the process may write and shares with nobody: what it could share, the unit's
/// `MemoryMax` bounds for all together. Mapped weights are not in there, and
/// neither are the addresses that drivers and allocators reserve without using them, for which a limit
/// on all of its addresses (`RLIMIT_AS`) would have to be far too large to help.
fn limit(memory_max: Option<u64>) {
    let limits = [(Resource::RLIMIT_NOFILE, OPEN_FILES_MAX)];
    let memory = memory_max.map(|bytes| (Resource::RLIMIT_DATA, bytes));
    for (resource, limit) in limits.into_iter().chain(memory) {
        let lowered = getrlimit(resource).and_then(|(_, hard)| {
            let limit = hard.min(limit);
            setrlimit(resource, limit, limit)
        });
        if let Err(error) = lowered {
            tracing::warn!(%error, ?resource, "the worker keeps the service's limit");
        }
    }
    dumps::refuse();
}

/// `landlock 7, seccomp`, or `seccomp; the kernel has no Landlock`.
fn told(enforced: &[String], lacking: &[String]) -> String {
    let enforced = if enforced.is_empty() { "nothing".to_owned() } else { enforced.join(", ") };
    lacking.iter().fold(enforced, |told, missing| format!("{told}; {missing}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_behind_what_is_in_force() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(told(&words(&["landlock 7", "seccomp"]), &[]), "landlock 7, seccomp");
        let lacking = words(&["the kernel has no Landlock"]);
        assert_eq!(told(&words(&["seccomp"]), &lacking), "seccomp; the kernel has no Landlock");
        assert_eq!(told(&[], &lacking), "nothing; the kernel has no Landlock");
    }
}
