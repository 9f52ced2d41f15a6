//! Places for work: of requests and texts that are worked on at once, until their replies are made, and of
//! bytes of replies that wait to be read.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::limits;
use crate::refusal::Refusal;

/// All places.
pub struct Places {
    /// One permit for each request.
    pub requests: Arc<Semaphore>,
    /// One for each text of these, but for the first of each request.
    pub texts: Arc<Semaphore>,
    /// One for each byte of replies.
    pub replies: Arc<Semaphore>,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(limits::REQUESTS)),
            texts: Arc::new(Semaphore::new(limits::TEXTS_IN_FLIGHT)),
            replies: Arc::new(Semaphore::new(limits::REPLIES_BYTES)),
        }
    }
}

/// The places of one request; given back when dropped.
pub struct Place {
    places: Arc<Places>,
    held: Vec<OwnedSemaphorePermit>,
}

impl Places {
    /// Whether a request would have a place just now.
    ///
    /// # Errors
    /// 429 where not.
    pub fn check(&self) -> Result<(), Refusal> {
        let is_free = self.requests.available_permits() > 0;
        is_free.then_some(()).ok_or_else(no_request)
    }

    /// A place for a request.
    ///
    /// # Errors
    /// 429 while all are taken.
    pub fn take(self: &Arc<Self>) -> Result<Place, Refusal> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        let permit = permit.map_err(|_| no_request())?;
        Ok(Place { places: Arc::clone(self), held: vec![permit] })
    }
}

fn no_request() -> Refusal {
    let limit = limits::REQUESTS;
    Refusal::busy(format!(
        "the gateway works on {limit} requests, which is its limit; try again in 1 s"
    ))
}

impl Place {
    /// Places for so many texts as well: none for the first [`limits::SMALL_TEXTS`], and `least` in any case.
    ///
    /// # Errors
    /// 413 for more than a request may have, 429 while others have theirs.
    pub fn add_texts(&mut self, texts: usize, least: usize) -> Result<(), Refusal> {
        let limit = limits::TEXTS;
        if texts > limit {
            return Err(Refusal::too_large(format!(
                "the request has {texts} texts, the limit is {limit}; send several requests"
            ))
            .about("input"));
        }
        let counted = texts.saturating_sub(limits::SMALL_TEXTS).max(least);
        let wanted = u32::try_from(counted).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.places.texts).try_acquire_many_owned(wanted);
        let busy = |_| {
            Refusal::busy("the gateway has as many texts in flight as it takes; try again in 1 s")
        };
        self.held.push(permit.map_err(busy)?);
        Ok(())
    }

    /// The work is done and has become a reply of so many bytes: those are held from here on, so that
    /// whoever reads slowly keeps nobody else from working. Where there is no room for them the places
    /// stay taken until the reply is read: else what waits to be read would have no bound.
    pub fn work_is_done(&mut self, bytes: usize) {
        let wanted = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Ok(room) = Arc::clone(&self.places.replies).try_acquire_many_owned(wanted) {
            self.held = vec![room];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_gives_back_what_its_work_took_where_there_is_room_for_it() {
        let places = Arc::new(Places::default());
        let mut reply = |bytes| {
            let mut place = places.take().unwrap();
            place.add_texts(limits::TEXTS, 0).unwrap();
            place.work_is_done(bytes);
            place
        };
        let [first, second] = [limits::REPLIES_BYTES - 1, 1].map(&mut reply);
        assert_eq!(places.requests.available_permits(), limits::REQUESTS);
        assert_eq!(places.texts.available_permits(), limits::TEXTS_IN_FLIGHT);
        assert_eq!(places.replies.available_permits(), 0);
        // For these there is no room any more.
        let unread = [1, 1].map(&mut reply);
        assert_eq!(places.requests.available_permits(), limits::REQUESTS - 2);
        // Beside these a small request has its places, but not one that would take more than there are left.
        let ask = |texts, least| places.take().unwrap().add_texts(texts, least);
        assert!(ask(limits::SMALL_TEXTS, 0).is_ok());
        let left = places.texts.available_permits();
        for (texts, least) in [(limits::SMALL_TEXTS + left + 1, 0), (1, left + 1)] {
            let refused = ask(texts, least).unwrap_err();
            let said = refused.message();
            assert!(said.contains("as many texts in flight as it takes"), "{refused:?}");
        }
        drop((first, unread));
        assert_eq!(places.texts.available_permits(), limits::TEXTS_IN_FLIGHT);
        assert_eq!(places.replies.available_permits(), limits::REPLIES_BYTES - 1);
        drop(second);
        assert_eq!(places.replies.available_permits(), limits::REPLIES_BYTES);
    }
}
