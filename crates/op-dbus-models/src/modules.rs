//! The modules of a sentence-transformers model: which there are, in which order, and what a Dense
//! module says of itself.

use std::collections::BTreeSet;

use serde::Deserialize;

use crate::Error;
use crate::config_files::{lacks, read, require};
use crate::error::refuse;
use crate::place::Place;

/// An entry of `modules.json`.
#[derive(Deserialize)]
pub(crate) struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

impl Module {
    /// Its class, with the modules around it only where it is none of sentence-transformers' own.
    fn class(&self) -> &str {
        let ours = self.kind.starts_with("sentence_transformers.");
        self.kind.rsplit('.').next().filter(|_| ours).unwrap_or(&self.kind)
    }
}

/// What follows the Transformer.
pub(crate) struct Modules<'a> {
    /// The folder of the pooling module.
    pub(crate) pooling: &'a str,
    /// The folders of the Dense modules, in the order in which they are applied.
    pub(crate) dense: Vec<&'a str>,
    /// The folder of the normalising module, if one follows.
    pub(crate) normalize: Option<&'a str>,
}

/// Takes the modules apart.
pub(crate) fn read_modules(modules: &[Module]) -> Result<Modules<'_>, Error> {
    let classes: Vec<_> = modules.iter().map(Module::class).collect();
    let (between, normalizes) = match classes.as_slice() {
        ["Transformer", "Pooling", between @ .., "Normalize"] => (between, true),
        ["Transformer", "Pooling", between @ ..] => (between, false),
        _ => (classes.as_slice(), false),
    };
    if !between.iter().all(|class| *class == "Dense") || modules.len() < 2 {
        return Err(refuse(
            format!("modules.json with {}", classes.join(", ")),
            "Transformer, Pooling, any number of Dense and, if wanted, Normalize",
        ));
    }
    let folders: Vec<_> = modules.iter().map(|module| module.path.as_str()).collect();
    let (transformer, folders) = (folders[0], &folders[1..between.len() + 2]);
    if !transformer.is_empty() {
        return Err(refuse(
            format!("modules.json with the Transformer in the folder `{transformer}`"),
            "the Transformer in the model's own folder (sentence-transformers saves it there with \
             model.save_pretrained(path))",
        ));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut known = BTreeSet::new();
    let mut usable =
        |folder| !str::is_empty(folder) && folder.chars().all(plain) && known.insert(folder);
    if !folders.iter().all(|folder| usable(folder)) {
        return Err(refuse(
            format!("modules in the folders `{}`", folders.join("`, `")),
            "each module behind the Transformer in a folder of its own, below the model's",
        ));
    }
    let normalize = modules.last().filter(|_| normalizes).map(|module| module.path.as_str());
    Ok(Modules { pooling: folders[0], dense: folders[1..].to_vec(), normalize })
}

/// The name under which sentence-transformers passes a text's vector from module to module.
const SENTENCE: &str = "sentence_embedding";

/// What is read of a normalising module's `config.json`, which it has since version 6.
#[derive(Deserialize)]
struct NormalizeConfig {
    module_input_name: Option<String>,
    module_output_name: Option<String>,
}

/// Looks at the normalising module in `folder`: whether there is one.
///
/// # Errors
/// One that scales something else than the text's vector.
pub(crate) fn read_normalize(place: &mut Place, folder: Option<&str>) -> Result<bool, Error> {
    let Some(folder) = folder else { return Ok(false) };
    if folder.is_empty() {
        return Ok(true);
    }
    let file = format!("{folder}/config.json");
    let Some(config) = read::<NormalizeConfig>(place, &file)? else { return Ok(true) };
    for (key, name) in [
        ("module_input_name", config.module_input_name),
        ("module_output_name", config.module_output_name),
    ] {
        if let Some(name) = name.filter(|name| name != SENTENCE) {
            return Err(refuse(format!("{file} with {key} {name}"), SENTENCE));
        }
    }
    Ok(true)
}

/// What is read of a Dense module's `config.json`; the rest is looked at by who tries the model.
#[derive(Deserialize)]
struct DenseConfig {
    out_features: usize,
}

/// Looks at the Dense modules in `folders`, the first of which gets vectors of `width` numbers. Returns how many
/// the vectors behind the last have.
pub(crate) fn read_dense(
    place: &mut Place,
    folders: &[&str],
    mut width: usize,
) -> Result<usize, Error> {
    for folder in folders {
        let file = format!("{folder}/config.json");
        width = require::<DenseConfig>(place, &file)?.out_features;
        if width == 0 {
            return Err(refuse(format!("{file} with out_features 0"), "at least 1"));
        }
        require_dense_weights(place, folder)?;
    }
    Ok(width)
}

/// How many numbers a vector has behind the Dense modules in `folders`, whose work a graph has done; nothing where there
/// are none, or the last does not say.
pub(crate) fn dense_outputs(place: &mut Place, folders: &[&str]) -> Result<Option<usize>, Error> {
    let Some(folder) = folders.last() else { return Ok(None) };
    let config: Option<DenseConfig> = read(place, &format!("{folder}/config.json"))?;
    Ok(config.map(|config| config.out_features))
}

fn require_dense_weights(place: &Place, folder: &str) -> Result<(), Error> {
    let (wanted, old) = (format!("{folder}/model.safetensors"), "pytorch_model.bin");
    if place.has(&wanted) {
        return Ok(());
    }
    if place.has(&format!("{folder}/{old}")) {
        return Err(refuse(
            format!("the weights of {folder} in {old} only"),
            "all weights as model.safetensors (sentence-transformers writes it with \
             model.save_pretrained(path, safe_serialization=True))",
        ));
    }
    Err(lacks(place, &wanted))
}
