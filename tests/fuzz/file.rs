//! Bytes as a file, for what reads one by its path.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use nix::sys::memfd::{MFdFlags, memfd_create};

/// A file with this content, which ends when it is closed, and a path to it.
pub fn as_file(bytes: &[u8]) -> (File, PathBuf) {
    let memory = memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("memory");
    let mut file = File::from(memory);
    file.write_all(bytes).expect("memory");
    // Everybody may write it by itself, and such a file is refused before its content is looked at.
    file.set_permissions(Permissions::from_mode(0o600)).expect("memory");
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    (file, path.into())
}
