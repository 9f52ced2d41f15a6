//! Replies that wait for room on their way, and the stop that waits for them.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What each reply counts as.
const REPLY: usize = 2;
/// What counts beside them once a stop waits for the last.
const AWAITED: usize = 1;

/// How many there are.
#[derive(Default)]
pub(super) struct Replies {
    /// Both in one number: the last reply sees that it is waited for, or who waits sees that it is gone.
    count: AtomicUsize,
    /// Notified by the last reply where it is waited for; every call is one for a moment.
    gone: Notify,
}

/// A reply; until it is dropped.
pub(crate) struct Replying<'a>(&'a Replies);

impl Drop for Replying<'_> {
    fn drop(&mut self) {
        let Replies { count, gone } = self.0;
        if count.fetch_sub(REPLY, Ordering::AcqRel) == REPLY + AWAITED {
            gone.notify_waiters();
        }
    }
}

impl Replies {
    /// One more.
    pub fn one(&self) -> Replying<'_> {
        self.count.fetch_add(REPLY, Ordering::Relaxed);
        Replying(self)
    }

    /// Returns once there is none.
    pub async fn none(&self) {
        self.count.fetch_or(AWAITED, Ordering::AcqRel);
        loop {
            let mut gone = pin!(self.gone.notified());
            // Registered before it looks, so that nothing is missed in between.
            gone.as_mut().enable();
            if self.count.load(Ordering::Acquire) < REPLY {
                return;
            }
            gone.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::runtime::Builder;
    use tokio::time::timeout;

    use super::*;

    #[test]
    fn who_waits_is_told_of_the_last_reply() {
        let replies = Replies::default();
        let [first, second] = [replies.one(), replies.one()];
        let mut none = pin!(replies.none());
        assert!(none.as_mut().now_or_never().is_none());
        drop(first);
        // One that comes meanwhile is waited for as well.
        let third = replies.one();
        drop(second);
        assert!(none.as_mut().now_or_never().is_none());
        drop(third);
        assert!(none.as_mut().now_or_never().is_some());
        assert!(replies.none().now_or_never().is_some());
        drop(replies.one());
        assert!(replies.none().now_or_never().is_some());
    }

    #[test]
    fn a_last_reply_that_goes_while_somebody_comes_to_wait_for_it_is_not_missed() {
        let runtime = Builder::new_current_thread().enable_time().build().unwrap();
        for _ in 0..1000 {
            let replies = Replies::default();
            let reply = replies.one();
            thread::scope(|scope| {
                scope.spawn(|| drop(reply));
                let waits = async { timeout(Duration::from_secs(60), replies.none()).await };
                runtime.block_on(waits).expect("it was missed");
            });
        }
    }
}
