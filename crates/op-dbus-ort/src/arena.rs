//! What ONNX Runtime tells of the arena that a session computes in.

use std::ffi::CStr;
use std::ptr;

use op_dbus_engine::ArenaUse;
use ort::memory::{Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::{AsPointer, sys};

use crate::accelerator::Place;

/// The arena of a session on one device.
pub(crate) struct Arena(Allocator);

impl Arena {
    /// That of `session` in the memory of a device; none where it has no memory there, or memory that
    /// is no arena.
    pub fn of(session: &Session, (device, number): Place) -> Option<Self> {
        let info = MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::Default);
        let arena = info.and_then(|info| Allocator::new(session, info)).map(Self);
        let arena =
            arena.inspect_err(|error| tracing::debug!(%error, "no arena to tell of")).ok()?;
        arena.read().is_some().then_some(arena)
    }

    /// Its counts now.
    pub fn read(&self) -> Option<ArenaUse> {
        let pairs = Pairs::of(&self.0)?;
        let (requests, reserved) = (pairs.count(c"NumAllocs")?, pairs.count(c"NumReserves")?);
        let misses = pairs.count(c"NumArenaExtensions")?;
        let known = ArenaUse {
            bytes: pairs.count(c"TotalAllocated")?,
            in_use: pairs.count(c"InUse")?,
            in_use_max: pairs.count(c"MaxInUse")?,
            // What is reserved goes past the arena, and is counted as a request.
            hits: requests.saturating_sub(reserved).saturating_sub(misses),
            misses,
        };
        // Whatever gives out memory counts; only an arena has it in pieces that it extends by.
        (misses > 0).then_some(known)
    }
}

/// Names with values, as the runtime tells them.
struct Pairs(ptr::NonNull<sys::OrtKeyValuePairs>);

impl Pairs {
    fn of(allocator: &Allocator) -> Option<Self> {
        let mut pairs = ptr::null_mut();
        // SAFETY: the allocator is there for as long as it is borrowed; the runtime has this function,
        // which is older than the version that the binding asks of it; it writes nothing but `pairs`.
        let told = unsafe {
            let status = (ort::api().AllocatorGetStats)(allocator.ptr(), &raw mut pairs);
            ort::Error::result_from_status(status)
        };
        told.inspect_err(|error| tracing::debug!(%error, "an allocator tells nothing")).ok()?;
        ptr::NonNull::new(pairs).map(Self)
    }

    /// The number under `key`; none where there is none.
    fn count(&self, key: &CStr) -> Option<u64> {
        // SAFETY: the pairs are the runtime's own, and ours until they are dropped; a value is a C
        // string that lives as long.
        let value = unsafe {
            let value = (ort::api().GetKeyValue)(self.0.as_ptr(), key.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value))?
        };
        value.to_str().ok()?.parse().ok()
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        // SAFETY: the runtime has made them for us, and nobody else has the pointer.
        unsafe { (ort::api().ReleaseKeyValuePairs)(self.0.as_ptr()) }
    }
}
