//! What is held for a reply until it is sent: its room among the replies, and what its connection is known by.
//!
//! A body is dropped once hyper has its last bytes, which is long before a client has read them where
//! they are many or it is slow. So it is the bytes that hold, and hyper keeps those until they are written.

use hyper::body::Bytes;

struct Held<T> {
    bytes: Bytes,
    _what: T,
}

impl<T> AsRef<[u8]> for Held<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The same bytes, which keep `what` for as long as any of them are there.
pub fn held<T: Send + 'static>(bytes: Bytes, what: T) -> Bytes {
    Bytes::from_owner(Held { bytes, _what: what })
}
