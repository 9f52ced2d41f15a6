//! Copying folders, and reading what comes as a descriptor.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;

use super::Outcome;

/// Copies a folder with everything in it.
pub fn copy_folder(from: &Path, to: &Path) -> Outcome {
    fs::create_dir_all(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}

/// What is in the file of a descriptor, from where it stands.
pub fn content(fd: zbus::OwnedFd) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::from(OwnedFd::from(fd)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
