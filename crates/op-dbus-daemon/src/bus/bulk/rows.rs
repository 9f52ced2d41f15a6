//! Where the rows of a result go: into memory that is mapped while they come, if it is known how many
//! there will be, or to their places in a file that grows.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use memmap2::{Advice, MmapMut, MmapOptions};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::unistd::ftruncate;

use crate::bus::encoding::Encoding;

/// What a row looks like, and where the first begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub encoding: Encoding,
    pub dimensions: usize,
    pub start: u64,
}

impl Layout {
    /// Bytes of one row.
    pub const fn row_bytes(self) -> u64 {
        self.encoding.row_bytes(self.dimensions) as u64
    }

    /// Bytes of everything.
    pub const fn bytes(self, rows: u64) -> u64 {
        self.start.saturating_add(rows.saturating_mul(self.row_bytes()))
    }
}

/// The memfd of a result, until it is sealed.
#[derive(Debug)]
pub(super) struct Rows {
    pub file: File,
    pub layout: Layout,
    to: To,
    /// Why a row could not be written, once that was so.
    failed: OnceLock<io::Error>,
}

#[derive(Debug)]
enum To {
    /// A system call for each row: nobody knows how many will come.
    File,
    /// Memory. Whoever writes a row has all of it meanwhile, so no two can have the same bytes. Nobody
    /// waits for that: the engine hands over the rows of a call one after another anyway.
    Memory(Mutex<Memory>),
}

#[derive(Debug)]
enum Memory {
    /// For the first row to make: a call that is refused takes none.
    Wanted {
        rows: u64,
    },
    Mapped(MmapMut),
    /// Given up, or sealed.
    Ended,
}

impl Rows {
    /// Rows of which there will be `known`, or any number.
    pub fn new(file: File, layout: Layout, known: Option<u64>) -> Self {
        let memory = |rows| To::Memory(Mutex::new(Memory::Wanted { rows }));
        Self { file, layout, to: known.map_or(To::File, memory), failed: OnceLock::new() }
    }

    /// Writes a row, each once; what can't be written is told by [`failure`](Self::failure).
    pub fn write(&self, row: u64, vector: &[f32]) {
        let Layout { encoding, dimensions, .. } = self.layout;
        let written = match &self.to {
            To::File => {
                let bytes = encoding.bytes(vector, dimensions);
                self.file.write_all_at(&bytes, self.layout.bytes(row))
            }
            To::Memory(memory) => self.write_mapped(&mut lock(memory), row, vector),
        };
        if let Err(error) = written {
            // The first is the one that is told.
            let _ = self.failed.set(error);
        }
    }

    fn write_mapped(&self, memory: &mut Memory, row: u64, vector: &[f32]) -> io::Result<()> {
        if let Memory::Wanted { rows } = *memory {
            *memory = Memory::Ended;
            *memory = Memory::Mapped(map(&self.file, self.layout.bytes(rows))?);
        }
        let Memory::Mapped(map) = memory else { return Ok(()) };
        let row_bytes = self.layout.encoding.row_bytes(vector.len());
        let place = usize::try_from(self.layout.bytes(row))
            .ok()
            .filter(|_| vector.len() == self.layout.dimensions)
            .and_then(|start| map.get_mut(start..start.checked_add(row_bytes)?))
            .ok_or_else(|| io::Error::other("a row has no place in it"))?;
        self.layout.encoding.write(vector, place);
        Ok(())
    }

    /// Why a row could not be written, if one could not.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.get()
    }

    /// Ends the writing, since what is mapped can't be sealed. Rows that come later are lost.
    pub fn end(&self) {
        if let To::Memory(memory) = &self.to {
            *lock(memory) = Memory::Ended;
        }
    }
}

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All of a memfd that nobody else has, and that keeps its size from now on.
fn map(file: &File, bytes: u64) -> io::Result<MmapMut> {
    let length = i64::try_from(bytes).map_err(io::Error::other)?;
    ftruncate(file, length)?;
    // Memory that can't be had is an error here. At a row's first byte it would be a signal.
    while let Err(errno) = fallocate(file, FallocateFlags::empty(), 0, length) {
        if errno != Errno::EINTR {
            return Err(errno.into());
        }
    }
    fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
    let length = usize::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: nothing else changes this memory while it is mapped: the descriptor is our own, handed to
    // nobody before the mapping is gone (`end`; the kernel refuses the last seals otherwise). And no
    // access to it faults: its pages are there, and the seals keep it from shrinking.
    let map = unsafe { MmapOptions::new().len(length).map_mut(file)? };
    // A process that is being started must not keep it mapped while we seal it.
    map.advise(Advice::DontFork)?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::thread;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::bus::encoding::NAMES;

    fn rows(encoding: Encoding, dimensions: usize, known: Option<u64>) -> Rows {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = File::from(memfd_create(c"rows", flags).unwrap());
        Rows::new(file, Layout { encoding, dimensions, start: 128 }, known)
    }

    fn all(rows: &Rows) -> Vec<u8> {
        let (mut bytes, mut file) = (Vec::new(), rows.file.try_clone().unwrap());
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_is_mapped_is_what_would_be_written() {
        let vectors: Vec<f32> = (0..5 * 37).map(|n| (n as f32).sin()).collect();
        for (name, encoding) in NAMES {
            let (mapped, written) = (rows(encoding, 37, Some(5)), rows(encoding, 37, None));
            // At once, as several workers do, and in no order.
            thread::scope(|scope| {
                for (row, vector) in vectors.chunks(37).enumerate().rev() {
                    let (mapped, written) = (&mapped, &written);
                    scope.spawn(move || mapped.write(row as u64, vector));
                    scope.spawn(move || written.write(row as u64, vector));
                }
            });
            assert!(mapped.failure().is_none() && written.failure().is_none(), "{name}");
            assert!(mapped.file.set_len(1).is_err(), "it may not shrink while it is mapped");
            assert_eq!(all(&mapped), all(&written), "{name}");
            assert_eq!(all(&mapped)[128..], *encoding.bytes(&vectors, 37), "{name}");
        }
    }

    #[test]
    fn memory_is_taken_with_the_first_row_and_let_go_at_the_end() {
        let rows = rows(Encoding::F32, 2, Some(3));
        let blocks = || {
            use std::os::unix::fs::MetadataExt;
            rows.file.metadata().unwrap().blocks()
        };
        let seal = || fcntl(&rows.file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
        assert_eq!(blocks(), 0);
        rows.write(1, &[0.5, -1.0]);
        assert!(blocks() > 0);
        assert_eq!(seal(), Err(Errno::EBUSY), "nothing that is mapped can be sealed");
        rows.end();
        seal().unwrap();
        rows.write(0, &[1.0, 1.0]);
        assert!(rows.failure().is_none());
        let expected = [0.0_f32, 0.0, 0.5, -1.0, 0.0, 0.0].map(f32::to_le_bytes).concat();
        assert_eq!(all(&rows)[128..], expected);
    }

    #[test]
    fn what_has_no_memory_or_no_place_is_told() {
        let endless = rows(Encoding::F32, 2, Some(u64::MAX / 2));
        (0..2).for_each(|row| endless.write(row, &[0.5, -1.0]));
        assert!(endless.failure().is_some());
        for (row, vector) in [(3, &[1.0; 2][..]), (u64::MAX, &[1.0; 2]), (0, &[1.0; 3]), (2, &[])] {
            let rows = rows(Encoding::F32, 2, Some(3));
            rows.write(row, vector);
            let error = rows.failure().expect("a failure").to_string();
            assert!(error.contains("no place"), "{error}");
        }
    }
}
