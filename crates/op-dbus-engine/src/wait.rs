//! Waiting for what somebody else brings about.

use tokio::sync::Notify;

/// What `look` finds, which looks now and again each time that all who wait for `changed` are woken.
pub(crate) async fn until<T>(changed: &Notify, look: impl Fn() -> Option<T>) -> T {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        // Registered before it looks, so that nothing is missed in between.
        notified.as_mut().enable();
        if let Some(found) = look() {
            return found;
        }
        notified.await;
    }
}
