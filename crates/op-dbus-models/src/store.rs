//! The model store: a folder with one folder per model.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use serde::{Deserialize, Serialize};

use crate::import::{self, ImportOptions};
use crate::manifest::{self, BuiltIn};
use crate::model::{corrupt, dense_paths, refuse_foreign_writers};
use crate::pull::{self, PullOptions};
use crate::staging::{self, Writer};
use crate::{Error, Level, Model, regular, shell_word};

/// Our record in each model's folder.
pub(crate) const RECORD: &str = "op-dbus.json";
/// Every model has one.
const TOKENIZER: &str = "tokenizer.json";
/// The version of a record. One of another version is not read.
const RECORD_VERSION: u32 = 1;
const RECORD_BYTES_MAX: u64 = 1 << 20;
const NAME_BYTES_MAX: usize = 64;

/// The model store; cheap to make, holds no file open.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    #[serde(flatten)]
    model: Model,
}

impl Store {
    /// Names the store's folder; nothing is read or made.
    #[must_use]
    pub fn open(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The store's folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The installed model of that name or level; of its files only the record is read. A built-in
    /// model is described by the manifest, whatever its record says.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::NoFolder`], [`Error::NoModel`], [`Error::Corrupt`] when its record cannot be
    /// understood, or [`Error::Permission`] when others may write it.
    pub fn get(&self, name: &str) -> Result<Model, Error> {
        let built_in = manifest::find(name);
        let name = built_in.map_or(name, |model| model.name.as_str());
        let dir = self.dir.join(name);
        if !is_name(name) {
            return Err(self.not_installed(name, built_in));
        }
        match std::fs::metadata(&dir) {
            Ok(meta) if meta.is_dir() => (),
            // Whether it is there can't be told, where this user does not get to.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(Error::io("read", &dir, error));
            }
            _ => {
                self.check_folder()?;
                return Err(self.not_installed(name, built_in));
            }
        }
        check_holds_model(built_in, &dir)?;
        let record = read_record(name, &dir)?;
        let model = match built_in {
            Some(built_in) => described(built_in, record.source),
            None => record,
        };
        Ok(Model { dir, ..model })
    }

