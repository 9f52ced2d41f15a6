//! What a process takes, and how times are spread.

use std::fs;
use std::time::Duration;

use nix::unistd::Pid;

use crate::harness::{Outcome, eventually};

/// Bytes of a MiB.
pub const MIB: u64 = 1 << 20;

/// Open descriptors.
pub fn descriptors(process: Pid) -> Outcome<usize> {
    Ok(fs::read_dir(format!("/proc/{process}/fd"))?.count())
}

/// Open descriptors, waiting until they are `most` or fewer: what was handed over with a message may be closed a
/// moment after its reply. Where they stay open it is for the figure to tell how many.
pub async fn descriptors_left(process: Pid, most: usize) -> Outcome<usize> {
    let _ = eventually("closed descriptors", async || Ok(descriptors(process)? <= most)).await;
    descriptors(process)
}

/// By how much a size has grown, in MiB.
pub fn growth_mib(before: u64, after: u64) -> f64 {
    after.saturating_sub(before) as f64 / MIB as f64
}

/// The time that 99 of 100 took at most.
pub fn p99(times: &mut [Duration]) -> Duration {
    percentile(times, 99)
}

/// The time that half of them took at most.
pub fn p50(times: &mut [Duration]) -> Duration {
    percentile(times, 50)
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    let place = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(place).copied().unwrap_or_default()
}

/// Milliseconds, for a figure.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
