//! Reading single files out of a folder or a zip archive that nobody vouches for.

mod folder;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufReader, Cursor, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use crate::error::refuse;
use crate::progress::Step;
use crate::{Error, FileRecord, digest, staging};
use folder::Folder;

/// How many times its bytes in an archive a file may have, beyond what is little: weights shrink by a
/// fraction, and what unfolds so far was made to fill a disk.
const UNFOLDED_MAX: u64 = 100;
const LITTLE_BYTES: u64 = 64 << 20;
/// How a file begins that git-lfs keeps elsewhere, in a copy made without it.
const POINTER: &[u8] = b"version https://git-lfs";

/// A folder or a zip archive, seen from the folder inside it that the wanted files lie in.
pub(crate) struct Place {
    kind: Kind,
    /// The SHA-256 of what was read of each file, none of one that was not there.
    seen: BTreeMap<String, Option<String>>,
}

enum Kind {
    Folder(Folder),
    Zip { path: PathBuf, archive: ZipArchive<BufReader<File>>, prefix: String },
}

impl Place {
    fn of(kind: Kind) -> Self {
        Self { kind, seen: BTreeMap::new() }
    }

    /// Opens a folder.
    pub(crate) fn folder(path: &Path) -> Result<Self, Error> {
        Ok(Self::of(Kind::Folder(Folder::new(path)?)))
    }

    /// Opens an archive at the given folder inside it.
    pub(crate) fn zip(path: &Path, folder: &str) -> Result<Self, Error> {
        let open = || File::open(path).map(BufReader::new);
        let unread = |error| Error::io("read", path, error);
        let archive = ZipArchive::new(open().map_err(unread)?).map_err(|e| damaged(path, &e))?;
        let wrong = archive.file_names().find_map(|name| Some((name, wrong_with(name)?)));
        if let Some((name, (what, instead))) = wrong {
            return Err(refuse(
                format!("{} has an entry `{name}` {what}", path.display()),
                instead,
            ));
        }
        let start = archive.central_directory_start();
        let listed = open().and_then(|file| listed(file, start)).map_err(unread)?;
        let names: BTreeSet<String> = archive.file_names().map(without_dots).collect();
        if [listed, names.len()] != [archive.len(); 2] {
            return Err(refuse(
                format!("{} has several entries of one name", path.display()),
                "archives that have each file once",
            ));
        }
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        Ok(Self::of(Kind::Zip { path: path.to_owned(), archive, prefix }))
    }

