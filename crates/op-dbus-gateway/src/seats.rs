//! Places for connections, of which there is a bounded number. When all are taken, the connection that
//! has been idle for longest makes room: else whoever only connects would keep everybody else out. One
//! whose client does not get on with its request is as idle as one without any. Replies that are not read yet
//! are cut off only where they have more of the places than the idle: then they keep everybody out themselves.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use parking_lot::Mutex;
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
    idle: Resting,
    /// Those whose reply is made and not written yet, by when it was made.
    unread: Resting,
    /// Counts up with each.
    now: u64,
}

/// Connections that nothing is worked on for.
type Resting = BTreeMap<u64, Arc<Notify>>;

/// The place of one connection; given back when dropped.
pub struct Seat {
    seats: Arc<Seats>,
    /// When it became idle, a request began, or a reply was made; 0 while one is worked on. It changes while the state
    /// is locked.
    since: AtomicU64,
    has_request: AtomicBool,
    /// Whether the rest of a request is still taken.
    is_hearing: AtomicBool,
    leave: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

/// A reply that is made, until it is written.
pub struct Unread {
    seat: Arc<Seat>,
    /// The place in the order of the unread that it has meanwhile.
    since: u64,
}

/// A request of which only the head is there.
pub struct Hearing {
    seat: Arc<Seat>,
    /// The place in the order of the idle that it has meanwhile.
    since: u64,
}

impl State {
    /// What is in this seat rests no more.
    fn stir(&mut self, seat: &Seat) {
        let since = seat.since.swap(0, Relaxed);
        self.idle.remove(&since);
        self.unread.remove(&since);
    }
}

impl Seats {
    /// So many places.
    pub fn new(count: usize) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(count));
        Arc::new(Self { free, state: Mutex::default(), idles: Notify::new() })
    }

    /// A place for one more connection, which is idle at first. Waits while all have requests.
    pub async fn take(self: &Arc<Self>) -> Option<Arc<Seat>> {
        let mut free = pin!(Arc::clone(&self.free).acquire_owned());
        let place = tokio::select! {
            biased;
            place = &mut free => place,
            // Who is asked leaves, or asks another: one is enough, also where others become idle before it has.
            () = self.ask_one() => free.await,
        };
        place.ok().map(|place| self.seat(place))
    }

    /// Has a connection leave, as soon as there is one that is not worked for.
    async fn ask_one(&self) {
        loop {
            let mut idles = pin!(self.idles.notified());
            // Registered before the idle ones are looked at, so that none is missed.
            idles.as_mut().enable();
            if self.make_room() {
                return;
            }
            idles.await;
        }
    }

    /// Has the connection leave that has been idle for longest, or whose reply has been unread for longest
    /// where there are more of those. False where all are worked for.
    pub fn make_room(&self) -> bool {
        let mut state = self.state.lock();
        let more = match state.unread.len() > state.idle.len() {
            true => &mut state.unread,
            false => &mut state.idle,
        };
        let Some((_, leave)) = more.pop_first() else { return false };
        leave.notify_one();
        true
    }

    fn seat(self: &Arc<Self>, place: OwnedSemaphorePermit) -> Arc<Seat> {
        let (since, has_request, is_hearing, leave) = Default::default();
        let seats = Arc::clone(self);
        let seat = Seat { seats, since, has_request, is_hearing, leave, _place: place };
        seat.rest(|state| &mut state.idle);
        Arc::new(seat)
    }
}

impl Seat {
    /// Returns when the connection is to make room for another. It was idle when it was asked for that, and by the time
    /// that it hears of it a request may be there, which would be lost: then another connection is asked.
    pub async fn asked_to_leave(&self) {
        self.leave.notified().await;
        while self.has_got_on() {
            tokio::select! {
                biased;
                // While there is no other, this one may be asked again.
                () = self.leave.notified() => {}
                () = self.seats.ask_one() => self.leave.notified().await,
            }
        }
    }

    /// Whether anything has happened since the connection was asked to leave, by which it ceased to rest.
    fn has_got_on(&self) -> bool {
        let state = self.seats.state.lock();
        let since = self.since.load(Relaxed);
        since == 0 || state.idle.contains_key(&since) || state.unread.contains_key(&since)
    }

    /// The connection has the head of a request.
    pub fn hear(self: &Arc<Self>) -> Hearing {
        self.has_request.store(true, Relaxed);
        self.is_hearing.store(true, Relaxed);
        let since = self.rest(|state| &mut state.idle);
        Hearing { seat: Arc::clone(self), since }
    }

    /// The reply is made: from here on it is for the client to get on.
    pub fn answer(self: &Arc<Self>) -> Unread {
        let since = self.rest(|state| &mut state.unread);
        Unread { seat: Arc::clone(self), since }
    }

    /// Whether the head of a request is there whose reply is not written yet, or of which not all is taken: who is
    /// still sending would lose the reply, too.
    pub fn has_request(&self) -> bool {
        self.has_request.load(Relaxed) || self.is_hearing.load(Relaxed)
    }

    /// Rests among these as from now.
    fn rest(&self, among: impl FnOnce(&mut State) -> &mut Resting) -> u64 {
        let mut state = self.seats.state.lock();
        state.stir(self);
        state.now += 1;
        let now = state.now;
        among(&mut state).insert(now, Arc::clone(&self.leave));
        self.since.store(now, Relaxed);
        drop(state);
        self.seats.idles.notify_waiters();
        now
    }
}

