//! The folder of drop-ins: which of its files are read, and which somebody may believe to be.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::layers::Sources;
use super::mistakes::{Mistake, Origin};

const FOLDER: &str = "etc/op-dbus/conf.d";
/// What files are called that a package manager, an editor or an administrator has put aside.
const ASIDE: [&str; 12] = [
    "~",
    ".bak",
    ".disabled",
    ".dpkg-",
    ".old",
    ".orig",
    ".pacnew",
    ".pacsave",
    ".rpm",
    ".sw",
    ".tmp",
    ".ucf-",
];

/// What is in the folder.
#[derive(Default)]
pub(super) struct Found {
    /// `*.toml`, in the order in which they are read.
    pub(super) taken: Vec<PathBuf>,
    /// What is passed over, and was not put aside.
    left: Vec<PathBuf>,
}

/// Looks into the folder; one that is not there is empty.
///
/// # Errors
/// Why it cannot be read.
pub(super) fn read(sources: &Sources) -> Result<Found, Mistake> {
    let folder = sources.path(FOLDER);
    match list(&folder) {
        Ok(found) => Ok(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::default()),
        Err(error) => {
            let message = format!("it cannot be read: {error}");
            Err(Mistake { origin: Origin::File(folder, None), message })
        }
    }
}

fn list(folder: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match path.extension() {
            _ if name.starts_with('.') => {}
            Some(extension) if extension == "toml" => found.taken.push(path),
            _ if is_aside(&name) => {}
            _ => found.left.push(path),
        }
    }
    found.taken.sort();
    found.left.sort();
    Ok(found)
}

/// Whether a name, which is no drop-in's, ends as those in [`ASIDE`] do, some of which go on with a word.
fn is_aside(name: &str) -> bool {
    let last = name.rfind(['.', '~']).map_or("", |start| &name[start..]);
    ASIDE.iter().any(|aside| last.starts_with(aside)) || name.eq_ignore_ascii_case("README")
}

/// What is said of files that are passed over, a sentence each.
pub(super) fn passed_over(sources: &Sources) -> Vec<String> {
    // Why the folder cannot be read is told elsewhere.
    let left = read(sources).unwrap_or_default().left;
    let sentence = |path: &PathBuf| {
        let meant = path.with_extension("toml");
        let meant = meant.file_name().unwrap_or_default().to_string_lossy();
        format!(
            "{}: it is not read, as the names of drop-ins end in .toml; call it {meant} if it has settings",
            path.display()
        )
    };
    left.iter().map(sentence).collect()
}