    /// Opens an archive at the outermost folder inside it that has the first of the named files which it has at all.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if two folders are outermost: which is meant nobody can tell.
    pub(crate) fn zip_around(path: &Path, markers: &[&str]) -> Result<Self, Error> {
        let mut place = Self::zip(path, "")?;
        let Kind::Zip { archive, prefix, .. } = &mut place.kind else { return Ok(place) };
        let depth = |folder: &&str| folder.matches('/').count();
        for marker in markers {
            let folders = archive.file_names().filter_map(|name| name.strip_suffix(marker));
            let folders = folders.filter(|folder| folder.is_empty() || folder.ends_with('/'));
            let folders: Vec<&str> = folders.collect();
            let Some(first) = folders.iter().copied().min_by_key(depth) else { continue };
            let mut others = folders.into_iter().filter(|other| *other != first);
            if let Some(other) = others.find(|other| depth(other) == depth(&first)) {
                return Err(refuse(
                    format!("{} has a {marker} in {first} and in {other}", path.display()),
                    "an archive with one model in its outermost folder (unpack it, and import one)",
                ));
            }
            *prefix = first.to_owned();
            break;
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
        Err(refuse(
            format!("{} is neither a folder nor a .zip", path.display()),
            "a folder, a .zip or a .onnx file (unpack other archives first)",
        ))
    }

    /// Where this is, for messages.
    pub(crate) fn path(&self) -> &Path {
        match &self.kind {
            Kind::Folder(folder) => folder.root(),
            Kind::Zip { path, .. } => path,
        }
    }

    /// A file's whole name, for messages.
    fn shown(&self, name: &str) -> PathBuf {
        match &self.kind {
            Kind::Folder(folder) => folder.root().join(name),
            Kind::Zip { path, prefix, .. } => path.join(format!("{prefix}{name}")),
        }
    }

    /// Whether there is something of that name. What is no file is refused once it is read, and not passed over.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.kind {
            Kind::Folder(folder) => folder.has(name),
            Kind::Zip { archive, prefix, .. } => {
                archive.index_for_name(&format!("{prefix}{name}")).is_some()
            }
        }
    }

    /// The whole of a file; nothing when it is not there. What is copied of that name later is the same, or nothing.
    pub(crate) fn read(&mut self, name: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, Error> {
        let bytes_max = bytes_max.min(self.unfolded_max(name));
        let said = self.bytes(name).unwrap_or(0);
        let mut bytes = Vec::new();
        let found = self.with(name, |reader, shown| {
            within(shown, said, bytes_max)?;
            let (total, digest) = digest::copy(reader, &mut bytes, bytes_max, |_| ())
                .map_err(|error| unreadable(shown, error))?;
            within(shown, total, bytes_max)?;
            Ok(digest)
        })?;
        let is_there = found.is_some();
        self.unchanged(name, found.as_ref())?;
        self.seen.insert(name.to_owned(), found);
        Ok(is_there.then_some(bytes))
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
                .map_err(|error| uncopied(shown, to, error))?;
            within(shown, total, bytes_max)?;
            file.sync_all().map_err(|error| Error::io("write", to, error))?;
            Ok((total, digest))
        });
        let result = result.and_then(|copied| {
            self.unchanged(name, copied.as_ref().map(|(_, digest)| digest))?;
            Ok(copied)
        });
        if result.is_err() {
            std::fs::remove_file(to).ok();
        }
        result
    }

    /// Refuses a file that is another than when it was read: what was made of it then would not be true of it.
    fn unchanged(&self, name: &str, digest: Option<&String>) -> Result<(), Error> {
        if self.seen.get(name).is_none_or(|seen| seen.as_ref() == digest) {
            return Ok(());
        }
        Err(refuse(
            format!("{} was changed while it was read", self.shown(name).display()),
            "files that nobody writes meanwhile",
        ))
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
        let (said, right) = (self.bytes(name).unwrap_or(0), record.bytes);
        if said > right {
            let shown = self.shown(name);
            let shown = shown.display();
            let reason = format!("{shown} is another file: it has {said} bytes, and not {right}");
            return Err(Error::Source { source_name, reason });
        }
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
        match &mut self.kind {
            Kind::Folder(folder) => {
                std::fs::metadata(folder.root().join(name)).ok().map(|meta| meta.len())
            }
            Kind::Zip { archive, prefix, .. } => {
                archive.by_name(&format!("{prefix}{name}")).ok().map(|entry| entry.size())
            }
        }
    }

    /// The most bytes that come of a file which was not made to unfold without end.
    fn unfolded_max(&mut self, name: &str) -> u64 {
        let Kind::Zip { archive, prefix, .. } = &mut self.kind else { return u64::MAX };
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
        match &mut self.kind {
            Kind::Folder(folder) => {
                let shown = folder.root().join(name);
                let Some(mut file) = folder.open(name)? else { return Ok(None) };
                use_it(&mut itself(&mut file, &shown)?, &shown).map(Some)
            }
            Kind::Zip { path, archive, prefix } => {
                let full = format!("{prefix}{name}");
                let Some(index) = archive.index_for_name(&full) else { return Ok(None) };
                let shown = path.join(&full);
                let mut entry = archive.by_index(index).map_err(|e| damaged(path, &e))?;
                if entry.is_symlink() {
                    return Err(refuse(
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
        return Err(refuse(
            format!("{} is only git-lfs's pointer to the file", shown.display()),
            "the file itself (type `git lfs pull` in the folder, or download it)",
        ));
    }
    Ok(Cursor::new(head).chain(file))
}

/// How many entries the directory of an archive lists. Of those with one name the library knows the last
/// alone, where others may take the first.
fn listed(mut archive: impl Read + Seek, start: u64) -> std::io::Result<usize> {
    const HEAD_BYTES: usize = 46;
    archive.seek(SeekFrom::Start(start))?;
    let mut head = [0; HEAD_BYTES];
    for count in 0.. {
        match archive.read_exact(&mut head) {
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
            Ok(()) if head.starts_with(b"PK\x01\x02") => {}
            _ => return Ok(count),
        }
        let length = |at: usize| i64::from(u16::from_le_bytes([head[at], head[at + 1]]));
        // Its name, what is extra, and its comment.
        archive.seek_relative(length(28) + length(30) + length(32))?;
    }
    Ok(usize::MAX)
}

/// What is wrong with the name of an entry, and what would be right.
fn wrong_with(name: &str) -> Option<(&'static str, &'static str)> {
    if name.contains('\\') {
        return Some(("with a backslash in its name", "archives with / between folder and file"));
    }
    let leaves = name.starts_with('/') || name.split('/').any(|part| part == "..");
    leaves.then_some(("that leads out of it", "archives whose entries stay inside them"))
}

/// What a name means: `./a` and `a` are the same file, of which programs take one or the other.
fn without_dots(name: &str) -> String {
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    parts.join("/")
}

fn within(shown: &Path, total: u64, bytes_max: u64) -> Result<(), Error> {
    if total <= bytes_max {
        return Ok(());
    }
    Err(refuse(
        format!("{} has more than {bytes_max} bytes", shown.display()),
        format!("at most {bytes_max} bytes for this file"),
    ))
}

/// Why a copy failed, by the end at which it did.
pub(crate) fn uncopied(shown: &Path, to: &Path, error: std::io::Error) -> Error {
    match digest::is_unwritten(&error) {
        true => Error::io("write", to, error),
        false => unreadable(shown, error),
    }
}

/// An archive's own checksum shows up as an error while its entry is read.
fn unreadable(shown: &Path, error: std::io::Error) -> Error {
    Error::Io { action: "copy", path: shown.to_owned(), source: error }
}

fn damaged(path: &Path, error: &ZipError) -> Error {
    let supported = match error {
        ZipError::UnsupportedArchive(why) if *why != ZipError::PASSWORD_REQUIRED => {
            "a zip archive packed with deflate (pack it so, or unpack it and give the folder)"
        }
        _ => "an undamaged, unencrypted zip archive",
    };
    refuse(format!("{} cannot be read as a zip archive ({error})", path.display()), supported)
}
