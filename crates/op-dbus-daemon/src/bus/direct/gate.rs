//! How many calls of one direct connection are under way: there is no bus in between that would hold
//! a caller back. What is too many is not read, and waits in the caller's own socket.

use std::collections::HashMap;
use std::io;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of the calls under way on one connection; a larger call is alone. A reply is made of what is
/// asked, so this bounds the replies as well that nobody reads.
const ROOM_BYTES: usize = 256 << 10;
/// What the smallest call counts as.
const CALL_BYTES_MIN: usize = 4 << 10;
/// What a file descriptor adds to it, for a result may come back as one.
const DESCRIPTOR_BYTES: usize = 28 << 10;

/// The calls of one connection that have no reply yet.
#[derive(Debug)]
pub struct Gate {
    room: Arc<Semaphore>,
    calls: Mutex<HashMap<NonZeroU32, OwnedSemaphorePermit>>,
}

impl Gate {
    /// No calls.
    pub fn new() -> Self {
        Self { room: Arc::new(Semaphore::new(ROOM_BYTES)), calls: Mutex::default() }
    }

    /// Waits until a call of so many bytes may be read.
    ///
    /// # Errors
    /// Never while the connection lives.
    pub async fn room(&self, bytes: usize, descriptors: usize) -> io::Result<OwnedSemaphorePermit> {
        let bytes = bytes.max(CALL_BYTES_MIN) + descriptors * DESCRIPTOR_BYTES;
        let bytes = u32::try_from(bytes.min(ROOM_BYTES)).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(bytes).await.map_err(io::Error::other)
    }

    /// The call `serial` takes its `room` until it is answered.
    ///
    /// # Errors
    /// `InvalidData` for a serial of a call that is under way: its room would be given back twice.
    pub fn enter(&self, serial: NonZeroU32, room: OwnedSemaphorePermit) -> io::Result<()> {
        match self.calls().insert(serial, room) {
            None => Ok(()),
            Some(_) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the serial {serial} is that of a call which has no reply yet"),
            )),
        }
    }

    /// The call `serial` has its reply, or never will.
    pub fn answered(&self, serial: NonZeroU32) {
        self.calls().remove(&serial);
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<NonZeroU32, OwnedSemaphorePermit>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn enter(gate: &Gate, serial: u32, bytes: usize, descriptors: usize) -> bool {
        let Some(room) = gate.room(bytes, descriptors).now_or_never() else { return false };
        gate.enter(NonZeroU32::new(serial).unwrap(), room.unwrap()).unwrap();
        true
    }

    #[test]
    fn small_calls_are_counted_and_a_large_one_is_alone() {
        let gate = Gate::new();
        assert_eq!((1..).take_while(|serial| enter(&gate, *serial, 100, 0)).count(), 64);
        gate.answered(NonZeroU32::new(7).unwrap());
        assert!(!enter(&gate, 65, 16 << 20, 0));
        assert!(enter(&gate, 65, 100, 0));
        let gate = Gate::new();
        assert!(enter(&gate, 1, 16 << 20, 0) && !enter(&gate, 2, 1, 0));
        let gate = Gate::new();
        assert_eq!((1..).take_while(|serial| enter(&gate, *serial, 100, 1)).count(), 8);
    }

    #[test]
    fn a_serial_is_used_once_at_a_time() {
        let gate = Gate::new();
        let one = NonZeroU32::MIN;
        assert!(enter(&gate, 1, 1, 0));
        let room = gate.room(1, 0).now_or_never().unwrap().unwrap();
        assert!(gate.enter(one, room).is_err());
        gate.answered(one);
        assert!(enter(&gate, 1, 1, 0));
    }
}
