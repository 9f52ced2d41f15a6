//! Opening files of a folder whose owner may lay links in it while it is read.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::Mode;

use crate::Error;
use crate::error::refuse;

/// An open folder.
pub(super) struct Folder {
    /// Where it is, without links.
    root: PathBuf,
    dir: OwnedFd,
}

impl Folder {
    pub(super) fn new(path: &Path) -> Result<Self, Error> {
        let fail = |error| Error::io("read", path, error);
        let dir = open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty());
        let dir = dir.map_err(|error| fail(error.into()))?;
        Ok(Self { root: path.canonicalize().map_err(fail)?, dir })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether something is there, of which opening it may still find that it can't be read.
    pub(super) fn has(&self, name: &str) -> bool {
        !matches!(self.resolve(name), Ok(None))
    }

    /// Opens a file, which may be a symbolic link as long as it stays in the folder; nothing when it is not
    /// there.
    pub(super) fn open(&self, name: &str) -> Result<Option<File>, Error> {
        self.resolve(name)?.map(|inside| self.open_itself(&inside)).transpose()
    }

    /// The path in the folder of what is behind a name.
    fn resolve(&self, name: &str) -> Result<Option<PathBuf>, Error> {
        let named = self.root.join(name);
        let path = match named.canonicalize() {
            Ok(path) => path,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return match self.link_to_nowhere(&named) {
                    Some(link) => Err(refuse_link(link, "that leads nowhere")),
                    None => Ok(None),
                };
            }
            Err(error) => return Err(Error::io("read", &named, error)),
        };
        if let Ok(inside) = path.strip_prefix(&self.root) {
            return Ok(Some(inside.to_owned()));
        }
        Err(refuse_link(&named, &format!("to {}, outside the folder", path.display())))
    }

    /// The file, or a folder around it, if that is a link whose target is missing: a copy may have left it behind.
    fn link_to_nowhere<'a>(&self, named: &'a Path) -> Option<&'a Path> {
        let mut inside = named.ancestors().take_while(|path| *path != self.root);
        inside.find(|path| path.is_symlink() && !path.exists())
    }

    /// Opens what a path without links leads to, and follows none: by now one may lie there that leads to
    /// what this user may read and the folder's owner may not. Nor does a pipe hold this up.
    fn open_itself(&self, inside: &Path) -> Result<File, Error> {
        let shown = self.root.join(inside);
        let fail = |error: io::Error| Error::io("read", &shown, error);
        let folder = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let mut around = self.dir.try_clone().map_err(fail)?;
        let mut parts = inside.iter().peekable();
        while let Some(part) = parts.next() {
            let kind = if parts.peek().is_some() { folder } else { OFlag::O_NONBLOCK };
            let flags = kind | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            around =
                openat(&around, part, flags, Mode::empty()).map_err(|error| fail(error.into()))?;
        }
        let file = File::from(around);
        if file.metadata().map_err(fail)?.is_file() {
            return Ok(file);
        }
        Err(refuse(format!("{} is not a file", shown.display()), "plain files"))
    }
}

fn refuse_link(link: &Path, where_to: &str) -> Error {
    refuse(
        format!("{} is a symbolic link {where_to}", link.display()),
        "files that lie in the folder (`cp -rL` makes a copy with the files themselves)",
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A folder with a file in a folder, beside another of the same names.
    fn beside_a_secret() -> (tempfile::TempDir, Folder, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        for (folder, content) in [("model", "{}"), ("secret", "secret")] {
            let folder = dir.path().join(folder).join("1_Pooling");
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("config.json"), content).unwrap();
        }
        let model = Folder::new(&dir.path().join("model")).unwrap();
        let secret = dir.path().join("secret");
        (dir, model, secret)
    }

    #[test]
    fn a_link_that_is_laid_between_a_look_and_the_opening_is_not_followed() {
        for exchanged in ["1_Pooling/config.json", "1_Pooling"] {
            let (dir, model, secret) = beside_a_secret();
            let inside = model.resolve("1_Pooling/config.json").unwrap().unwrap();
            model.open_itself(&inside).unwrap();
            let at = dir.path().join("model").join(exchanged);
            fs::rename(&at, dir.path().join("old")).unwrap();
            symlink(secret.join(exchanged), &at).unwrap();
            assert!(model.open_itself(&inside).is_err(), "{exchanged}");
        }
    }

    #[test]
    fn a_link_in_the_place_of_the_folder_leads_nowhere() {
        let (dir, model, secret) = beside_a_secret();
        let inside = model.resolve("1_Pooling/config.json").unwrap().unwrap();
        fs::rename(model.root(), dir.path().join("old")).unwrap();
        symlink(secret, model.root()).unwrap();
        let read = io::read_to_string(model.open_itself(&inside).unwrap()).unwrap();
        assert_eq!(read, "{}");
    }

    #[test]
    fn links_inside_the_folder_are_followed() {
        let (dir, model, _) = beside_a_secret();
        let target = dir.path().join("model/1_Pooling/config.json");
        symlink("1_Pooling/config.json", dir.path().join("model/relative")).unwrap();
        symlink(target, dir.path().join("model/absolute")).unwrap();
        for link in ["relative", "absolute"] {
            let file = model.open(link).unwrap().unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "{}");
        }
        assert!(model.open("1_Pooling").is_err() && model.open("none").unwrap().is_none());
    }

    #[test]
    fn what_can_not_be_opened_is_there_all_the_same() {
        let (dir, model, secret) = beside_a_secret();
        let at = |name: &str| dir.path().join("model").join(name);
        symlink("none", at("nowhere")).unwrap();
        symlink("../none", at("2_Dense")).unwrap();
        symlink(secret.join("1_Pooling/config.json"), at("out")).unwrap();
        nix::unistd::mkfifo(&at("pipe"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        for (name, why) in [
            ("nowhere", "nowhere is a symbolic link that leads nowhere"),
            ("2_Dense/config.json", "2_Dense is a symbolic link that leads nowhere"),
            ("out", "outside the folder"),
            ("pipe", "pipe is not a file"),
            ("1_Pooling", "1_Pooling is not a file"),
        ] {
            assert!(model.has(name), "{name}");
            let message = model.open(name).unwrap_err().to_string();
            assert!(message.contains(why), "{name}: {message}");
        }
        for absent in ["none", "1_Pooling/none", "none/config.json"] {
            assert!(!model.has(absent) && model.open(absent).unwrap().is_none(), "{absent}");
        }
    }
}
