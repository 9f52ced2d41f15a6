//! An installed model: what it is, which files it has, and the proof that they are undamaged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::writers::foreign_writer;
use crate::{Error, digest, manifest, named};

/// The files of the Dense module in `folder`, as a record lists them: its configuration and its
/// weights.
pub(crate) fn dense_paths(folder: &str) -> [String; 2] {
    ["config.json", "model.safetensors"].map(|file| format!("{folder}/{file}"))
}

/// How the weights become token vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT encoders: MiniLM, BGE, E5, GTE and many more.
    Bert,
    /// MPNet encoders, with their relative position bias.
    Mpnet,
    /// RoBERTa encoders, XLM-RoBERTa and CamemBERT among them.
    Roberta,
    /// DistilBERT encoders.
    Distilbert,
    /// A user's own ONNX graph, run as it is.
    Onnx,
}

/// How token vectors become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// The mean over the real tokens.
    Mean,
    /// The vector of the first token.
    Cls,
    /// The largest value of each dimension over the real tokens.
    Max,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Max => "max",
        })
    }
}

/// The three named qualities, and the one that serves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Everything runs but embedding.
    None,
    /// The smallest and fastest model.
    Low,
    /// The usual choice.
    Medium,
    /// The best and slowest model.
    High,
}

impl Level {
    /// All levels, lowest first.
    pub const ALL: [Self; 4] = [Self::None, Self::Low, Self::Medium, Self::High];

    /// The name of the built-in model that serves this level; nothing for `none`.
    #[must_use]
    pub fn model(self) -> Option<&'static str> {
        manifest::models().iter().find(|model| model.level == self).map(|m| m.name.as_str())
    }

    /// `none`, `low`, `medium` or `high`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Level {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|level| level.as_str() == text).ok_or_else(|| Error::Unknown {
            name: text.to_owned(),
            known: "none, low, medium, high".to_owned(),
        })
    }
}

/// One file of a model: where it lies inside the model's folder and what it must contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Relative path with `/`, never leaving the folder.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

impl FileRecord {
    /// Checks that the file is there, of the right size, and neither writable nor owned by others. `damaged` makes
    /// the error out of its path and the reason.
    pub(crate) fn check_shape(
        &self,
        dir: &Path,
        damaged: impl FnOnce(&Path, String) -> Error,
    ) -> Result<(), Error> {
        let path = dir.join(&self.path);
        let meta = match std::fs::metadata(&path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(&path, "it is missing".to_owned()));
            }
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        if !meta.is_file() {
            return Err(damaged(&path, "it is not a file".to_owned()));
        }
        if meta.len() != self.bytes {
            let reason = format!("it has {} bytes and should have {}", meta.len(), self.bytes);
            return Err(damaged(&path, reason));
        }
        refuse_foreign_writers(&path, &meta, dir)
    }

    /// What is wrong with a file of a source that has another digest.
    pub(crate) fn is_not(&self, found: &str, source_name: &'static str) -> Error {
        let (path, sha256) = (&self.path, &self.sha256);
        let reason = format!("its {path} has the SHA-256 {found} and should have {sha256}");
        Error::Source { source_name, reason }
    }

    /// Compares a digest of the file's content with what it should be.
    pub(crate) fn check_digest(
        &self,
        dir: &Path,
        found: &str,
        damaged: impl FnOnce(&Path, String) -> Error,
    ) -> Result<(), Error> {
        if found == self.sha256 {
            return Ok(());
        }
        let reason = format!("its SHA-256 is {found} and should be {}", self.sha256);
        Err(damaged(&dir.join(&self.path), reason))
    }

    /// Both checks; reads the whole file.
    pub(crate) fn check_content(
        &self,
        dir: &Path,
        damaged: impl Fn(&Path, String) -> Error,
    ) -> Result<(), Error> {
        self.check_shape(dir, &damaged)?;
        self.check_digest(dir, &digest::of_file(&dir.join(&self.path))?, &damaged)
    }
}

/// An installed model, described by its record (`op-dbus.json`) or, when built in, by the manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// The name that it is served under.
    pub name: String,
    /// The folder that its files lie in; not part of the record.
    #[serde(skip)]
    pub dir: PathBuf,
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
    /// Texts put before an input, by name (`query`, `passage`, …).
    #[serde(default)]
    pub prompts: BTreeMap<String, String>,
    /// The prompt that is used when the caller names none.
    #[serde(default)]
    pub default_prompt: Option<String>,
    /// The sizes that the model was trained to be cut to; empty when it was not.
    #[serde(default)]
    pub matryoshka: Vec<usize>,
    /// The folders of the Dense modules that a pooled vector goes through before it is normalised,
    /// in the order in which they are applied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dense: Vec<String>,
    /// What of its `config.json` the vectors depend on and is not as in most models of its family,
    /// such as `activation relu`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusual: Vec<String>,
    /// The level that it serves, when it is a built-in one.
    #[serde(default)]
    pub level: Option<Level>,
    /// Where the files came from, in words.
    pub source: String,
    /// The canonical repository's revision; empty when the source has none.
    pub revision: String,
    /// Every file that loading needs.
    pub files: Vec<FileRecord>,
}

impl Model {
    /// `model.safetensors`, or `model.onnx` for [`Family::Onnx`].
    #[must_use]
    pub fn weights(&self) -> PathBuf {
        self.dir.join(self.weights_name())
    }

