//! Reading single files out of a folder or a zip archive that nobody vouches for.

use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use crate::progress::Step;
use crate::{Error, FileRecord, digest, staging};

/// How many times its bytes in an archive a file may have, beyond what is little: weights shrink by a
/// fraction, and what unfolds so far was made to fill a disk.
const UNFOLDED_MAX: u64 = 100;
const LITTLE_BYTES: u64 = 64 << 20;
/// How a file begins that git-lfs keeps elsewhere, in a copy made without it.
const POINTER: &[u8] = b"version https://git-lfs";

/// A folder or a zip archive, seen from the folder inside it that the wanted files lie in.
pub(crate) enum Place {
    Folder { root: PathBuf },
    Zip { path: PathBuf, archive: ZipArchive<BufReader<File>>, prefix: String },
}

impl Place {
    /// Opens a folder.
    pub(crate) fn folder(path: &Path) -> Result<Self, Error> {
        let root = path.canonicalize().map_err(|error| Error::io("read", path, error))?;
        Ok(Self::Folder { root })
    }

    /// Opens an archive at the given folder inside it.
    pub(crate) fn zip(path: &Path, folder: &str) -> Result<Self, Error> {
        let open = || File::open(path).map(BufReader::new);
        let unread = |error| Error::io("read", path, error);
        let archive = ZipArchive::new(open().map_err(unread)?).map_err(|e| damaged(path, &e))?;
        if let Some(name) = archive.file_names().find(|name| leaves(name)) {
            let (what, instead) = match name.contains('\\') {
                true => ("with a backslash in its name", "archives with / between folder and file"),
                false => ("that leads out of it", "archives whose entries stay inside them"),
            };
            return Err(Error::unsupported(
                format!("{} has an entry `{name}` {what}", path.display()),
                instead,
            ));
        }
        let start = archive.central_directory_start();
        if open().and_then(|file| listed(file, start)).map_err(unread)? != archive.len() {
            return Err(Error::unsupported(
                format!("{} has several entries of one name", path.display()),
                "archives that have each file once",
            ));
        }
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Ok(Self::Zip { path: path.to_owned(), archive, prefix })
    }

    /// Opens an archive at the outermost folder inside it that has one of the named files.
    pub(crate) fn zip_around(path: &Path, markers: &[&str]) -> Result<Self, Error> {
        let mut place = Self::zip(path, "")?;
        if let Self::Zip { archive, prefix, .. } = &mut place {
            let folders = markers.iter().filter_map(|marker| {
                let folders = archive.file_names().filter_map(|name| name.strip_suffix(marker));
                folders.filter(|f| f.is_empty() || f.ends_with('/')).min_by_key(|f| f.len())
            });
            *prefix = folders.into_iter().next().unwrap_or_default().to_owned();
        }
        Ok(place)
    }

    /// Opens a folder or a `.zip`, whichever `path` is.
    pub(crate) fn open(path: &Path, markers: &[&str]) -> Result<Self, Error> {
        let meta = std::fs::metadata(path).map_err(|error| Error::io("read", path, error))?;
        if meta.is_dir() {
            return Self::folder(path);
        }
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        if extension.eq_ignore_ascii_case("zip") {
            return Self::zip_around(path, markers);
        }
        Err(Error::unsupported(
            format!("{} is neither a folder nor a .zip", path.display()),
            "a folder or a .zip (unpack other archives first)",
        ))
    }

