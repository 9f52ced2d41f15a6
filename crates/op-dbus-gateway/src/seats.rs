//! Places for connections, of which there is a bounded number. When all are taken, the connection that
//! has been idle for longest makes room: else whoever only connects would keep everybody else out. One
//! whose client does not get on with its request is as idle as one without any.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The places.
pub struct Seats {
    free: Arc<Semaphore>,
    state: Mutex<State>,
    /// Notified when a connection becomes idle.
    idles: Notify,
}

#[derive(Default)]
struct State {
    /// Connections without a whole request, by when they became so, or a request began.
    idle: BTreeMap<u64, Arc<Notify>>,
    /// Counts up with each.
    now: u64,
}

/// The place of one connection; given back when dropped.
pub struct Seat {
    seats: Arc<Seats>,
    /// When it became idle, or a request began; none while it has one.
    since: Mutex<Option<u64>>,
    leave: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

/// A request, from its head to the end of its reply.
pub struct Busy(Arc<Seat>);

/// A request of which only the head is there.
pub struct Hearing {
    seat: Arc<Seat>,
    /// The place in the order of the idle that it has meanwhile.
    since: u64,
}

impl Seats {
    /// So many places.
    pub fn new(count: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(Self { free, state: Mutex::default(), idles: Notify::new() })
    }

    /// A place for one more connection, which is idle at first. Waits while all have requests.
    pub async fn take(self: &Arc<Self>) -> Option<Arc<Seat>> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(self.seat(place));
        }
        loop {
            let idles = self.idles.notified();
            tokio::pin!(idles);
            // Registered before the idle ones are looked at, so that none is missed.
            idles.as_mut().enable();
            self.make_room();
            tokio::select! {
                biased;
                place = Arc::clone(&self.free).acquire_owned() => {
                    return place.ok().map(|place| self.seat(place));
                }
                () = idles => {}
            }
        }
    }

    /// Has the connection leave that has been idle for longest.
    pub fn make_room(&self) {
        if let Some((_, leave)) = self.lock().idle.pop_first() {
            leave.notify_one();
        }
    }

    fn seat(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Arc<Seat> {
        let (since, leave) = (Mutex::default(), Arc::new(Notify::new()));
        let seat = Seat { seats: Arc::clone(self), since, leave, _place: place };
        seat.rest();
        Arc::new(seat)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Returns when the connection is to make room for another.
    pub async fn asked_to_leave(&self) {
        self.leave.notified().await;
    }

    /// The connection has the head of a request.
    pub fn hear(self: &Arc<Self>) -> (Busy, Hearing) {
        let since = self.rest();
        (Busy(Arc::clone(self)), Hearing { seat: Arc::clone(self), since })
    }

    /// Is idle as from now.
    fn rest(&self) -> u64 {
        self.stir();
        let mut state = self.seats.lock();
        state.now += 1;
        let now = state.now;
        state.idle.insert(now, Arc::clone(&self.leave));
        drop(state);
        *self.since() = Some(now);
        self.seats.idles.notify_waiters();
        now
    }

    fn stir(&self) {
        if let Some(since) = self.since().take() {
            self.seats.lock().idle.remove(&since);
        }
    }

    fn since(&self) -> MutexGuard<'_, Option<u64>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hearing {
    /// The rest of the request is there as well.
    pub fn end(self) {
        // It may have been answered meanwhile, for its head alone.
        if *self.seat.since() == Some(self.since) {
            self.seat.stir();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.stir();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.rest();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn take(seats: &Arc<Seats>) -> Option<Arc<Seat>> {
        seats.take().now_or_never().flatten()
    }

    fn is_asked(seat: &Seat) -> bool {
        seat.asked_to_leave().now_or_never().is_some()
    }

    fn busy(seat: &Arc<Seat>) -> Busy {
        let (busy, hearing) = seat.hear();
        hearing.end();
        busy
    }

    #[tokio::test]
    async fn who_has_been_idle_for_longest_makes_room_and_who_has_a_request_stays() {
        let seats = Seats::new(3);
        let all: Vec<_> = (0..3).filter_map(|_| take(&seats)).collect();
        let request = busy(&all[0]);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none(), "nobody has left yet");
        let asked: Vec<bool> = all.iter().map(|seat| is_asked(seat)).collect();
        assert_eq!(asked, [false, true, false]);
        let [first, second, third] = <[_; 3]>::try_from(all).ok().unwrap();
        drop(second);
        let fourth = next.await.unwrap();
        // Its request is answered, and by then it is the one that came to rest last.
        drop(request);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&third) && !is_asked(&first) && !is_asked(&fourth));
    }

    #[tokio::test]
    async fn while_all_have_requests_the_next_waits_for_the_first_that_is_answered() {
        let seats = Seats::new(1);
        let only = take(&seats).unwrap();
        let request = busy(&only);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none() && !is_asked(&only));
        drop(request);
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&only));
        drop(only);
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn half_a_request_does_not_keep_a_place_and_comes_behind_those_that_are_idle() {
        let seats = Seats::new(2);
        let [first, second] = [0; 2].map(|_| take(&seats).unwrap());
        let (request, hearing) = first.hear();
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&second) && !is_asked(&first));
        assert!(next.as_mut().now_or_never().is_none());
        drop(next);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&first));
        // What comes after the reply does not make a connection busy that has nothing to do.
        drop(request);
        hearing.end();
        assert!(first.since().is_some());
    }
}
