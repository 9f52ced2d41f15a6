//! Questions that several requests have at the same time: one of them asks for all.
//!
//! Each would take a connection to the bus, of which that gives a user 256 and requests for work need theirs;
//! and whether the service is ready may be asked by anybody.

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::refusal::Refusal;

/// A question, and who asks it just now.
pub struct Shared<T>(Mutex<Weak<OnceCell<T>>>);

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(Weak::new()))
    }
}

impl<T: Clone> Shared<Result<T, Refusal>> {
    /// What is answered to `ask`, or to whoever asks already, within `time`.
    ///
    /// # Errors
    /// Also where the service has not answered by then: who waits for another is told as soon as who asks.
    pub async fn answer_within(
        &self,
        time: Duration,
        ask: impl Future<Output = Result<T, Refusal>>,
    ) -> Result<T, Refusal> {
        in_time(time, self.answer(in_time(time, ask))).await
    }
}

/// What takes several steps, of which each may take as long.
async fn in_time<T>(
    time: Duration,
    steps: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    timeout(time, steps).await.unwrap_or_else(|_| Err(Refusal::silent("the service", time)))
}

impl<T: Clone> Shared<T> {
    async fn answer(&self, ask: impl Future<Output = T>) -> T {
        let asked = self.asked();
        // Where the one that asks has left, another does.
        asked.get_or_init(|| ask).await.clone()
    }

    fn asked(&self) -> Arc<OnceCell<T>> {
        let mut last = self.0.lock();
        // What has its answer is over: who comes now is told of now.
        last.upgrade().filter(|asked| !asked.initialized()).unwrap_or_else(|| {
            let asked = Arc::new(OnceCell::new());
            *last = Arc::downgrade(&asked);
            asked
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn one_asks_for_all_who_come_meanwhile() {
        let shared = Shared::default();
        let (tell, told) = oneshot::channel();
        let mut first = Box::pin(shared.answer(async { told.await.unwrap() }));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(shared.answer(async { panic!("it asks as well") }));
        assert!(second.as_mut().now_or_never().is_none());
        tell.send(1).unwrap();
        assert_eq!((first.await, second.await), (1, 1));
        assert_eq!(shared.answer(async { 2 }).await, 2, "asked anew");
    }

    #[tokio::test]
    async fn where_who_asks_has_left_another_asks() {
        let shared = Shared::default();
        let mut first = Box::pin(shared.answer(pending()));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(shared.answer(async { 1 }));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(second.await, 1);
    }
}
