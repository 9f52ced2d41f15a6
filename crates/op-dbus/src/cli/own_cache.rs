//! Where a command that loads models itself keeps what it packs and compiles.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::unistd::geteuid;
use tempfile::TempDir;

/// A folder to use in place of `cache_dir`, unless that is this user's own: what root, say, makes in the
/// service's cache the service can neither read nor replace.
pub fn instead_of(cache_dir: &Path) -> io::Result<Option<TempDir>> {
    let is_own = fs::metadata(cache_dir).is_ok_and(|meta| meta.uid() == geteuid().as_raw());
    if is_own { Ok(None) } else { tempfile::tempdir().map(Some) }
}