    /// The names of what is in the store, damaged or not, in order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_name(name))
            .collect();
        names.sort();
        names
    }

    /// What a model that can be [removed](Self::remove) is called in the store.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::NoFolder`] or [`Error::NoModel`].
    pub fn removable(&self, name: &str) -> Result<String, Error> {
        let built_in = manifest::find(name);
        let name = built_in.map_or(name, |model| model.name.as_str());
        let dir = self.dir.join(name);
        let installed = dir.is_dir();
        if !is_name(name) || !installed && !staging::has_partial(&self.dir, name) {
            self.check_folder()?;
            // Who wants it gone is not told how to get it.
            let fix = format!("op-dbus models list{}", named(&self.dir));
            return Err(Error::NotInstalled { what: name.to_owned(), dir: self.dir.clone(), fix });
        }
        // Whoever has named another folder as the store's loses nothing in it.
        if installed {
            check_holds_model(built_in, &dir)?;
        }
        Ok(name.to_owned())
    }

    /// Takes a model out of the store, damaged or not, and what a pull of it that broke off has left. Tells
    /// whether there was a model: else there was only the latter.
    ///
    /// # Errors
    /// [`Error::NotInstalled`], [`Error::NoFolder`], [`Error::NoModel`], [`Error::Busy`], or what the file system says.
    pub fn remove(&self, name: &str) -> Result<bool, Error> {
        let name = self.removable(name)?;
        let installed = self.dir.join(&name).is_dir();
        Writer::begin(&self.dir)?.discard(&name)?;
        Ok(installed)
    }

    /// Reads every file of a model and compares it with its digest.
    ///
    /// # Errors
    /// As [`Store::get`] and [`Model::verify`].
    pub fn verify(&self, name: &str) -> Result<Model, Error> {
        let model = self.get(name)?;
        model.verify()?;
        Ok(model)
    }

    /// Copies a model of the user's own into the store under `name`: a sentence-transformers folder
    /// or `.zip`, or an ONNX graph with its tokenizer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] names what was found and what would have been accepted,
    /// [`Error::Name`] what is wrong with the name, [`Error::Taken`] that another model has it,
    /// [`Error::NoModel`] that something else has it, [`Error::NoFolder`] that the store can't be one, [`Error::Busy`].
    pub fn import(
        &self,
        source: &Path,
        name: &str,
        options: &ImportOptions<'_>,
    ) -> Result<Model, Error> {
        check_new_name(name)?;
        self.check_folder()?;
        let writer = Writer::begin(&self.dir)?;
        // Under the lock: else the second of two imports would replace what the first has brought.
        if writer.root().join(name).exists() {
            check_holds_model(None, &self.dir.join(name))?;
            let fix = format!("op-dbus models remove {name}{}", named(&self.dir));
            return Err(Error::Taken { name: name.to_owned(), fix });
        }
        let stage = writer.stage()?;
        let files = stage.path().join("files");
        let bring = || {
            let model = import::bring(source, name, &writer, &files, options)?;
            install(&writer, &files, model)
        };
        stage.told(bring())
    }

    /// Fetches a built-in model by name or level; does nothing when it is installed and undamaged. Waits for who writes
    /// the store.
    ///
    /// # Errors
    /// [`Error::Unknown`] for a name that is not built in, [`Error::NoFolder`] for a store that can't be
    /// one, [`Error::Sources`] with the reason of each source when none could deliver.
    pub fn pull(&self, name: &str, options: &PullOptions<'_>) -> Result<Model, Error> {
        self.bring(manifest::pullable(name)?, options)
    }

    /// The same for a model that the caller describes.
    ///
    /// # Errors
    /// As [`Store::pull`], but for [`Error::Unknown`].
    pub fn bring(&self, built_in: &BuiltIn, options: &PullOptions<'_>) -> Result<Model, Error> {
        if let Ok(model) = self.verify(&built_in.name) {
            staging::clear_behind(&self.dir, &built_in.name);
            options.progress.say(format_args!("{}: installed and undamaged", model.name));
            return Ok(model);
        }
        self.check_folder()?;
        let writer = Writer::begin_in_turn(&self.dir, options.progress)?;
        // Another pull may have ended since.
        if let Ok(model) = self.verify(&built_in.name) {
            return Ok(model);
        }
        let stage = writer.stage()?;
        let bring = || {
            let source = pull::fetch(built_in, &writer, &stage, options)?;
            install(&writer, &stage.path().join("files"), described(built_in, source))
        };
        stage.told(bring())
    }

    /// Refuses what can't become a folder: something else has its name, or that of one above it.
    fn check_folder(&self) -> Result<(), Error> {
        let is_other = match std::fs::metadata(&self.dir) {
            Ok(meta) => !meta.is_dir(),
            Err(error) => error.kind() == ErrorKind::NotADirectory,
        };
        if is_other { Err(Error::NoFolder { dir: self.dir.clone() }) } else { Ok(()) }
    }

    fn not_installed(&self, name: &str, built_in: Option<&BuiltIn>) -> Error {
        let here = named(&self.dir);
        let fix = match built_in {
            Some(model) => format!("op-dbus models pull {}{here}", model.name),
            None if check_new_name(name).is_ok() => {
                format!("op-dbus models import PATH --name {name}{here}")
            }
            // Nothing can be installed under such a name.
            None => format!("op-dbus models list{here}"),
        };
        Error::NotInstalled { what: name.to_owned(), dir: self.dir.clone(), fix }
    }
}

/// The store that a command means which names none, unless the settings do.
pub const USUAL_DIR: &str = "/var/lib/op-dbus/models";

/// How a command to type ends that is about the store in `dir`, or about the runtime's beside it: whoever
/// reads it need not have the settings of the program that tells it.
#[must_use]
pub fn named(dir: &Path) -> String {
    match dir == Path::new(USUAL_DIR) {
        true => String::new(),
        false => format!(" --model-dir {}", shell_word(dir)),
    }
}

/// Gives complete files their record and their place in the store.
fn install(writer: &Writer, files: &Path, model: Model) -> Result<Model, Error> {
    write_record(files, &model)?;
    let dir = writer.commit(files, &model.name)?;
    Ok(Model { dir, ..model })
}

/// A folder of this name holds a model: no hidden folder, nothing that leaves the store.
fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.len() <= NAME_BYTES_MAX
        && name.bytes().all(allowed)
        && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

fn check_new_name(name: &str) -> Result<(), Error> {
    let refuse = |reason| Err(Error::Name { name: name.to_owned(), reason });
    if manifest::find(name).is_some() || Level::ALL.iter().any(|level| level.as_str() == name) {
        return refuse("it belongs to a built-in model or level");
    }
    match name {
        "all" => return refuse("`all` stands for the built-in models"),
        // The gateway's own name, which goes before any model's: of two one would answer for the other unnoticed.
        "default" => {
            return refuse("over HTTP `default` stands for the model in force, whichever that is");
        }
        _ => {}
    }
    if !is_name(name) || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return refuse(
            "a name has 1 to 64 of the characters a-z 0-9 . _ - and begins with a letter or digit",
        );
    }
    Ok(())
}

