//! What the service manager is told. Without one (`NOTIFY_SOCKET` not set) nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;

/// Calls are answered from now on; `status` is one line for people.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// One line for people: what the service does now.
pub fn status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// The settings are being read again; [`ready`] must follow.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the clock for the service manager failed: {error}"),
    }
}

/// The service is going down; `status` is one line for people.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// The start or the stop takes longer: the manager waits this much from now on.
pub fn extend_timeout(time: Duration) {
    let microseconds = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
    send(&[NotifyState::ExtendTimeoutUsec(microseconds)]);
}

/// The service is alive.
pub fn watchdog() {
    send(&[NotifyState::Watchdog]);
}

/// A manager that cannot be told is no reason to stop serving.
fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("the service manager could not be told: {error}");
    }
}
