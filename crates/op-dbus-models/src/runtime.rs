//! The store of ONNX Runtime libraries: one pinned version, checked by digest.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::manifest::{self, Library, Wheel};
use crate::model::refuse_foreign_writers;
use crate::place::Place;
use crate::progress::Progress;
use crate::pull::Source;
use crate::staging::{self, Writer};
use crate::wheels::Wheels;
use crate::{Error, digest};

const FIX: &str = "op-dbus runtime pull";

/// The runtime store that belongs to a model store: its sibling `runtime`.
#[must_use]
pub fn beside(model_dir: &Path) -> PathBuf {
    model_dir.parent().unwrap_or(model_dir).join("runtime")
}

/// The store of the runtime's library.
#[derive(Debug, Clone)]
pub struct RuntimeStore {
    dir: PathBuf,
}

/// What is known of an installed library; for people, nothing reads it.
#[derive(Serialize)]
struct Record<'a> {
    version: u32,
    library: &'a str,
    library_version: &'a str,
    arch: &'a str,
    bytes: u64,
    sha256: &'a str,
    source: &'a str,
}

impl RuntimeStore {
    /// Names the store's folder; nothing is read or made.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Where the pinned library lies once it is pulled.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.dir.join(folder_name()).join(file_name())
    }

    /// The library, when it is there; its content is not read.
    #[must_use]
    pub fn installed(&self) -> Option<PathBuf> {
        Some(self.path()).filter(|path| path.is_file())
    }

    /// Compares the library with its digest; returns its path.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::Corrupt`], [`Error::Permission`], or
    /// [`Error::Unsupported`] on a processor that the manifest has no library for.
    pub fn verify(&self) -> Result<PathBuf, Error> {
        let library = library()?;
        let path = self.installed().ok_or_else(|| Error::NotInstalled {
            what: format!("the ONNX Runtime library {}", manifest::runtime().version),
            dir: self.dir.clone(),
            fix: FIX.to_owned(),
        })?;
        let meta = std::fs::metadata(&path).map_err(|error| Error::io("read", &path, error))?;
        refuse_foreign_writers(&path, &meta)?;
        let found = digest::of_file(&path)?;
        if found == library.member.sha256 {
            return Ok(path);
        }
        let reason = format!(
            "it has {} bytes and the SHA-256 {found}, and should have {} and {}",
            meta.len(),
            library.member.bytes,
            library.member.sha256
        );
        Err(Error::Corrupt { file: path, reason, fix: FIX.to_owned() })
    }

    /// Fetches the pinned library from the first source that has it; does nothing when it is
    /// there and undamaged. The hub has none and is passed over.
    ///
    /// # Errors
    /// [`Error::Sources`] tells why each source failed.
    pub fn pull(&self, sources: &[Source], progress: &Progress) -> Result<PathBuf, Error> {
        if let Ok(path) = self.verify() {
            progress.say(format_args!("{}: installed and undamaged", folder_name()));
            return Ok(path);
        }
        let library = library()?;
        let writer = Writer::begin(&self.dir)?;
        writer.require_space(library.member.bytes * 2)?;
        let stage = writer.stage()?;
        let mut reasons = Vec::new();
        for source in sources {
            let result = match source {
                Source::Folder(path) => {
                    fetch(library, stage.path(), &Wheels::Local(path), progress)
                }
                Source::Pip => fetch(library, stage.path(), &Wheels::Pip(stage.path()), progress),
                Source::Hub => {
                    reasons.push("hub: it has no ONNX Runtime".to_owned());
                    continue;
                }
            };
            match result {
                Ok(from) => {
                    let files = stage.path().join("files");
                    write_record(&files, library, &from)?;
                    writer.commit(&files, &folder_name())?;
                    return Ok(self.path());
                }
                Err(error @ Error::NoSpace { .. }) => return Err(error),
                Err(error) => {
                    progress.say(format_args!("{}: {error}", folder_name()));
                    reasons.push(error.to_string());
                }
            }
        }
        Err(Error::Sources {
            what: folder_name(),
            reasons: reasons.join("; "),
            fix: "check the network, or give a folder that has its wheel or the library itself \
                  with --from PATH"
                .to_owned(),
        })
    }
}

fn folder_name() -> String {
    format!("onnxruntime-{}", manifest::runtime().version)
}

fn file_name() -> String {
    format!("libonnxruntime.so.{}", manifest::runtime().version)
}

/// The library for this machine.
fn library() -> Result<&'static Library, Error> {
    let arch = std::env::consts::ARCH;
    let libraries = &manifest::runtime().libraries;
    libraries.iter().find(|library| library.arch == arch).ok_or_else(|| {
        let known: Vec<_> = libraries.iter().map(|library| library.arch.as_str()).collect();
        Error::unsupported(
            format!("a processor of the kind {arch}"),
            format!("{} (or a library of your own, named with --runtime)", known.join(", ")),
        )
    })
}

/// Brings the library into `stage`/files, verified; returns where it came from, in words.
fn fetch(
    library: &Library,
    stage: &Path,
    wheels: &Wheels<'_>,
    progress: &Progress,
) -> Result<String, Error> {
    let runtime = manifest::runtime();
    let (mut place, member, from) = match wheels {
        Wheels::Local(path) if path.join(file_name()).is_file() => {
            (Place::folder(path)?, file_name(), format!("folder: {}", path.display()))
        }
        _ => {
            let (name, version) = (runtime.package.clone(), runtime.version.clone());
            let from = format!("{}: {name} {version}", wheels.source_name());
            let wheel = Wheel { name, version, slice: None };
            let path = wheels.locate(&wheel, Some(&library.platform), progress)?;
            (Place::zip(&path, "")?, library.member.path.clone(), from)
        }
    };
    let path = stage.join("files").join(file_name());
    let bytes = library.member.bytes;
    let step = progress.step(format!("{}: {}", folder_name(), file_name()), Some(bytes));
    let found = place.copy(&member, &path, bytes, |bytes| step.advance(bytes))?;
    match found {
        Some((bytes, digest)) if digest == library.member.sha256 => {
            step.finish(bytes);
            Ok(from)
        }
        found => {
            std::fs::remove_file(&path).ok();
            let reason = match found {
                Some((_, digest)) => format!("{member} has the wrong SHA-256 {digest}"),
                None => format!("there is no {member}"),
            };
            Err(Error::Source { source_name: wheels.source_name(), reason })
        }
    }
}

fn write_record(dir: &Path, library: &Library, source: &str) -> Result<(), Error> {
    let record = Record {
        version: 1,
        library: &file_name(),
        library_version: &manifest::runtime().version,
        arch: &library.arch,
        bytes: library.member.bytes,
        sha256: &library.member.sha256,
        source,
    };
    let path = dir.join(crate::store::RECORD);
    let text = serde_json::to_vec_pretty(&record)
        .map_err(|error| Error::io("write", &path, error.into()))?;
    staging::write(&path, &text)
}
