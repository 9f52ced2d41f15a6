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

/// The numbers of vectors as they lie one after another.
pub fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
}

/// What is in the file of a descriptor, from where it stands.
pub fn content(fd: zbus::OwnedFd) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::from(OwnedFd::from(fd)).read_to_end(&mut bytes)?;
    Ok(bytes)
}
