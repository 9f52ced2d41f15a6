//! The result of a bulk call: a memfd that vectors are written to as they come, and that is sealed.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use op_dbus_api::{Error, ErrorName};
use op_dbus_engine::RowSink;

use super::memory::Memory;
use crate::bus::encoding::Encoding;
use crate::service::MakeSink;
use crate::{memfd, npy};

/// What a result's file descriptor holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// The rows alone.
    #[default]
    Raw,
    /// A NumPy file.
    Npy,
}

impl Format {
    /// The names that options have for them.
    pub const NAMES: [(&str, Self); 2] = [("raw", Self::Raw), ("npy", Self::Npy)];

    const fn header_bytes(self) -> usize {
        match self {
            Self::Raw => 0,
            Self::Npy => npy::HEADER_BYTES,
        }
    }
}

/// A result in the making. Nobody else has it before it is sealed.
#[derive(Debug)]
pub struct ResultFile(Arc<Rows>);

/// What the sinks of a result share. Its memfd is written, not mapped: pages that are written whole are
/// neither zeroed first nor faulted in, and what was never mapped needs no unmapping to be sealed.
#[derive(Debug)]
struct Rows {
    memory: Memory,
    encoding: Encoding,
    dimensions: usize,
    format: Format,
    /// Why a row could not be written, once that was so.
    failed: OnceLock<io::Error>,
}

impl Rows {
    /// Where row number `row` begins, in bytes.
    const fn at(&self, row: u64) -> u64 {
        let row_bytes = self.encoding.row_bytes(self.dimensions) as u64;
        (self.format.header_bytes() as u64).saturating_add(row.saturating_mul(row_bytes))
    }

    /// Writes rows that follow one another, each once, with one system call; what can't be written is
    /// told by [`ResultFile::check`].
    fn write(&self, first: u64, vectors: &[f32]) {
        let bytes = self.encoding.bytes(vectors, self.dimensions);
        if let Err(error) = self.memory.file().write_all_at(&bytes, self.at(first)) {
            // The first is the one that is told.
            let _ = self.failed.set(error);
        }
    }
}

impl ResultFile {
    /// An empty result for any number of vectors of `dimensions`.
    ///
    /// # Errors
    /// `NoSpace` when the kernel gives no memfd.
    pub fn new(encoding: Encoding, dimensions: usize, format: Format) -> Result<Self, Error> {
        let memory = Memory::create().map_err(|error| no_space(&error))?;
        Ok(Self(Arc::new(Rows { memory, encoding, dimensions, format, failed: OnceLock::new() })))
    }

    /// Bytes of a result of `rows` rows.
    pub fn bytes(&self, rows: u64) -> u64 {
        self.0.at(rows)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.0.encoding.row_bytes(self.0.dimensions) as u64
    }

    /// Takes the vectors of a call whose first text is row number `first`.
    pub fn sink(&self, first: u64) -> MakeSink {
        let rows = self.0.clone();
        Arc::new(move || {
            let rows = rows.clone();
            RowSink::new(move |text, vectors| rows.write(first + u64::from(text), vectors))
        })
    }

    /// Whether all rows so far could be written.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn check(&self) -> Result<(), Error> {
        self.0.failed.get().map_or(Ok(()), |error| Err(no_space(error)))
    }

    /// Ends the result, which has all its rows, and seals it: nobody can change it any more.
    ///
    /// # Errors
    /// `NoSpace` where something could not be written.
    pub fn seal(self, rows: u64) -> Result<Memory, Error> {
        self.check()?;
        let Rows { memory, encoding, dimensions, format, .. } = &*self.0;
        if *format == Format::Npy {
            let (element, columns) = encoding.numpy(*dimensions);
            let header = npy::header(element, rows, columns);
            memory.file().write_all_at(&header, 0).map_err(|error| no_space(&error))?;
        }
        let sealed = memory.try_clone().map_err(|error| no_space(&error))?;
        memfd::seal(sealed.file()).map_err(|error| no_space(&error))?;
        Ok(sealed)
    }
}

fn no_space(error: &io::Error) -> Error {
    let message = format!(
        "the service has no memory for the result ({error}); send fewer texts in a call, or choose \
         a smaller encoding"
    );
    Error::new(ErrorName::NoSpace, message)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::*;
    use crate::bus::encoding::NAMES;

    fn result(encoding: Encoding, format: Format) -> Vec<u8> {
        let result = ResultFile::new(encoding, 2, format).unwrap();
        for (row, vector) in [(1, [0.5, -1.0]), (0, [0.25, 0.0])] {
            result.0.write(row, &vector);
        }
        let bytes = result.bytes(2);
        let sealed = result.seal(2).unwrap();
        let mut file = sealed.file();
        assert!(file.write_all_at(b"x", 0).is_err() && file.set_len(1).is_err());
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len() as u64, bytes);
        all
    }

    #[test]
    fn rows_come_in_any_order_and_the_result_is_sealed() {
        let raw = result(Encoding::F32, Format::Raw);
        assert_eq!(raw, [0.25_f32, 0.0, 0.5, -1.0].map(f32::to_le_bytes).concat());
        let npy = result(Encoding::I8, Format::Npy);
        assert_eq!(npy[..128], npy::header("|i1", 2, 2));
        assert_eq!(npy[128..], [127, 0, 64, 129]);
    }

    #[test]
    fn rows_are_where_they_belong_however_many_come_at_once() {
        let vectors: Vec<f32> = (0..7 * 37).map(|n| (n as f32).sin()).collect();
        for (name, encoding) in NAMES {
            for at_once in [1, 3, 7] {
                let result = ResultFile::new(encoding, 37, Format::Npy).unwrap();
                thread::scope(|scope| {
                    for (number, run) in vectors.chunks(37 * at_once).enumerate() {
                        let rows = &result.0;
                        scope.spawn(move || rows.write((number * at_once) as u64, run));
                    }
                });
                let mut bytes = Vec::new();
                result.seal(7).unwrap().file().read_to_end(&mut bytes).unwrap();
                assert_eq!(bytes[128..], *encoding.bytes(&vectors, 37), "{name}");
            }
        }
    }

    #[test]
    fn no_rows_are_a_result_too() {
        let empty = ResultFile::new(Encoding::F32, 2, Format::Npy).unwrap();
        let sealed = empty.seal(0).unwrap();
        assert_eq!(sealed.file().metadata().unwrap().len(), 128);
    }

    #[test]
    fn memory_that_is_not_there_is_no_space() {
        let endless = ResultFile::new(Encoding::F32, 2, Format::Raw).unwrap();
        endless.0.write(u64::MAX / 2, &[0.5, -1.0]);
        endless.0.write(0, &[0.5, -1.0]);
        assert_eq!(endless.check().unwrap_err().name(), ErrorName::NoSpace);
        assert_eq!(endless.seal(1).unwrap_err().name(), ErrorName::NoSpace);
    }
}
