//! SHA-256 of files, and copying that counts, limits and hashes at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::Error;

const BLOCK: usize = 1 << 18;

/// What a copy could not write. All else that it fails with is what it could not read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Unwritten(io::Error);

/// Whether a [`copy`] failed at its writing end.
pub(crate) fn is_unwritten(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<Unwritten>())
}

/// The SHA-256 of a whole file.
pub(crate) fn of_file(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let (_, digest) = copy(&mut file, &mut io::sink(), u64::MAX, |_| ())
        .map_err(|error| Error::io("read", path, error))?;
    Ok(digest)
}

/// The SHA-256 of bytes in memory.
pub(crate) fn of_bytes(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Copies at most `bytes_max` + 1 bytes and returns how many came and their SHA-256: a count over
/// `bytes_max` tells that the source held more than it may, and nothing past it was written.
pub(crate) fn copy(
    from: &mut dyn Read,
    to: &mut dyn Write,
    bytes_max: u64,
    advance: impl Fn(u64),
) -> io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut total = 0_u64;
    loop {
        let read = match from.read(&mut block) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        total += read as u64;
        if total > bytes_max {
            break;
        }
        hasher.update(&block[..read]);
        to.write_all(&block[..read])
            .map_err(|error| io::Error::new(error.kind(), Unwritten(error)))?;
        advance(read as u64);
    }
    Ok((total, format!("{:x}", hasher.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_copy_that_failed_is_known() {
        let mut full = File::options().write(true).open("/dev/full").unwrap();
        let error = copy(&mut &b"x"[..], &mut full, 1, |_| ()).unwrap_err();
        assert!(is_unwritten(&error), "{error:?}");
        let os = io::Error::from(nix::errno::Errno::ENOSPC);
        assert_eq!((error.kind(), error.to_string()), (os.kind(), os.to_string()));
        // A folder can be opened and not be read.
        let error = copy(&mut File::open("/").unwrap(), &mut io::sink(), 1, |_| ()).unwrap_err();
        assert!(!is_unwritten(&error), "{error:?}");
    }
}
