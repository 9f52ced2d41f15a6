//! SHA-256 of files, and copying that counts, limits and hashes at once.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::Error;

const BLOCK: usize = 1 << 18;

/// The SHA-256 of a whole file.
pub(crate) fn of_file(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(|error| Error::io("read", path, error))?;
    let (_, digest) = copy(&mut file, &mut std::io::sink(), u64::MAX, |_| ())
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
) -> std::io::Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut block = vec![0; BLOCK];
    let mut total = 0_u64;
    loop {
        let read = match from.read(&mut block) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        total += read as u64;
        if total > bytes_max {
            break;
        }
        hasher.update(&block[..read]);
        to.write_all(&block[..read])?;
        advance(read as u64);
    }
    Ok((total, format!("{:x}", hasher.finalize())))
}
