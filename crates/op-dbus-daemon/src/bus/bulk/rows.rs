//! Where the rows of a result go: to their places in a file, as many at once as come at once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

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

/// The memfd of a result, until it is sealed. It is written, not mapped: pages that are written whole
/// are neither zeroed first nor faulted in, and what was never mapped needs no unmapping to be sealed.
#[derive(Debug)]
pub(super) struct Rows {
    pub file: File,
    pub layout: Layout,
    /// Why a row could not be written, once that was so.
    failed: OnceLock<io::Error>,
}

impl Rows {
    /// No rows yet.
    pub fn new(file: File, layout: Layout) -> Self {
        Self { file, layout, failed: OnceLock::new() }
    }

    /// Writes rows that follow one another, each once, with one system call; what can't be written is
    /// told by [`failure`](Self::failure).
    pub fn write(&self, first: u64, vectors: &[f32]) {
        let Layout { encoding, dimensions, .. } = self.layout;
        let bytes = encoding.bytes(vectors, dimensions);
        if let Err(error) = self.file.write_all_at(&bytes, self.layout.bytes(first)) {
            // The first is the one that is told.
            let _ = self.failed.set(error);
        }
    }

    /// Why a row could not be written, if one could not.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failed.get()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek};
    use std::thread;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;
    use crate::bus::encoding::NAMES;

    fn rows(encoding: Encoding, dimensions: usize) -> Rows {
        let file = File::from(memfd_create(c"rows", MFdFlags::MFD_CLOEXEC).unwrap());
        Rows::new(file, Layout { encoding, dimensions, start: 128 })
    }

    fn all(rows: &Rows) -> Vec<u8> {
        let (mut bytes, mut file) = (Vec::new(), rows.file.try_clone().unwrap());
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn rows_are_where_they_belong_however_many_come_at_once() {
        let vectors: Vec<f32> = (0..7 * 37).map(|n| (n as f32).sin()).collect();
        for (name, encoding) in NAMES {
            for at_once in [1, 3, 7] {
                let rows = rows(encoding, 37);
                thread::scope(|scope| {
                    for (number, run) in vectors.chunks(37 * at_once).enumerate() {
                        let rows = &rows;
                        scope.spawn(move || rows.write((number * at_once) as u64, run));
                    }
                });
                assert!(rows.failure().is_none(), "{name}");
                assert_eq!(all(&rows)[128..], *encoding.bytes(&vectors, 37), "{name}");
            }
        }
    }

    #[test]
    fn what_has_no_place_is_told() {
        let rows = rows(Encoding::F32, 2);
        rows.write(u64::MAX, &[0.5, -1.0]);
        rows.write(0, &[0.5, -1.0]);
        assert!(rows.failure().is_some());
    }
}
