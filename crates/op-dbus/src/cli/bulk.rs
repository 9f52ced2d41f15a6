//! A call by file descriptors: texts in a sealed memfd, vectors out of another, past the bus.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};

use bytes::Bytes;
use memmap2::MmapOptions;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use op_dbus_api::{EmbedderProxy, Info, option};
use op_dbus_daemon::memfd;
use zbus::proxy::MethodFlags;
use zbus::{DynamicTuple, Fd, Variant};

/// How a service is called that has answered before. Where it is away now, who restarts it does that, and who has
/// stopped it does not want it.
pub const FLAGS: MethodFlags = MethodFlags::NO_AUTO_START;

/// Why there are no vectors.
#[derive(Debug)]
pub enum Error {
    /// The call failed.
    Call(zbus::Error),
    /// A memfd could not be made, written or read.
    Memfd(io::Error),
}

/// Vectors, row-major, with the number of rows and their dimensions; and information.
pub type Reply = (Bytes, (u32, u32), Info);

/// The vectors of `texts`, none of which may hold a NUL, from a service that has answered before.
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
    let arguments = DynamicTuple((Fd::from(source.as_fd()), options));
    let reply = embedder.inner().call_with_flags("EmbedFromFd", FLAGS, &arguments).await;
    let reply = reply.and_then(|reply| reply.ok_or(zbus::Error::InvalidReply));
    let (vectors, rows, dimensions, info): (zbus::OwnedFd, u32, u32, Info) =
        reply.map_err(Error::Call)?;
    let vectors = mapped(&File::from(OwnedFd::from(vectors))).map_err(Error::Memfd)?;
    Ok((vectors, (rows, dimensions), info))
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

/// What is in a sealed memfd, without a copy.
///
/// # Errors
/// When it can't be mapped, or somebody could change it.
pub fn mapped(memfd: &File) -> io::Result<Bytes> {
    let seals = SealFlag::from_bits_truncate(fcntl(memfd, FcntlArg::F_GET_SEALS)?);
    let bytes = usize::try_from(memfd.metadata()?.len()).map_err(io::Error::other)?;
    if !seals.contains(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_WRITE) {
        return Err(io::Error::other("it is not sealed"));
    }
    if bytes == 0 {
        return Ok(Bytes::new());
    }
    // SAFETY: nobody can write to it any more, nor make it shorter, as its seals say.
    let map = unsafe { MmapOptions::new().len(bytes).map_copy_read_only(memfd)? };
    Ok(Bytes::from_owner(map))
}

#[cfg(test)]
mod tests {
    use std::fs;
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
    fn vectors_are_not_copied() {
        let mut file = memfd::create(c"values").unwrap();
        file.write_all(&[1, 2, 3]).unwrap();
        assert!(mapped(&file).is_err(), "who has not sealed it may change it");
        memfd::seal(&file).unwrap();
        let bytes = mapped(&file).unwrap();
        assert_eq!(*bytes, [1, 2, 3]);
        // They begin where the memfd lies in our memory.
        let start = format!("{:x}-", bytes.as_ptr().addr());
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let is_theirs = |map: &str| map.starts_with(&start) && map.contains("memfd:values");
        assert!(maps.lines().any(is_theirs), "{start} in {maps}");
    }

    #[test]
    fn none_is_none() {
        assert!(mapped(&sealed(&[]).unwrap()).unwrap().is_empty());
    }
}