    /// Where this is, for messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Folder { root } => root,
            Self::Zip { path, .. } => path,
        }
    }

    /// Whether there is a file of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder { root } => root.join(name).is_file(),
            Self::Zip { archive, prefix, .. } => {
                archive.index_for_name(&format!("{prefix}{name}")).is_some()
            }
        }
    }

    /// The whole of a small file; nothing when it is not there.
    pub(crate) fn read(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = Vec::new();
        let found = self.with(name, |reader, shown| {
            let (total, _) = digest::copy(reader, &mut bytes, bytes_max, |_| ())
                .map_err(|error| unreadable(shown, error))?;
            within(shown, total, bytes_max)
        })?;
        Ok(found.map(|()| bytes))
    }

    /// Copies a file of at most `bytes_max` bytes and syncs it; returns its size and SHA-256, or
    /// nothing when it is not there. One that says it is larger is refused before anything is written.
    /// On an error the copy is removed.
    pub(crate) fn copy(
        &mut self,
        name: &str,
        to: &Path,
        bytes_max: u64,
        advance: impl Fn(u64),
    ) -> Result<Option<(u64, String)>, Error> {
        let bytes_max = bytes_max.min(self.unfolded_max(name));
        let said = self.bytes(name).unwrap_or(0);
        let result = self.with(name, |reader, shown| {
            within(shown, said, bytes_max)?;
            let mut file = staging::create(to)?;
            let (total, digest) = digest::copy(reader, &mut file, bytes_max, advance)
                .map_err(|error| unreadable(shown, error))?;
            within(shown, total, bytes_max)?;
            file.sync_all().map_err(|error| Error::io("write", to, error))?;
            Ok((total, digest))
        });
        if result.is_err() {
            std::fs::remove_file(to).ok();
        }
        result
    }

    /// Copies the file that is to be `record`'s, and leaves it there only where it is; `source` is what
    /// it comes from, in messages.
    pub(crate) fn take(
        &mut self,
        name: &str,
        to: &Path,
        (source_name, record): (&'static str, &FileRecord),
        step: Step<'_>,
    ) -> Result<(), Error> {
        let copied = self.copy(name, to, record.bytes, |bytes| step.advance(bytes))?;
        let Some((bytes, digest)) = copied else {
            let reason = format!("there is no {} in {}", record.path, self.path().display());
            return Err(Error::Source { source_name, reason });
        };
        if digest != record.sha256 {
            std::fs::remove_file(to).ok();
            return Err(record.is_not(&digest, source_name));
        }
        step.finish(bytes);
        Ok(())
    }

    /// The size that a file says it has; nothing when it is not there.
    pub(crate) fn bytes(&mut self, name: &str) -> Option<u64> {
        match self {
            Self::Folder { root } => std::fs::metadata(root.join(name)).ok().map(|m| m.len()),
            Self::Zip { archive, prefix, .. } => {
                archive.by_name(&format!("{prefix}{name}")).ok().map(|entry| entry.size())
            }
        }
    }

    /// The most bytes that come of a file which was not made to unfold without end.
    fn unfolded_max(&mut self, name: &str) -> u64 {
        let Self::Zip { archive, prefix, .. } = self else { return u64::MAX };
        archive.by_name(&format!("{prefix}{name}")).map_or(u64::MAX, |entry| {
            entry.compressed_size().saturating_mul(UNFOLDED_MAX).saturating_add(LITTLE_BYTES)
        })
    }

    /// Reads a file through `use_it`, which gets a name to show; nothing when it is not there.
    pub(crate) fn with<T>(
        &mut self,
        name: &str,
        use_it: impl FnOnce(&mut dyn Read, &Path) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match self {
            Self::Folder { root } => {
                let shown = root.join(name);
                let Some(path) = resolve(root, name)? else { return Ok(None) };
                let mut file = File::open(&path).map_err(|e| Error::io("read", &path, e))?;
                use_it(&mut itself(&mut file, &shown)?, &shown).map(Some)
            }
            Self::Zip { path, archive, prefix } => {
                let full = format!("{prefix}{name}");
                let Some(index) = archive.index_for_name(&full) else { return Ok(None) };
                let shown = path.join(&full);
                let mut entry = archive.by_index(index).map_err(|e| damaged(path, &e))?;
                if entry.is_symlink() {
                    return Err(Error::unsupported(
                        format!("{} is a symbolic link", shown.display()),
                        "plain files in archives",
                    ));
                }
                use_it(&mut itself(&mut entry, &shown)?, &shown).map(Some)
            }
        }
    }
}

/// A file, unless it only stands for one.
fn itself<'a>(file: &'a mut dyn Read, shown: &Path) -> Result<impl Read + use<'a>, Error> {
    let mut head = Vec::new();
    let read = (&mut *file).take(POINTER.len() as u64).read_to_end(&mut head);
    read.map_err(|error| unreadable(shown, error))?;
    if head == POINTER {
        return Err(Error::unsupported(
            format!("{} is only git-lfs's pointer to the file", shown.display()),
            "the file itself (type `git lfs pull` in the folder, or download it)",
        ));
    }
    Ok(Cursor::new(head).chain(file))
}