fn described(built_in: &BuiltIn, source: String) -> Model {
    Model {
        name: built_in.name.clone(),
        dir: PathBuf::new(),
        family: built_in.family,
        pooling: built_in.pooling,
        normalize: built_in.normalize,
        dimensions: built_in.dimensions,
        max_input_tokens: built_in.max_input_tokens,
        prompts: built_in.prompts.clone(),
        default_prompt: None,
        matryoshka: Vec::new(),
        dense: Vec::new(),
        unusual: Vec::new(),
        level: Some(built_in.level),
        source,
        revision: built_in.revision.clone(),
        files: built_in.records(),
    }
}

fn write_record(dir: &Path, model: &Model) -> Result<(), Error> {
    let record = Record { version: RECORD_VERSION, model: model.clone() };
    let path = dir.join(RECORD);
    let mut text = serde_json::to_vec_pretty(&record)
        .map_err(|error| Error::io("write", &path, error.into()))?;
    text.push(b'\n');
    if text.len() as u64 > RECORD_BYTES_MAX {
        let prompts: usize = model.prompts.iter().map(|(name, text)| name.len() + text.len()).sum();
        return Err(crate::error::refuse(
            format!("a record of {} bytes, with prompts of {prompts} bytes", text.len()),
            format!(
                "a record of at most {RECORD_BYTES_MAX} bytes, which has the prompts of \
                 config_sentence_transformers.json in it"
            ),
        ));
    }
    staging::write(&path, &text)
}

/// Whatever of a model is damaged or lost, one of two files is there; built-in ones are known by their name.
fn check_holds_model(built_in: Option<&BuiltIn>, dir: &Path) -> Result<(), Error> {
    // What can't be looked at may be there, unless `dir` is no folder.
    let is_gone = |file: &str| match dir.join(file).try_exists() {
        Ok(there) => !there,
        Err(error) => error.kind() == ErrorKind::NotADirectory,
    };
    match built_in.is_none() && [RECORD, TOKENIZER].into_iter().all(is_gone) {
        true => Err(Error::NoModel { dir: dir.to_owned() }),
        false => Ok(()),
    }
}

fn read_record(name: &str, dir: &Path) -> Result<Model, Error> {
    let path = dir.join(RECORD);
    let damaged = |reason: String| corrupt(name, &path, reason);
    let fail = |error| Error::io("read", &path, error);
    let file = regular::open(OpenOptions::new().read(true), OFlag::empty(), &path);
    let file = file.map_err(|error| match error.kind() {
        ErrorKind::NotFound => damaged("it is missing".to_owned()),
        ErrorKind::InvalidData => damaged(error.to_string()),
        _ => fail(error),
    })?;
    let meta = file.metadata().map_err(fail)?;
    if meta.len() > RECORD_BYTES_MAX {
        return Err(damaged(format!("it has {} bytes", meta.len())));
    }
    refuse_foreign_writers(&path, &meta, dir)?;
    let mut bytes = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut bytes).map_err(fail)?;
    parse_record(name, &path, &bytes)
}

/// The model that the content of a record describes, in no folder yet.
pub(crate) fn parse_record(name: &str, path: &Path, bytes: &[u8]) -> Result<Model, Error> {
    let damaged = |reason: String| corrupt(name, path, reason);
    let record: Record =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if record.version != RECORD_VERSION {
        let found = record.version;
        return Err(damaged(format!("it has version {found}, and {RECORD_VERSION} is known")));
    }
    match mistake(name, &record.model) {
        Some(mistake) => Err(damaged(mistake.to_owned())),
        None => Ok(record.model),
    }
}

/// What makes a record unusable, if anything: everything after it trusts these points.
fn mistake(name: &str, model: &Model) -> Option<&'static str> {
    let has = |path: &str| model.files.iter().any(|file| file.path == path);
    let inside = |path: &str| {
        !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
    };
    let is_digest = |text: &str| {
        text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if model.name != name {
        Some("it names another model than its folder")
    } else if model.dimensions == 0 || model.max_input_tokens == 0 {
        Some("its dimensions or its token limit are 0")
    } else if !has(model.weights_name()) || !has(TOKENIZER) {
        Some("it lists no weights or no tokenizer.json")
    } else if !model.dense.iter().flat_map(|folder| dense_paths(folder)).all(|path| has(&path)) {
        Some("it lists no configuration or no weights of a Dense module")
    } else if !model.files.iter().all(|file| inside(&file.path) && is_digest(&file.sha256)) {
        Some("it lists a file outside the model's folder, or a digest that is none")
    } else if model.default_prompt.as_ref().is_some_and(|name| !model.prompts.contains_key(name)) {
        Some("its default prompt is not among its prompts")
    } else if model.prompts.keys().chain([&model.source, &model.revision]).any(|t| t.contains('\0'))
    {
        // They are told over D-Bus, where it would end the connection.
        Some("a prompt's name, its source or its revision has the character U+0000")
    } else {
        None
    }
}
