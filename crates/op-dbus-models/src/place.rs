//! Reading single files out of a folder or a zip archive that nobody vouches for.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use zip::ZipArchive;

use crate::{Error, digest, staging};

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
        let file = File::open(path).map_err(|error| Error::io("read", path, error))?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(|e| damaged(path, &e))?;
        if let Some(name) = archive.file_names().find(|name| leaves(name)) {
            return Err(Error::unsupported(
                format!("{} has an entry `{name}` that leads out of it", path.display()),
                "archives whose entries stay inside them",
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
    /// nothing when it is not there. On an error the copy is removed.
    pub(crate) fn copy(
        &mut self,
        name: &str,
        to: &Path,
        bytes_max: u64,
        advance: impl Fn(u64),
    ) -> Result<Option<(u64, String)>, Error> {
        let result = self.with(name, |reader, shown| {
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

    /// The size that a file says it has; nothing when it is not there.
    pub(crate) fn bytes(&mut self, name: &str) -> Option<u64> {
        match self {
            Self::Folder { root } => std::fs::metadata(root.join(name)).ok().map(|m| m.len()),
            Self::Zip { archive, prefix, .. } => {
                archive.by_name(&format!("{prefix}{name}")).ok().map(|entry| entry.size())
            }
        }
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
                use_it(&mut file, &shown).map(Some)
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
                use_it(&mut entry, &shown).map(Some)
            }
        }
    }
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
