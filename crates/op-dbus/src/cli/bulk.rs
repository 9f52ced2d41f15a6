//! A call by file descriptors: texts in a sealed memfd, vectors out of another, past the bus.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use op_dbus_api::{EmbedderProxy, option};
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
pub type Reply = (Vec<f32>, (u32, u32), Info);

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
    let values = values(&File::from(OwnedFd::from(vectors))).map_err(Error::Memfd)?;
    Ok((values, (rows, dimensions), info))
}

/// The texts with a NUL after each, as nobody can change them any more.
fn sealed(texts: &[String]) -> io::Result<File> {
    let memfd =
        memfd_create(c"op-dbus-texts", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let mut file = BufWriter::new(File::from(memfd));
    for text in texts {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\0")?;
    }
    let file = file.into_inner()?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(file)
}

/// The numbers in a file, without a copy on the way.
///
/// # Errors
/// When it can't be read.
pub fn values(file: &File) -> io::Result<Vec<f32>> {
    let count = file.metadata()?.len() / size_of::<f32>() as u64;
    let mut values = vec![0_f32; usize::try_from(count).map_err(io::Error::other)?];
    file.read_exact_at(bytemuck::cast_slice_mut(&mut values), 0)?;
    if cfg!(target_endian = "big") {
        values.iter_mut().for_each(|value| *value = f32::from_bits(value.to_bits().swap_bytes()));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

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
    fn values_are_little_endian() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1.5_f32, -0.25].map(f32::to_le_bytes).concat()).unwrap();
        assert_eq!(values(&file).unwrap(), [1.5, -0.25]);
    }
}
