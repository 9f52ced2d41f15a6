//! A state file that is damaged while the service runs, and a disk that has no room for another.

use std::fs;

use nix::sys::signal::Signal;

use super::{attach, level_in, only_the_state, with_state};
use crate::harness::Outcome;
use crate::harness::daemon::Setup;
use crate::harness::registry::tests;

tests! {
    what_was_changed_outlives_a_damaged_state_on_a_full_disk: [Bus, Strace],
}

async fn what_was_changed_outlives_a_damaged_state_on_a_full_disk() -> Outcome {
    let (_bus, setup, daemon) = Setup::sim()?.alone().await?;
    let changed = with_state(&daemon, &setup, false).await?;
    let (state, log) = (setup.state_file(), setup.path("strace"));
    fs::write(&state, "damaged")?;
    // The settings are read on a thread of their own, of which it is the first call of that name.
    let mut tracer = attach(&daemon, "fsync", "error=ENOSPC", 1, &log).await?;
    daemon.client().manager.reload().await?;
    tracer.signal(Signal::SIGTERM)?;
    tracer.ended().await?;
    assert!(fs::read_to_string(&log)?.contains("(INJECTED)"), "the disk had room");
    assert_eq!(fs::read_to_string(&state)?, "damaged", "it has left its place to nothing");
    only_the_state(&setup.path("state"), true, "a reload on a full disk");

    daemon.client().manager.reload().await?;
    assert_eq!(daemon.client().embedder.vector_level().await?, changed);
    assert_eq!(level_in(&state)?, changed, "by now there is room");
    daemon.stop().await
}
