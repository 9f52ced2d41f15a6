//! Opening what is to be a file, in folders whose owner may have put something else there.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Opens a file as `options` say, and with `flags`. A pipe in its place keeps nobody waiting.
///
/// # Errors
/// What the file system says; [`io::ErrorKind::InvalidData`] if something else than a file is there.
pub(crate) fn open(options: &OpenOptions, flags: OFlag, path: &Path) -> io::Result<File> {
    let other = || io::Error::new(io::ErrorKind::InvalidData, "it is not a file");
    let opened = options.clone().custom_flags((flags | OFlag::O_NONBLOCK).bits()).open(path);
    match opened {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(other()),
        // To write: a pipe that nobody reads. A socket in either case.
        Err(error) if error.raw_os_error() == Some(Errno::ENXIO as i32) => Err(other()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_no_file_keeps_nobody_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), b"x").unwrap();
        mkfifo(&at("pipe"), Mode::S_IRWXU).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let (mut reads, mut appends) = (OpenOptions::new(), OpenOptions::new());
        reads.read(true);
        appends.create(true).append(true);
        for options in [&reads, &appends] {
            open(options, OFlag::empty(), &at("file")).unwrap();
            for name in ["pipe", "socket"] {
                let error = open(options, OFlag::empty(), &at(name)).unwrap_err();
                assert_eq!(error.to_string(), "it is not a file", "{name}");
            }
        }
        let error = open(&reads, OFlag::empty(), dir.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let error = open(&reads, OFlag::empty(), &at("none")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
