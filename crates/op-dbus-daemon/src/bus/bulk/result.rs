//! The result of a bulk call: a memfd that vectors are written to as they come, and that is sealed.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use op_dbus_api::{Error, ErrorName};
use op_dbus_engine::RowSink;

use super::rows::{Layout, Rows};
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
pub struct ResultFile {
    rows: Arc<Rows>,
    format: Format,
}

impl ResultFile {
    /// An empty result for any number of vectors of `dimensions`.
    ///
    /// # Errors
    /// `NoSpace` when the kernel gives no memfd.
    pub fn new(encoding: Encoding, dimensions: usize, format: Format) -> Result<Self, Error> {
        let file = memfd::create(c"op-dbus-vectors").map_err(|error| no_space(&error))?;
        let layout = Layout { encoding, dimensions, start: format.header_bytes() as u64 };
        Ok(Self { rows: Arc::new(Rows::new(file, layout)), format })
    }

    /// Bytes of a result of `rows` rows.
    pub fn bytes(&self, rows: u64) -> u64 {
        self.rows.layout.bytes(rows)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> u64 {
        self.rows.layout.row_bytes()
    }

    /// Takes the vectors of a call whose first text is row number `first`.
    pub fn sink(&self, first: u64) -> MakeSink {
        let rows = self.rows.clone();
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
        self.rows.failure().map_or(Ok(()), |error| Err(no_space(error)))
    }

    /// Ends the result, which has all its rows, and seals it: nobody can change it any more.
    ///
    /// # Errors
    /// `NoSpace` where something could not be written.
    pub fn seal(self, rows: u64) -> Result<OwnedFd, Error> {
        self.check()?;
        let Rows { file, layout, .. } = &*self.rows;
        let (element, columns) = layout.encoding.numpy(layout.dimensions);
        if self.format == Format::Npy {
            let header = npy::header(element, rows, columns);
            file.write_all_at(&header, 0).map_err(|error| no_space(&error))?;
        }
        let file = file.try_clone().map_err(|error| no_space(&error))?;
        memfd::seal(&file).map_err(|error| no_space(&error))?;
        Ok(file.into())
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
    use std::fs::File;
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

    #[test]
    fn no_rows_are_a_result_too() {
        let empty = ResultFile::new(Encoding::F32, 2, Format::Npy).unwrap();
        let file = File::from(empty.seal(0).unwrap());
        assert_eq!(file.metadata().unwrap().len(), 128);
    }

    #[test]
    fn memory_that_is_not_there_is_no_space() {
        let endless = ResultFile::new(Encoding::F32, 2, Format::Raw).unwrap();
        endless.rows.write(u64::MAX / 2, &[0.5, -1.0]);
        endless.rows.write(0, &[0.5, -1.0]);
        assert_eq!(endless.check().unwrap_err().name(), ErrorName::NoSpace);
        assert_eq!(endless.seal(1).unwrap_err().name(), ErrorName::NoSpace);
    }
}
