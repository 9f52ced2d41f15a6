//! The shared memory of engine and worker: ids, lengths and vectors of [`SLOTS`] batches.
//!
//! To the engine a worker is a process that may write at any moment, whatever was agreed. So the engine
//! never makes a reference into the mapping: values are copied in and out, and only the copies are looked
//! at. A worker trusts the engine, whose child it is, and computes vectors where they lie.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::{ptr, slice};

use memmap2::MmapRaw;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::RegionShape;
use crate::batch::Batch;

/// Each part starts on a cache line of its own.
const ALIGNMENT: usize = 64;

/// Both `i32` and `f32`.
const VALUE_BYTES: usize = 4;

/// Batches that have a place of their own: one is computed, and the next one is begun meanwhile.
pub(super) const SLOTS: usize = 2;

/// Where the parts of a slot begin, in bytes; ids begin at 0.
#[derive(Clone, Copy, Debug)]
struct Layout {
    lengths: usize,
    vectors: usize,
    bytes: usize,
}

impl Layout {
    fn new(shape: RegionShape) -> io::Result<Self> {
        let part = |values: Option<usize>| {
            let bytes = values?.checked_mul(VALUE_BYTES)?;
            bytes.checked_next_multiple_of(ALIGNMENT)
        };
        let layout = || {
            let lengths = part(Some(shape.tokens_max))?;
            let vectors = lengths.checked_add(part(Some(shape.rows_max))?)?;
            let values = shape.rows_max.checked_mul(shape.dimensions);
            let bytes = vectors.checked_add(part(values)?)?;
            let all = bytes.checked_mul(SLOTS)?;
            (isize::try_from(all).is_ok() && bytes > 0).then_some(Self { lengths, vectors, bytes })
        };
        layout().ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the largest batch exceeds all memory")
        })
    }
}

/// The memory, mapped.
#[derive(Debug)]
pub(super) struct Region {
    map: MmapRaw,
    layout: Layout,
    shape: RegionShape,
}

impl Region {
    /// Makes the memory, and the descriptor by which another process maps it. It is sealed: nobody
    /// can shrink it, so no access to it can fault.
    pub fn create(shape: RegionShape) -> io::Result<(Self, OwnedFd)> {
        let layout = Layout::new(shape)?;
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create("op-dbus-batch", flags)?;
        ftruncate(&fd, i64::try_from(SLOTS * layout.bytes).map_err(io::Error::other)?)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(required_seals()))?;
        Ok((Self { map: MmapRaw::map_raw(&fd)?, layout, shape }, fd))
    }

    /// Maps the memory that another process has made.
    pub fn open(fd: &OwnedFd, shape: RegionShape) -> io::Result<Self> {
        let layout = Layout::new(shape)?;
        let seals = SealFlag::from_bits_truncate(fcntl(fd.as_fd(), FcntlArg::F_GET_SEALS)?);
        let map = MmapRaw::map_raw(fd)?;
        if map.len() != SLOTS * layout.bytes || !seals.contains(required_seals()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the shared memory has not the agreed size or is not sealed",
            ));
        }
        Ok(Self { map, layout, shape })
    }

    /// Whether a batch of this size fits a slot.
    pub fn fits(&self, rows: usize, tokens: usize) -> bool {
        rows <= self.shape.rows_max && tokens <= self.shape.tokens_max
    }

    /// Copies a batch into `slot`.
    pub fn write_batch(&self, slot: usize, batch: &Batch<'_>) {
        let Layout { lengths, vectors, .. } = self.layout;
        self.write(slot, 0..lengths, batch.ids);
        self.write(slot, lengths..vectors, batch.lengths);
    }

    /// Copies as many ids and lengths out of `slot` as the slices are long.
    pub fn read_batch(&self, slot: usize, ids: &mut [i32], row_lengths: &mut [i32]) {
        let Layout { lengths, vectors, .. } = self.layout;
        self.read(slot, 0..lengths, ids);
        self.read(slot, lengths..vectors, row_lengths);
    }

    /// The first `values` values of the vectors of `slot`, where they lie. There are so many in a batch that
    /// [`fits`](Self::fits).
    ///
    /// # Safety
    /// The other process must neither write them nor ask for them meanwhile.
    ///
    /// # Panics
    /// If there are not so many.
    pub unsafe fn vectors_mut(&mut self, slot: usize, values: usize) -> &mut [f32] {
        let Layout { vectors, bytes, .. } = self.layout;
        assert!(slot < SLOTS, "a slot is checked before it is used");
        assert!(
            values <= (bytes - vectors) / VALUE_BYTES,
            "a batch is checked before it is computed"
        );
        // SAFETY: they lie within the mapping, which can't shrink (sealed) and lives as long as `self`,
        // at a multiple of `ALIGNMENT`, as all parts begin, since it starts with a page; any bytes are an `f32`. In this
        // process `self` is borrowed meanwhile, and for the other one the caller answers.
        unsafe {
            let start = self.map.as_mut_ptr().add(slot * bytes + vectors).cast::<f32>();
            slice::from_raw_parts_mut(start, values)
        }
    }

    /// Has none of the first `rows` rows of `slot` pass for a vector until it is written: its first value is no
    /// number.
    pub fn spoil_vectors(&self, slot: usize, rows: usize) {
        let Layout { vectors, bytes, .. } = self.layout;
        for row in 0..rows {
            let start = vectors + row * self.shape.dimensions * VALUE_BYTES;
            self.write(slot, start..bytes, &[f32::NAN]);
        }
    }

    /// Copies the vectors of `slot` out.
    pub fn read_vectors(&self, slot: usize, vectors: &mut [f32]) {
        self.read(slot, self.layout.vectors..self.layout.bytes, vectors);
    }

    /// Copies `values` to these bytes of `slot`.
    ///
    /// # Panics
    /// If they don't fit: the callers have asked [`fits`](Self::fits).
    fn write<V: Value>(&self, slot: usize, part: Range<usize>, values: &[V]) {
        let start = self.place(slot, part, size_of_val(values));
        // SAFETY: so many bytes from there lie within the mapping; the mapping can't shrink (sealed) and
        // lives as long as `self`; `values` is private memory, so the two don't overlap. Bytes are copied
        // untyped; no reference into the mapping exists.
        unsafe {
            let target = self.map.as_mut_ptr().add(start);
            ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), target, size_of_val(values));
        }
    }

    /// Copies these bytes of `slot` to `values`, as far as that is long.
    fn read<V: Value>(&self, slot: usize, part: Range<usize>, values: &mut [V]) {
        let start = self.place(slot, part, size_of_val(values));
        // SAFETY: as in `write`; and any bytes are a valid `V`, so a process that writes while this
        // copies can only change which values arrive.
        unsafe {
            let source = self.map.as_mut_ptr().add(start);
            ptr::copy_nonoverlapping(source, values.as_mut_ptr().cast::<u8>(), size_of_val(values));
        }
    }

    /// Where in the mapping the first `size` bytes of a part of `slot` begin.
    ///
    /// # Panics
    /// If the part has not so many, or there is no such slot.
    fn place(&self, slot: usize, part: Range<usize>, size: usize) -> usize {
        let fits = slot < SLOTS && part.end <= self.layout.bytes && size <= part.len();
        assert!(fits, "a batch is checked before it is copied");
        slot * self.layout.bytes + part.start
    }
}

