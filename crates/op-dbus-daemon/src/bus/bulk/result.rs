//! The result of a bulk call: a memfd that is written row by row as vectors come, and sealed.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use op_dbus_api::{Error, ErrorName};
use op_dbus_engine::RowSink;

use crate::bus::encoding::Encoding;
use crate::npy;
use crate::service::MakeSink;

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

/// A result in the making. Rows are written with one system call each and never mapped here, so
/// nothing that happens to the memfd can end the service.
#[derive(Debug)]
pub struct ResultFile {
    rows: Arc<Rows>,
    format: Format,
}

#[derive(Debug)]
struct Rows {
    file: File,
    encoding: Encoding,
    dimensions: usize,
    start: u64,
    /// Why a row could not be written, once that was so.
    failed: OnceLock<io::Error>,
}

impl ResultFile {
    /// An empty result for vectors of `dimensions`.
    ///
    /// # Errors
    /// `NoSpace` when the kernel gives no memfd.
    pub fn new(encoding: Encoding, dimensions: usize, format: Format) -> Result<Self, Error> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file =
            memfd_create(c"op-dbus-vectors", flags).map_err(|errno| no_space(&errno.into()))?;
        let start = format.header_bytes() as u64;
        let (file, failed) = (File::from(file), OnceLock::new());
        let rows = Rows { file, encoding, dimensions, start, failed };
        Ok(Self { rows: Arc::new(rows), format })
    }

    /// Bytes of a result of `rows` rows.
    pub fn bytes(&self, rows: u64) -> u64 {
        self.rows.start.saturating_add(rows.saturating_mul(self.rows.bytes()))
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.rows.bytes()
    }

    /// Takes the vectors of a call whose first text is row number `first`.
    pub fn sink(&self, first: u64) -> MakeSink {
        let rows = self.rows.clone();
        Arc::new(move || {
            let rows = rows.clone();
            RowSink::new(move |text, vector| rows.write(first + u64::from(text), vector))
        })
    }

    /// Whether all rows so far could be written.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn check(&self) -> Result<(), Error> {
        self.rows.failed.get().map_or(Ok(()), |error| Err(no_space(error)))
    }

    /// Ends the result, all of whose rows are written, and seals it: nobody can change it any more.
    ///
    /// # Errors
    /// `NoSpace` where something could not be written.
    pub fn seal(self, rows: u64) -> Result<OwnedFd, Error> {
        self.check()?;
        let Rows { file, encoding, dimensions, .. } = &*self.rows;
        let (element, columns) = encoding.numpy(*dimensions);
        if self.format == Format::Npy {
            let header = npy::header(element, rows, columns);
            file.write_all_at(&header, 0).map_err(|error| no_space(&error))?;
        }
        let file = file.try_clone().map_err(|error| no_space(&error))?;
        let seals = SealFlag::F_SEAL_SHRINK
            | SealFlag::F_SEAL_GROW
            | SealFlag::F_SEAL_WRITE
            | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(|errno| no_space(&errno.into()))?;
        Ok(file.into())
    }
}

impl Rows {
    fn bytes(&self) -> u64 {
        self.encoding.row_bytes(self.dimensions) as u64
    }

    fn write(&self, row: u64, vector: &[f32]) {
        let bytes = self.encoding.bytes(vector, self.dimensions);
        let written = self.file.write_all_at(&bytes, self.start + row * self.bytes());
        if let Err(error) = written {
            // The first is the one that is told.
            let _ = self.failed.set(error);
        }
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

    use super::*;

    fn result(encoding: Encoding, format: Format) -> Vec<u8> {
        let result = ResultFile::new(encoding, 2, format).unwrap();
        for (row, vector) in [(1, [0.5, -1.0]), (0, [0.25, 0.0])] {
            result.rows.write(row, &vector);
        }
        let bytes = result.bytes(2);
        let mut file = File::from(result.seal(2).unwrap());
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
}
