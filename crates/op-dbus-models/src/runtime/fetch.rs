//! Fetching a library: the sources in order, until one has delivered every file.

use std::path::PathBuf;

use crate::Error;
use crate::manifest::{Build, Library, Wheel};
use crate::place::Place;
use crate::progress::Progress;
use crate::pull::Source;
use crate::staging::Stage;
use crate::wheels::Wheels;

/// Brings every file of a library into a folder below `stage`, verified; returns the folder.
pub(super) fn fetch(
    library: &Library,
    build: &Build,
    stage: &Stage,
    sources: &[Source],
    progress: &Progress,
) -> Result<PathBuf, Error> {
    let name = library.folder_name();
    let files = stage.path().join("files");
    let mut reasons = Vec::new();
    for source in sources {
        let wheels = match source {
            Source::Folder(path) => Wheels::Local(path),
            Source::Pip => Wheels::Pip(stage),
            Source::Hub => {
                reasons.push("hub: it has no ONNX Runtime".to_owned());
                continue;
            }
        };
        let taken = open(library, build, &wheels, progress).and_then(|mut place| {
            for record in &build.files {
                let step = progress.step(format!("{name}: {}", record.path), Some(record.bytes));
                let (to, from) = (files.join(&record.path), wheels.source_name());
                place.take(&record.path, &to, (from, record), step)?;
            }
            Ok(())
        });
        match taken {
            Ok(()) => return Ok(files),
            Err(error) if error.is_of_the_store() => return Err(error),
            Err(error) => {
                progress.say(format_args!("{name}: {error}"));
                reasons.push(error.to_string());
            }
        }
    }
    Err(Error::Sources {
        what: name,
        reasons: reasons.join("; "),
        fix: "check the network, or give a folder that has the library itself or its wheel (for \
              CPython 3.12, if there is one for each Python) with --from PATH"
            .to_owned(),
    })
}

/// Opens the folder that has the library's files: a local folder with the files themselves, or a wheel.
fn open(
    library: &Library,
    build: &Build,
    wheels: &Wheels<'_>,
    progress: &Progress,
) -> Result<Place, Error> {
    if let Wheels::Local(path) = wheels {
        let folders = [path.join(library.folder_name()), path.to_path_buf()];
        if let Some(folder) = folders.iter().find(|folder| folder.join(&library.load).is_file()) {
            return Place::folder(folder);
        }
    }
    let (name, version) = (library.package.clone(), library.version.clone());
    let wheel = Wheel { name, version, slice: None };
    let path = wheels.locate(&wheel, Some(&build.platform), progress)?;
    Place::zip(&path, &library.folder)
}
