//! How many calls of one direct connection are under way, and what those of one user hold: there is no bus in between
//! that would hold a caller back. What is too many is not read, and waits in the caller's own socket.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::Arc;

use op_dbus_api::INLINE_REPLY_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that the large calls of one user may have on all its direct connections, and as many its replies, which may
/// be hundreds of times as long as what they answer: less where the service has less than sixteen times as much memory.
const USER_BYTES: u64 = 64 << 20;
/// Bytes of the calls under way on one connection; a larger call is alone there.
const ROOM_BYTES: usize = 256 << 10;
/// A reply of so many bytes waits for no room: as a call counts, those of one user's connections have no more than
/// 16 MiB together.
const REPLY_FREE_BYTES: usize = 16 << 10;
/// What the smallest call counts as.
const CALL_BYTES_MIN: usize = 4 << 10;
/// What a file descriptor adds to it, for a result may come back as one.
const DESCRIPTOR_BYTES: usize = 28 << 10;

/// Bytes of one user's direct connections.
#[derive(Clone, Debug)]
pub struct UserRoom {
    calls: Bytes,
    replies: Bytes,
}

/// Bytes that are given out and come back.
#[derive(Clone, Debug)]
struct Bytes {
    free: Arc<Semaphore>,
    all: usize,
}

impl Bytes {
    fn new(all: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all)), all }
    }

    /// Waits for so many, or for all where that is less.
    async fn take(&self, bytes: usize) -> io::Result<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(self.all)).unwrap_or(u32::MAX);
        self.free.clone().acquire_many_owned(bytes).await.map_err(io::Error::other)
    }
}

impl UserRoom {
    /// Of a service that may have `memory` bytes; the longest reply has room in any case.
    pub fn of(memory: Option<u64>) -> Self {
        let bytes = USER_BYTES.min(memory.unwrap_or(u64::MAX) / 16);
        let bytes =
            usize::try_from(bytes).unwrap_or(usize::MAX).max(INLINE_REPLY_BYTES_MAX as usize);
        Self { calls: Bytes::new(bytes), replies: Bytes::new(bytes) }
    }
}

/// What a call under way holds.
type Held = Vec<OwnedSemaphorePermit>;

/// The calls of one connection that have no reply yet.
#[derive(Debug)]
pub struct Gate {
    room: Bytes,
    user: UserRoom,
    calls: Mutex<HashMap<NonZeroU32, Held>>,
}

impl Gate {
    /// No calls, on a connection of who has `user`.
    pub fn new(user: UserRoom) -> Self {
        Self { room: Bytes::new(ROOM_BYTES), user, calls: Mutex::default() }
    }

    /// Waits until a call of so many bytes may be read.
    ///
    /// # Errors
    /// Never while the connection lives.
    pub async fn room(&self, bytes: usize, descriptors: usize) -> io::Result<Held> {
        let counted = bytes.max(CALL_BYTES_MIN) + descriptors * DESCRIPTOR_BYTES;
        let mut held = vec![self.room.take(counted).await?];
        if bytes > ROOM_BYTES {
            held.push(self.user.calls.take(bytes).await?);
        }
        Ok(held)
    }

    /// Waits until the call `serial` may have a reply of so many bytes, which it holds until that is sent. A small one
    /// does not wait behind large ones.
    pub async fn room_for_reply(&self, serial: NonZeroU32, bytes: usize) {
        if bytes <= REPLY_FREE_BYTES {
            return;
        }
        let Ok(room) = self.user.replies.take(bytes).await else { return };
        if let Some(held) = self.calls.lock().get_mut(&serial) {
            held.push(room);
        }
    }

    /// The call `serial` takes its `room` until it is answered.
    ///
    /// # Errors
    /// `InvalidData` for a serial of a call that is under way: its room would be given back twice.
    pub fn enter(&self, serial: NonZeroU32, room: Held) -> io::Result<()> {
        match self.calls.lock().insert(serial, room) {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the serial {serial} is that of a call which has no reply yet"),
            )),
        }
    }

    /// The call `serial` has its reply, or never will.
    pub fn answered(&self, serial: NonZeroU32) {
        self.calls.lock().remove(&serial);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn enter(gate: &Gate, serial: u32, bytes: usize, descriptors: usize) -> bool {
        let Some(room) = gate.room(bytes, descriptors).now_or_never() else { return false };
        gate.enter(NonZeroU32::new(serial).unwrap(), room.unwrap()).unwrap();
        true
    }

    #[test]
    fn small_calls_are_counted_and_a_large_one_is_alone() {
        let gate = Gate::new(UserRoom::of(None));
        assert_eq!((1..).take_while(|serial| enter(&gate, *serial, 100, 0)).count(), 64);
        gate.answered(NonZeroU32::new(7).unwrap());
        assert!(!enter(&gate, 65, 16 << 20, 0));
        assert!(enter(&gate, 65, 100, 0));
        let gate = Gate::new(UserRoom::of(None));
        assert!(enter(&gate, 1, 16 << 20, 0) && !enter(&gate, 2, 1, 0));
        let gate = Gate::new(UserRoom::of(None));
        assert_eq!((1..).take_while(|serial| enter(&gate, *serial, 100, 1)).count(), 8);
    }

    /// Half of a call, or a reply that nobody reads, holds memory as long as it is there.
    #[test]
    fn a_user_has_so_much_on_all_connections() {
        let (user, other) = (UserRoom::of(Some(512 << 20)), UserRoom::of(Some(1)));
        let gates: Vec<_> = (0..4).map(|_| Gate::new(user.clone())).collect();
        let large = 16 << 20;
        assert!(enter(&gates[0], 1, large, 0) && enter(&gates[1], 1, large, 0));
        assert!(!enter(&gates[2], 1, large, 0) && enter(&gates[3], 1, 100, 0));
        let serial = NonZeroU32::MIN;
        let reply =
            |gate: &Gate, bytes| gate.room_for_reply(serial, bytes).now_or_never().is_some();
        assert!(reply(&gates[0], large) && reply(&gates[1], large));
        assert!(!reply(&gates[3], REPLY_FREE_BYTES + 1));
        let mut waits = pin!(gates[3].room_for_reply(serial, large));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(reply(&gates[2], 8 << 10), "a small one passes those that wait");
        gates[0].answered(serial);
        assert!(waits.now_or_never().is_some() && enter(&gates[2], 1, large, 0));
        // The longest of all is not waited for in vain.
        let gate = Gate::new(other);
        assert!(enter(&gate, 1, large, 0) && reply(&gate, large));
    }

    #[test]
    fn a_serial_is_used_once_at_a_time() {
        let gate = Gate::new(UserRoom::of(None));
        let one = NonZeroU32::MIN;
        assert!(enter(&gate, 1, 1, 0));
        let room = gate.room(1, 0).now_or_never().unwrap().unwrap();
        assert!(gate.enter(one, room).is_err());
        gate.answered(one);
        assert!(enter(&gate, 1, 1, 0));
    }
}
