//! Reading a small text file that anyone may have put there: bounded, never blocking, and none that others may write.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use op_dbus_models::foreign_writer;

/// A larger file is neither a configuration nor a state.
pub(crate) const BYTES_MAX: u64 = 1 << 20;

/// Why a file cannot be used; the text completes "the file is not used: …".
#[derive(Debug, PartialEq)]
pub(crate) enum Unusable {
    /// Its content is wrong, and will be at the next start too.
    Damaged(String),
    /// It could not be read at all, or is no file; nothing is known about its content.
    Unreadable(String),
    /// Others may write it; and the command that ends that.
    Foreign(String, String),
}

impl Unusable {
    pub(crate) fn reason(self) -> String {
        match self {
            Unusable::Damaged(reason) | Unusable::Unreadable(reason) => reason,
            Unusable::Foreign(reason, fix) => format!("{reason}; type `{fix}`"),
        }
    }
}

/// The file's text; `None` when there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, Unusable> {
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut text = String::new();
    match file.take(BYTES_MAX + 1).read_to_string(&mut text) {
        Ok(_) if text.len() as u64 > BYTES_MAX => {
            Err(Unusable::Damaged(format!("it is larger than {BYTES_MAX} bytes")))
        }
        Ok(_) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            Err(Unusable::Damaged("it is not UTF-8 text".to_owned()))
        }
        Err(error) => Err(Unusable::Unreadable(error.to_string())),
    }
}

/// Opens the file if there is one. A named pipe must not block the start, hence `O_NONBLOCK`.
///
/// # Errors
/// It can't be opened, is no regular file, or others may write it.
fn open_regular(path: &Path) -> Result<Option<File>, Unusable> {
    let unreadable = |error: io::Error| Unusable::Unreadable(error.to_string());
    let flags = nix::libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(nix::libc::ENXIO) => {
            return Err(Unusable::Unreadable("it is a socket, not a file".to_owned()));
        }
        Err(error) => return Err(unreadable(error)),
    };
    let meta = file.metadata().map_err(unreadable)?;
    if !meta.is_file() {
        return Err(Unusable::Unreadable("it is not a regular file".to_owned()));
    }
    match foreign_writer(path, &meta, folder(path)) {
        Some((reason, fix)) => Err(Unusable::Foreign(reason, fix)),
        None => Ok(Some(file)),
    }
}

/// The folder that the path names, which the file itself need not be in.
pub(crate) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}