impl Hearing {
    /// The rest of the request is there as well.
    pub fn end(self) {
        let mut state = self.seat.seats.state.lock();
        // It may have been answered meanwhile, for its head alone.
        if self.seat.since.load(Relaxed) == self.since {
            state.stir(&self.seat);
        }
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.seat.is_hearing.store(false, Relaxed);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.state.lock().stir(self);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // The next request may be there already.
        if self.seat.since.load(Relaxed) == self.since {
            self.seat.has_request.store(false, Relaxed);
            self.seat.rest(|state| &mut state.idle);
        }
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

    fn work(seat: &Arc<Seat>) {
        seat.hear().end();
        assert!(!rests(seat));
    }

    fn rests(seat: &Seat) -> bool {
        seat.since.load(Relaxed) > 0
    }

    #[tokio::test]
    async fn who_has_been_idle_for_longest_makes_room_and_who_has_a_request_stays() {
        let seats = Seats::new(3);
        let all: Vec<_> = (0..3).filter_map(|_| take(&seats)).collect();
        work(&all[0]);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none(), "nobody has left yet");
        let asked: Vec<bool> = all.iter().map(|seat| is_asked(seat)).collect();
        assert_eq!(asked, [false, true, false]);
        let [first, second, third] = <[_; 3]>::try_from(all).ok().unwrap();
        drop(second);
        let fourth = next.await.unwrap();
        // Its request is answered, and by then it is the one that came to rest last.
        drop(first.answer());
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&third) && !is_asked(&first) && !is_asked(&fourth));
    }

    #[tokio::test]
    async fn one_leaves_for_each_newcomer_also_where_others_become_idle_before_it_has() {
        let seats = Seats::new(3);
        let [first, second, third] = [0; 3].map(|_| take(&seats).unwrap());
        work(&second);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&first));
        drop(second.answer());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(!is_asked(&third) && !is_asked(&second));
        drop(first);
        let fourth = next.await.unwrap();
        // The one after that has one of them leave again.
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&third) && !is_asked(&second) && !is_asked(&fourth));
    }

    #[tokio::test]
    async fn while_all_have_requests_the_next_waits_for_the_first_that_is_answered() {
        let seats = Seats::new(1);
        let only = take(&seats).unwrap();
        work(&only);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none() && !is_asked(&only));
        let unread = only.answer();
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&only));
        drop((only, unread));
        assert!(next.await.is_some());
    }

    #[tokio::test]
    async fn who_has_a_request_by_the_time_that_it_hears_stays_and_another_leaves() {
        let seats = Seats::new(2);
        let [first, second] = [0; 2].map(|_| take(&seats).unwrap());
        assert!(seats.make_room());
        // It had been asked by then.
        let hearing = first.hear();
        assert!(!is_asked(&first) && is_asked(&second));
        hearing.end();
        drop(second);
        // Where there is no other, the next that comes to rest leaves: here it is the same.
        drop(first.answer());
        assert!(seats.make_room());
        work(&first);
        let mut asked = Box::pin(first.asked_to_leave());
        assert!(asked.as_mut().now_or_never().is_none());
        let unread = first.answer();
        assert!(asked.as_mut().now_or_never().is_some());
        drop(unread);
    }

    #[tokio::test]
    async fn who_is_asked_again_while_there_is_no_other_hears_of_it() {
        for gets_on in [false, true] {
            let seats = Seats::new(1);
            let only = take(&seats).unwrap();
            assert!(seats.make_room());
            work(&only);
            let mut asked = Box::pin(only.asked_to_leave());
            assert!(asked.as_mut().now_or_never().is_none());
            let mut next = Box::pin(seats.take());
            assert!(next.as_mut().now_or_never().is_none());
            let _unread = only.answer();
            assert!(next.as_mut().now_or_never().is_none());
            if gets_on {
                work(&only);
                assert!(asked.as_mut().now_or_never().is_none());
                // The next one has asked, and does so once.
                drop(only.answer());
            }
            assert!(asked.as_mut().now_or_never().is_some(), "{gets_on}");
        }
    }

    #[tokio::test]
    async fn half_a_request_does_not_keep_a_place_and_comes_behind_those_that_are_idle() {
        let seats = Seats::new(2);
        let [first, second] = [0; 2].map(|_| take(&seats).unwrap());
        let hearing = first.hear();
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&second) && !is_asked(&first));
        assert!(next.as_mut().now_or_never().is_none());
        drop(next);
        let mut next = Box::pin(seats.take());
        assert!(next.as_mut().now_or_never().is_none());
        assert!(is_asked(&first));
        // What comes after the reply does not make a connection busy that has nothing to do.
        drop(first.answer());
        hearing.end();
        assert!(rests(&first));
    }

    #[tokio::test]
    async fn replies_that_nobody_reads_make_room_where_they_are_more_than_the_idle() {
        let seats = Seats::new(3);
        let [first, second, third] = [0; 3].map(|_| take(&seats).unwrap());
        let unread = first.answer();
        seats.make_room();
        assert!(is_asked(&second) && !is_asked(&first) && !is_asked(&third));
        drop(second);
        let _other = third.answer();
        seats.make_room();
        assert!(is_asked(&first) && !is_asked(&third));
        // What becomes of a reply says nothing of a request behind it.
        work(&first);
        drop(unread);
        assert!(!rests(&first) && first.has_request());
        drop(first.answer());
        assert!(rests(&first) && !first.has_request());
    }
}
