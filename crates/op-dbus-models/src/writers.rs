//! Who may write a file that decides what the service computes.

use std::fs::Metadata;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use nix::unistd::geteuid;

use crate::shell_word;

/// Whether others may write the file at `path` than its owner, or that is neither root, this process's user nor the
/// owner of `folder`, who decides what lies there in any case: what is wrong, and the command that mends it.
///
/// `meta` is best that of the open file, which nobody can exchange.
// Users that have no number in this user namespace look all alike: what is theirs in a folder of theirs passes.
#[must_use]
pub fn foreign_writer(path: &Path, meta: &Metadata, folder: &Path) -> Option<(String, String)> {
    let mode = meta.permissions().mode();
    if mode & 0o022 != 0 {
        let reason = format!("others than its owner may write it (mode {:04o})", mode & 0o7777);
        return Some((reason, format!("chmod go-w {}", shell_word(path))));
    }
    let is_trusted = |owner| owner == 0 || owner == geteuid().as_raw();
    let is_the_folders = |owner| std::fs::metadata(folder).is_ok_and(|meta| meta.uid() == owner);
    if is_trusted(meta.uid()) || is_the_folders(meta.uid()) {
        return None;
    }
    let (uid, shown) = (meta.uid(), folder.display());
    let reason = format!("the user {uid} may write it, whose {shown} is not");
    Some((reason, format!("chown --reference={} {}", shell_word(folder), shell_word(path))))
}
