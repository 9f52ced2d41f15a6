//! Places for work: of requests and texts that are worked on at once, until their replies are made, and of
//! bytes of replies that wait to be read. A request that finds none waits for it, in order of arrival and for
//! a while: clients send all that they have at once, and some give up where any of it is refused.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::limits;
use crate::refusal::Refusal;

/// All places.
pub struct Places {
    /// One permit for each request that is worked on.
    pub requests: Arc<Semaphore>,
    /// One for each text of these, but for the first of each request.
    pub texts: Arc<Semaphore>,
    /// One for each request that waits for these.
    pub waiting: Arc<Semaphore>,
    /// One for each byte that these take meanwhile.
    pub kept: Arc<Semaphore>,
    /// One for each byte of bodies that are read.
    pub bodies: Arc<Semaphore>,
    /// One for each byte of replies.
    pub replies: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(limits::REQUESTS)),
            texts: Arc::new(Semaphore::new(limits::TEXTS_IN_FLIGHT)),
            waiting: Arc::new(Semaphore::new(limits::WAITING)),
            kept: Arc::new(Semaphore::new(limits::WAITING_BYTES)),
            bodies: Arc::new(Semaphore::new(limits::BODIES_BYTES)),
            replies: Arc::new(Semaphore::new(limits::REPLIES_BYTES)),
        }
    }
}

/// The places of one request; given back when dropped.
pub struct Place {
    places: Arc<Places>,
    /// None until they are taken.
    held: Vec<OwnedSemaphorePermit>,
}

impl Places {
    /// Whether a request might have its places, or wait for them, that came just now.
    ///
    /// # Errors
    /// 429 where not.
    pub fn check(&self) -> Result<(), Refusal> {
        let free = self.requests.available_permits() + self.waiting.available_permits();
        (free > 0).then_some(()).ok_or_else(too_many)
    }

    /// The places of a request, which has still to take them.
    pub fn place(self: &Arc<Self>) -> Place {
        Place { places: Arc::clone(self), held: vec![] }
    }
}

fn too_many() -> Refusal {
    let waiting = limits::WAITING;
    Refusal::busy(format!(
        "the gateway has {waiting} requests wait for their places, which is its limit; try again in 1 s"
    ))
}