/// Numbers of four bytes, for which every pattern of bits is a value.
trait Value: Copy {}
impl Value for i32 {}
impl Value for f32 {}

fn required_seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RegionShape = RegionShape { tokens_max: 6, rows_max: 3, dimensions: 2 };

    #[test]
    fn both_ends_see_the_same_batch() {
        let (engine, fd) = Region::create(SHAPE).unwrap();
        let mut worker = Region::open(&fd, SHAPE).unwrap();
        let batch = Batch { ids: &[1, 2, 3, 4, 5], lengths: &[3, 2] };
        assert!(engine.fits(2, 5));
        let other = Batch { ids: &[9; 6], lengths: &[2; 3] };
        for (slot, beside) in [(0, 1), (1, 0)] {
            engine.write_batch(slot, &batch);
            engine.write_batch(beside, &other);
            engine.spoil_vectors(beside, 3);
            let (mut ids, mut lengths) = ([0; 5], [0; 2]);
            worker.read_batch(slot, &mut ids, &mut lengths);
            assert_eq!((&ids[..], &lengths[..]), (batch.ids, batch.lengths));
            // SAFETY: the engine, which is this thread, does something else.
            let places = unsafe { worker.vectors_mut(slot, 4) };
            places.copy_from_slice(&[0.5, -1.0, 2.0, f32::MIN]);
            engine.write_batch(beside, &other);
            engine.spoil_vectors(beside, 3);
            let mut vectors = [0.0; 4];
            engine.read_vectors(slot, &mut vectors);
            assert_eq!(vectors, [0.5, -1.0, 2.0, f32::MIN]);
            engine.spoil_vectors(slot, 2);
            engine.read_vectors(slot, &mut vectors);
            assert!(vectors[0].is_nan() && vectors[2].is_nan(), "{vectors:?}");
        }
    }

    #[test]
    fn what_is_too_large_does_not_fit() {
        let (region, _fd) = Region::create(SHAPE).unwrap();
        for (rows, tokens) in [(4, 4), (1, 7), (3, 9), (usize::MAX, 2), (2, usize::MAX)] {
            assert!(!region.fits(rows, tokens), "{rows} rows, {tokens} tokens");
        }
        assert!(region.fits(3, 6) && region.fits(1, 6));
    }

    #[test]
    fn the_memory_cannot_be_resized_or_unsealed() {
        let (_region, fd) = Region::create(SHAPE).unwrap();
        assert!(ftruncate(&fd, 0).is_err());
        assert!(ftruncate(&fd, 1 << 20).is_err());
        assert!(fcntl(&fd, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE)).is_err());
    }

    #[test]
    fn foreign_memory_is_refused() {
        let (_region, fd) = Region::create(SHAPE).unwrap();
        let larger = RegionShape { tokens_max: 600, ..SHAPE };
        assert!(Region::open(&fd, larger).is_err());
        let unsealed = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
        ftruncate(&unsealed, 192).unwrap();
        assert!(Region::open(&unsealed, SHAPE).is_err());
        let endless = RegionShape { rows_max: usize::MAX, ..SHAPE };
        assert!(Region::create(endless).is_err());
    }
}