    /// `tokenizer.json`.
    #[must_use]
    pub fn tokenizer(&self) -> PathBuf {
        self.dir.join("tokenizer.json")
    }

    /// `config.json`; a user's own ONNX graph may have none.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    /// `config.json` and `model.safetensors` of each Dense module, in the order in which they are
    /// applied.
    pub fn dense_files(&self) -> impl Iterator<Item = [PathBuf; 2]> + '_ {
        self.dense.iter().map(|folder| dense_paths(folder).map(|path| self.dir.join(path)))
    }

    /// The fingerprint of the vectors, 64 hexadecimal digits, without a precision suffix: two
    /// vectors may be compared exactly when their fingerprints are equal. It covers the digests of
    /// weights and tokenizer, the pooling, the Dense modules, whether vectors are normalised, and what
    /// is unusual in the configuration of an imported model.
    #[must_use]
    pub fn vector_space(&self) -> String {
        let mut text = format!(
            "op-dbus vector space 1\nweights {}\ntokenizer {}\npooling {}\nnormalize {}\n",
            self.digest_of(self.weights_name()),
            self.digest_of("tokenizer.json"),
            self.pooling,
            self.normalize,
        );
        for folder in &self.dense {
            let paths = dense_paths(folder);
            let [config, weights] = paths.each_ref().map(|path| self.digest_of(path));
            text.push_str(&format!("dense {config} {weights}\n"));
        }
        for line in &self.unusual {
            text.push_str(&format!("config {line}\n"));
        }
        digest::of_bytes(text.as_bytes())
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).fold(0, u64::saturating_add)
    }

    /// Checks size, permissions and SHA-256 of every file; reads them all, so it takes about a
    /// second per gigabyte.
    ///
    /// # Errors
    /// [`Error::Corrupt`] names the first damaged file and the command that repairs it,
    /// [`Error::Permission`] the first file that others may write.
    pub fn verify(&self) -> Result<(), Error> {
        for file in &self.files {
            file.check_content(&self.dir, |path, reason| self.corrupt(path, reason))?;
        }
        Ok(())
    }

    /// Reads one of the model's files whole and checks what was read, so that nothing can come
    /// between the check and its use.
    ///
    /// # Errors
    /// As [`Model::verify`], of this file alone; [`Error::Corrupt`] also when the record does not
    /// list it.
    pub fn read(&self, path: &Path) -> Result<Vec<u8>, Error> {
        let listed = self.files.iter().find(|file| self.dir.join(&file.path) == path);
        let file = listed
            .ok_or_else(|| self.corrupt(path, "the model's record does not list it".to_owned()))?;
        let damaged = |path: &Path, reason| self.corrupt(path, reason);
        file.check_shape(&self.dir, damaged)?;
        let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, error))?;
        file.check_digest(&self.dir, &digest::of_bytes(&bytes), damaged)?;
        Ok(bytes)
    }

    /// SHA-256 of one of the model's files, from the record; empty when it is not listed.
    #[must_use]
    pub fn recorded_sha256(&self, path: &Path) -> &str {
        let listed = self.files.iter().find(|file| self.dir.join(&file.path) == path);
        listed.map_or("", |file| file.sha256.as_str())
    }

    /// Checks that every file is there, of the right size, and not writable by others: what
    /// [`Model::verify`] does without reading the contents.
    ///
    /// # Errors
    /// As [`Model::verify`].
    pub fn check_files(&self) -> Result<(), Error> {
        let damaged = |path: &Path, reason| self.corrupt(path, reason);
        self.files.iter().try_for_each(|file| file.check_shape(&self.dir, damaged))
    }

    pub(crate) fn corrupt(&self, path: &Path, reason: String) -> Error {
        corrupt(&self.name, path, reason)
    }

    pub(crate) fn weights_name(&self) -> &'static str {
        match self.family {
            Family::Onnx => "model.onnx",
            Family::Bert | Family::Mpnet | Family::Roberta | Family::Distilbert => {
                "model.safetensors"
            }
        }
    }

    fn digest_of(&self, path: &str) -> &str {
        self.files.iter().find(|f| f.path == path).map_or("", |file| file.sha256.as_str())
    }
}

/// [`Error::Corrupt`] with the command that repairs this model.
pub(crate) fn corrupt(name: &str, path: &Path, reason: String) -> Error {
    let store = path.ancestors().find(|folder| folder.ends_with(name)).and_then(Path::parent);
    let here = store.map(named).unwrap_or_default();
    let fix = match manifest::find(name) {
        Some(model) => format!("op-dbus models pull {}{here}", model.name),
        None => format!(
            "op-dbus models remove {name}{here}` and import it again with `op-dbus models import \
             PATH --name {name}{here}"
        ),
    };
    Error::Corrupt { file: path.to_owned(), reason, fix }
}

/// Whoever may write a file in the folder `dir` of a store decides what the service computes. So nobody may but
/// its owner, and that is root, the store's owner or this process's user.
pub(crate) fn refuse_foreign_writers(
    path: &Path,
    meta: &Metadata,
    dir: &Path,
) -> Result<(), Error> {
    match foreign_writer(path, meta, dir.parent().unwrap_or(dir)) {
        Some((reason, fix)) => Err(Error::Permission { path: path.to_owned(), reason, fix }),
        None => Ok(()),
    }
}
