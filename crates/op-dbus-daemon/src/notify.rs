//! What the service manager is told. Without one (`NOTIFY_SOCKET` not set) nothing happens.

use std::pin::pin;
use std::time::{Duration, Instant};

use op_dbus_models::printable;
use sd_notify::NotifyState;
use tokio::time::timeout;

/// Bytes of a status that is not cut. systemd drops a whole message of more than 4096 bytes, and READY with it.
const STATUS_BYTES_MAX: usize = 3900;
/// How often the manager is asked for more time. What is asked for holds for the watchdog as well, so that it is no more
/// than until after the next time.
const EXTEND_EVERY: Duration = Duration::from_secs(60);

/// Calls are answered from now on; `status` is for people.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(&line(status))]);
}

/// For people: what the service does now.
pub fn status(status: &str) {
    send(&[NotifyState::Status(&line(status))]);
}

/// The settings are being read again; [`ready`] must follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the clock for the service manager failed: {error}"),
    }
}

/// The service is going down; `status` is for people.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(&line(status))]);
}

/// Does what a start or a reload waits for, and asks the manager for up to `time_max` of time meanwhile, as long as it
/// `may_ask`: a stop has its own time, which this would extend as well.
pub async fn extending<T>(
    work: impl Future<Output = T>,
    time_max: Duration,
    may_ask: impl Fn() -> bool,
) -> T {
    let deadline = Instant::now() + time_max;
    let mut work = pin!(work);
    loop {
        if may_ask() {
            let left = deadline.saturating_duration_since(Instant::now());
            extend_timeout(left.min(2 * EXTEND_EVERY));
        }
        if let Ok(end) = timeout(EXTEND_EVERY, &mut work).await {
            return end;
        }
    }
}

/// The manager waits this much from now on, if it would not longer.
fn extend_timeout(time: Duration) {
    let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
}

/// The service is alive.
pub fn watchdog() {
    send(&[NotifyState::Watchdog]);
}

/// A status on one line, cut: what stands on another line of a message is an order to the manager, and a status may
/// quote what others have written.
fn line(status: &str) -> String {
    let line = printable(&status.replace(['\n', '\r'], " "), usize::MAX);
    match line.len() > STATUS_BYTES_MAX {
        true => format!("{}…", &line[..line.floor_char_boundary(STATUS_BYTES_MAX)]),
        false => line,
    }
}

/// A manager that cannot be told is no reason to stop serving.
fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the service manager could not be told: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::{STATUS_BYTES_MAX, line};

    #[test]
    fn a_status_is_one_line_that_fits_a_message() {
        assert_eq!(line("Serving sim on sim:0"), "Serving sim on sim:0");
        let told = line(&"a\nMAINPID=1\r".repeat(900));
        assert!(told.starts_with("a MAINPID=1 a MAINPID=1 a"), "{told}");
        assert!(!told.contains(char::is_control), "{told}");
        for long in [told, line(&format!("a{}", "\u{1f9ed}".repeat(9000)))] {
            assert!((3900..4000).contains(&long.len()) && long.ends_with('…'), "{}", long.len());
        }
        let whole = "a".repeat(STATUS_BYTES_MAX);
        assert_eq!(line(&whole), whole);
    }
}
