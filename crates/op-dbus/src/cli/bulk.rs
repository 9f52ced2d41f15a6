//! A call by file descriptors: texts in a sealed memfd, vectors out of another, past the bus.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};

use memmap2::{Mmap, MmapOptions};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use op_dbus_api::{EmbedderProxy, option};
use op_dbus_daemon::memfd;
use zbus::{Fd, Variant};

use super::packed::Info;

/// Why there are no vectors.
#[derive(Debug)]
pub enum Error {
    /// The call failed.
    Call(zbus::Error),
    /// A memfd could not be made, written or read.
    Memfd(io::Error),
}

/// Values, row-major, with the number of rows and their dimensions; and information.
pub type Reply = (Values, (u32, u32), Info);

/// The vectors of `texts`, none of which may hold a NUL.
///
/// # Errors
/// What the service answers, and what stands in the way of memfds.
pub async fn embed(
    embedder: &EmbedderProxy<'_>,
    texts: &[String],
    mut options: HashMap<&'static str, Variant<'_>>,
) -> Result<Reply, Error> {
    options.insert(option::FRAMING, "nul".into());
    let source = sealed(texts).map_err(Error::Memfd)?;
    let reply = embedder.embed_from_fd(Fd::from(source.as_fd()), options).await;
    let (vectors, rows, dimensions, info) = reply.map_err(Error::Call)?;
    let values = Values::of(&File::from(OwnedFd::from(vectors))).map_err(Error::Memfd)?;
    Ok((values, (rows, dimensions), info))
}

/// The texts with a NUL after each, as nobody can change them any more.
fn sealed(texts: &[String]) -> io::Result<File> {
    let mut file = BufWriter::new(memfd::create(c"op-dbus-texts")?);
    for text in texts {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\0")?;
    }
    let file = file.into_inner()?;
    memfd::seal(&file)?;
    Ok(file)
}

/// Numbers: in the memfd that they came in, mapped, or in memory of ours.
#[derive(Debug)]
pub struct Values(Held);

#[derive(Debug)]
enum Held {
    Mapped(Mmap),
    Own(Vec<f32>),
}

impl Values {
    /// The numbers in a sealed memfd, without a copy.
    ///
    /// # Errors
    /// When it can't be mapped, or somebody could change it.
    pub fn of(memfd: &File) -> io::Result<Self> {
        let seals = SealFlag::from_bits_truncate(fcntl(memfd, FcntlArg::F_GET_SEALS)?);
        let bytes = usize::try_from(memfd.metadata()?.len()).map_err(io::Error::other)?;
        let sealed = seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE);
        if !sealed || !bytes.is_multiple_of(size_of::<f32>()) {
            return Err(io::Error::other("it is not sealed, or does not hold whole numbers"));
        }
        if bytes == 0 {
            return Ok(Vec::new().into());
        }
        // SAFETY: nobody can write to it any more, nor make it shorter, as its seals say.
        let map = unsafe { MmapOptions::new().len(bytes).map_copy_read_only(memfd)? };
        if cfg!(target_endian = "little") {
            return Ok(Self(Held::Mapped(map)));
        }
        let values = map.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
        Ok(values.collect::<Vec<f32>>().into())
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self(Held::Own(values))
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            // Whole numbers from the start of a page on.
            Held::Mapped(map) => bytemuck::cast_slice(map),
            Held::Own(values) => values,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn texts_are_sealed_and_each_ends_with_a_nul() {
        let texts = ["one", "", "two\r"].map(str::to_owned);
        let mut file = sealed(&texts).unwrap();
        assert!(file.write_at(b"x", 0).is_err() && file.set_len(0).is_err());
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"one\0\0two\r\0");
    }

    #[test]
    fn values_are_little_endian_and_not_copied() {
        let mut file = memfd::create(c"values").unwrap();
        file.write_all(&[1.5_f32, -0.25].map(f32::to_le_bytes).concat()).unwrap();
        assert!(Values::of(&file).is_err(), "who has not sealed it may change it");
        memfd::seal(&file).unwrap();
        let values = Values::of(&file).unwrap();
        assert_eq!(*values, [1.5, -0.25]);
        assert!(matches!(values.0, Held::Mapped(_)) || cfg!(target_endian = "big"));
    }

    #[test]
    fn half_a_number_is_refused_and_none_is_none() {
        // The end of an empty text is a byte.
        assert!(Values::of(&sealed(&[String::new()]).unwrap()).is_err());
        assert!(Values::of(&sealed(&[]).unwrap()).unwrap().is_empty());
    }
}