/// The file behind a name, which may be a symbolic link as long as it stays in the folder.
fn resolve(root: &Path, name: &str) -> Result<Option<PathBuf>, Error> {
    let named = root.join(name);
    let path = match named.canonicalize() {
        Ok(path) => path,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &named, error)),
    };
    if !path.starts_with(root) {
        return Err(Error::unsupported(
            format!(
                "{} is a symbolic link to {}, outside the folder",
                named.display(),
                path.display()
            ),
            "files that lie in the folder (`cp -rL` makes a copy with the files themselves)",
        ));
    }
    if !path.is_file() {
        return Err(Error::unsupported(
            format!("{} is not a file", named.display()),
            "plain files",
        ));
    }
    Ok(Some(path))
}

/// How many entries the directory of an archive lists. Of those with one name the library knows the last
/// alone, where others may take the first.
fn listed(mut archive: impl Read + Seek, start: u64) -> std::io::Result<usize> {
    const HEAD_BYTES: usize = 46;
    archive.seek(SeekFrom::Start(start))?;
    let mut head = [0; HEAD_BYTES];
    for count in 0.. {
        match archive.read_exact(&mut head) {
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => return Err(error),
            Ok(()) if head.starts_with(b"PK\x01\x02") => {}
            _ => return Ok(count),
        }
        let length = |at: usize| i64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        // Its name, what is extra, and its comment.
        archive.seek_relative(length(28) + length(30) + length(32))?;
    }
    Ok(usize::MAX)
}

fn leaves(name: &str) -> bool {
    name.starts_with('/') || name.contains('\\') || name.split('/').any(|part| part == "..")
}

fn within(shown: &Path, total: u64, bytes_max: u64) -> Result<(), Error> {
    if total <= bytes_max {
        return Ok(());
    }
    Err(Error::unsupported(
        format!("{} has more than {bytes_max} bytes", shown.display()),
        format!("at most {bytes_max} bytes for this file"),
    ))
}

/// An archive's own checksum shows up as an error while its entry is read.
fn unreadable(shown: &Path, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::StorageFull {
        return Error::io("write", shown, error);
    }
    Error::Io { action: "copy", path: shown.to_owned(), source: error }
}

fn damaged(path: &Path, error: &zip::result::ZipError) -> Error {
    Error::unsupported(
        format!("{} cannot be read as a zip archive ({error})", path.display()),
        "an undamaged, unencrypted zip archive",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn archive(folder: &Path, files: &[(&str, &[u8])]) -> PathBuf {
        let path = folder.join("model.zip");
        let mut zip = ZipWriter::new(File::create(&path).unwrap());
        for (name, bytes) in files {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap();
        path
    }

    #[test]
    fn an_archive_may_not_have_a_name_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = archive(folder.path(), &[("a.json", b"{}"), ("b.json", b"[]"), ("c", b"c")]);
        assert!(Place::zip(&path, "").unwrap().has("b.json"));
        let mut bytes = fs::read(&path).unwrap();
        while let Some(at) = bytes.windows(6).position(|window| window == b"b.json") {
            bytes[at] = b'a';
        }
        fs::write(&path, bytes).unwrap();
        let message = Place::zip(&path, "").err().unwrap().to_string();
        assert!(message.contains("several entries of one name"), "{message}");
    }

    #[test]
    fn an_archive_may_not_unfold_without_bound() {
        let folder = tempfile::tempdir().unwrap();
        let zeros = vec![0; usize::try_from(LITTLE_BYTES).unwrap() + (16 << 20)];
        let little = &zeros[..1 << 20];
        let path = archive(folder.path(), &[("bomb", &zeros), ("little", little)]);
        let (mut place, to) = (Place::zip(&path, "").unwrap(), folder.path().join("to"));
        place.copy("little", &to, u64::MAX, |_| ()).unwrap().unwrap();
        fs::remove_file(&to).unwrap();
        let copied = std::cell::Cell::new(0);
        let refused = place.copy("bomb", &to, u64::MAX, |bytes| copied.set(bytes));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains("bomb has more than"), "{message}");
        assert!(copied.get() == 0 && !to.exists(), "{} bytes were written", copied.get());
    }
}
