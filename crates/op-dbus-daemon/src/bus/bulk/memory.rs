//! The memory of a result, and where it is given back.

use std::fs::File;
use std::io;
use std::thread;

use serde::{Serialize, Serializer};
use zbus::{Fd, OwnedFd, Signature, Type};

use crate::memfd;

/// So much is given back at once, in some 3 ms. A GiB takes 0.2 s, which none of the threads has that serve everybody.
const AT_ONCE_BYTES: u64 = 16 << 20;

/// A descriptor of a memfd of ours, which is closed on a thread of its own where it may be the last of much memory.
///
/// As a reply it is a file descriptor. The message has another one, which is gone before this is.
#[derive(Debug)]
pub struct Memory(Option<File>);

impl Memory {
    /// No memory yet.
    ///
    /// # Errors
    /// When the kernel gives none.
    pub fn create() -> io::Result<Self> {
        Ok(Self(Some(memfd::create(c"op-dbus-vectors")?)))
    }

    /// The same memory by another descriptor.
    ///
    /// # Errors
    /// When the service may have no more of them.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(Some(self.file().try_clone()?)))
    }

    /// The memfd.
    pub fn file(&self) -> &File {
        self.0.as_ref().expect("it is taken when this is dropped")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(file) = self.0.take() else { return };
        let bytes = file.metadata().map_or(0, |memory| memory.len());
        let_go(file, bytes);
    }
}

impl Type for Memory {
    const SIGNATURE: &'static Signature = <OwnedFd as Type>::SIGNATURE;
}

impl Serialize for Memory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Fd::from(self.file()).serialize(serializer)
    }
}

/// Drops what holds so many bytes.
fn let_go(what: impl Send + 'static, bytes: u64) {
    if bytes > AT_ONCE_BYTES {
        // Where the system has no thread left it is dropped here.
        let _ = thread::Builder::new().name("free".to_owned()).spawn(move || drop(what));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::ThreadId;

    use super::*;

    /// Tells which thread has dropped it.
    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    #[test]
    fn much_memory_is_given_back_where_nobody_is_served() {
        let (sender, dropped) = channel();
        let dropped_by = |bytes| {
            let_go(Tells(sender.clone()), bytes);
            dropped.recv().unwrap()
        };
        let own = thread::current().id();
        assert_eq!(dropped_by(AT_ONCE_BYTES), own);
        assert_ne!(dropped_by(AT_ONCE_BYTES + 1), own);
    }
}