/// So many permits. What can't be told in 32 bits is more than there are.
fn permits(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Waits for so many of these, behind who waits already. Who is dropped meanwhile gives up its turn.
async fn turn(
    of: &Arc<Semaphore>,
    count: usize,
    until: Instant,
) -> Result<OwnedSemaphorePermit, Refusal> {
    let turn = Arc::clone(of).acquire_many_owned(permits(count));
    // They are never closed.
    timeout_at(until, turn).await.ok().and_then(Result::ok).ok_or_else(|| {
        let (time, limit) = (limits::PLACE_TIME.as_secs(), limits::REQUESTS);
        let texts = limits::TEXTS_IN_FLIGHT;
        Refusal::busy(format!(
            "the request has waited {time} s for a place among the {limit} requests and {texts} texts \
             that the gateway works on at once; try again in 1 s"
        ))
    })
}

impl Place {
    /// Takes the places of a request with a body of so many `bytes`, and of so many texts: of none for the first
    /// [`limits::SMALL_TEXTS`], and of `least` in any case. Where they are not free it waits for them. Those of the
    /// texts come first, so that who waits for many of them keeps no request from working that needs none.
    ///
    /// # Errors
    /// 413 for more than a request may have, 429 while others have theirs: after [`limits::PLACE_TIME`], and at once
    /// where as many wait as may, or what waits takes as much memory as it may.
    pub async fn take(&mut self, bytes: usize, texts: usize, least: usize) -> Result<(), Refusal> {
        let limit = limits::TEXTS;
        if texts > limit {
            return Err(Refusal::too_large(format!(
                "the request has {texts} texts, the limit is {limit}; send several requests"
            ))
            .about("input"));
        }
        let counted = texts.saturating_sub(limits::SMALL_TEXTS).max(least);
        let places = Arc::clone(&self.places);
        let free =
            |of: &Arc<Semaphore>, count| Arc::clone(of).try_acquire_many_owned(permits(count));
        // Nothing is free of what others wait for: nobody is passed.
        if let (Ok(texts), Ok(request)) = (free(&places.texts, counted), free(&places.requests, 1))
        {
            self.held = vec![texts, request];
            return Ok(());
        }
        // These are given back when the wait is over, however it ends.
        let _seat = free(&places.waiting, 1).map_err(|_| too_many())?;
        let _room =
            free(&places.kept, bytes + counted * limits::WAITING_TEXT_BYTES).map_err(|_| {
                let message =
                    "the gateway has as many bytes of requests wait as it takes; try again in 1 s";
                Refusal::busy(message)
            })?;
        let until = Instant::now() + limits::PLACE_TIME;
        let texts = turn(&places.texts, counted, until).await?;
        let request = turn(&places.requests, 1, until).await?;
        self.held = vec![texts, request];
        Ok(())
    }

    /// The work is done and has become a reply of so many bytes: those are held from here on, so that
    /// whoever reads slowly keeps nobody else from working. Where there is no room for them the places
    /// stay taken until the reply is read: else what waits to be read would have no bound.
    pub fn work_is_done(&mut self, bytes: usize) {
        debug_assert!(!self.held.is_empty(), "work without a place");
        let replies = Arc::clone(&self.places.replies);
        if let Ok(room) = replies.try_acquire_many_owned(permits(bytes)) {
            self.held = vec![room];
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::*;

    /// A request that finds its places.
    fn placed(places: &Arc<Places>, texts: usize, least: usize) -> Place {
        let mut place = places.place();
        place.take(0, texts, least).now_or_never().expect("there are places").unwrap();
        place
    }

    /// As many requests as may wait, which do, each with so many texts and 50,000 bytes.
    fn crowd(places: &Arc<Places>, texts: usize) -> Vec<impl Future> {
        let wait = |_| {
            let mut place = places.place();
            let mut waits = Box::pin(async move { place.take(50_000, texts, 0).await });
            assert!(waits.as_mut().now_or_never().is_none());
            waits
        };
        (0..limits::WAITING).map(wait).collect()
    }

    #[tokio::test]
    async fn a_reply_gives_back_what_its_work_took_where_there_is_room_for_it() {
        let places = Arc::new(Places::default());
        let reply = |bytes| {
            let mut place = placed(&places, limits::TEXTS, 0);
            place.work_is_done(bytes);
            place
        };
        let [first, second] = [limits::REPLIES_BYTES - 1, 1].map(reply);
        assert_eq!(places.requests.available_permits(), limits::REQUESTS);
        assert_eq!(places.texts.available_permits(), limits::TEXTS_IN_FLIGHT);
        assert_eq!(places.replies.available_permits(), 0);
        // For these there is no room any more.
        let unread = [1, 1].map(reply);
        assert_eq!(places.requests.available_permits(), limits::REQUESTS - 2);
        // Beside these a small request has its places, but not one that would take more than there are left.
        drop(placed(&places, limits::SMALL_TEXTS, 0));
        let left = places.texts.available_permits();
        for (texts, least) in [(limits::SMALL_TEXTS + left + 1, 0), (1, left + 1)] {
            let mut place = places.place();
            assert!(place.take(0, texts, least).now_or_never().is_none(), "{texts} {least}");
        }
        drop((first, unread));
        assert_eq!(places.texts.available_permits(), limits::TEXTS_IN_FLIGHT);
        assert_eq!(places.replies.available_permits(), limits::REPLIES_BYTES - 1);
        drop(second);
        assert_eq!(places.replies.available_permits(), limits::REPLIES_BYTES);
        assert_eq!(places.waiting.available_permits(), limits::WAITING);
    }

    #[tokio::test]
    async fn requests_have_their_places_in_order_and_small_ones_pass_large_ones() {
        let places = Arc::new(Places::default());
        let working = [0; 2].map(|_| placed(&places, limits::TEXTS, 0));
        let (mut large, mut next) = (places.place(), places.place());
        let mut large = Box::pin(large.take(0, limits::TEXTS, 0));
        assert!(large.as_mut().now_or_never().is_none());
        // There would be room for this one, which came later.
        let mut next = Box::pin(next.take(0, 2 * limits::SMALL_TEXTS, 0));
        assert!(next.as_mut().now_or_never().is_none());
        // Those that wait for their texts keep none of the places of requests.
        let small: Vec<_> = (2..limits::REQUESTS).map(|_| placed(&places, 1, 0)).collect();
        // Now all of these are taken, and who leaves gives its turn up.
        let [mut first, mut second] = [0; 2].map(|_| places.place());
        let mut first = Box::pin(first.take(0, 1, 0));
        assert!(first.as_mut().now_or_never().is_none());
        let mut second = Box::pin(second.take(0, 1, 0));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        drop(small);
        second.await.unwrap();
        drop(working);
        large.await.unwrap();
        next.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_keeps_what_it_takes_and_is_told_when_that_is_too_long() {
        let places = Arc::new(Places::default());
        let working = [0; 2].map(|_| placed(&places, limits::TEXTS, 0));
        let counted = limits::TEXTS - limits::SMALL_TEXTS;
        let bytes = 1000 + counted * limits::WAITING_TEXT_BYTES;
        let mut large = places.place();
        let mut waits = Box::pin(large.take(1000, limits::TEXTS, 0));
        assert!(waits.as_mut().now_or_never().is_none());
        let left = limits::WAITING_BYTES - bytes;
        assert_eq!(places.kept.available_permits(), left);
        // What would take more than there is left does not wait.
        let others = permits(left - bytes + 1);
        let others = Arc::clone(&places.kept).try_acquire_many_owned(others).unwrap();
        let refused = places.place().take(1000, limits::TEXTS, 0).await.unwrap_err();
        assert!(refused.message().contains("as many bytes of requests wait"), "{refused:?}");
        drop(others);
        // Here the clock goes on to the end of its time.
        let refused = waits.await.unwrap_err();
        assert!(refused.is_busy() && refused.message().contains("waited 45 s"), "{refused:?}");
        drop(working);
        assert_eq!(places.kept.available_permits(), limits::WAITING_BYTES);
        assert_eq!(places.waiting.available_permits(), limits::WAITING);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_for_both_of_its_places_no_longer_than_for_one() {
        let places = Arc::new(Places::default());
        let working = [0; 2].map(|_| placed(&places, limits::TEXTS, 0));
        let began = Instant::now();
        let mut large = places.place();
        let mut waits = Box::pin(large.take(0, limits::TEXTS, 0));
        assert!(waits.as_mut().now_or_never().is_none());
        advance(limits::PLACE_TIME / 2).await;
        drop(working);
        // Its texts have their places now, and there is none for it.
        let _small = [0; limits::REQUESTS].map(|_| placed(&places, 1, 0));
        assert!(waits.await.is_err());
        assert_eq!(began.elapsed().as_secs(), limits::PLACE_TIME.as_secs());
    }

    #[tokio::test]
    async fn as_many_wait_as_may() {
        let places = Arc::new(Places::default());
        let working = [0; limits::REQUESTS].map(|_| placed(&places, 1, 0));
        let waiting = crowd(&places, 1);
        let next = places.place().take(0, 1, 0).now_or_never().and_then(Result::err);
        for refused in [places.check().err(), next] {
            let refused = refused.expect("none is left");
            assert!(refused.message().contains("has 256 requests wait"), "{refused:?}");
        }
        drop(waiting);
        assert!(places.check().is_ok());
        drop(working);
    }

    #[tokio::test]
    async fn those_that_wait_for_texts_keep_neither_small_requests_out_nor_bodies() {
        let places = Arc::new(Places::default());
        let _working = [0; 2].map(|_| placed(&places, limits::TEXTS, 0));
        let waiting = crowd(&places, 1000);
        assert!(places.check().is_ok());
        drop(placed(&places, 1, 0));
        assert_eq!(places.bodies.available_permits(), limits::BODIES_BYTES);
        // What would have to wait as well is told.
        let next = places.place().take(0, 1000, 0).now_or_never();
        assert!(next.expect("it does not wait").unwrap_err().is_busy());
        drop(waiting);
        assert_eq!(places.kept.available_permits(), limits::WAITING_BYTES);
    }
}
