//! The modules of a sentence-transformers model: which there are, in which order, and what a Dense
//! module says of itself.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;

use crate::Error;
use crate::config_files::{lacks, refuse, require};
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
    /// Whether a normalising module follows.
    pub(crate) normalize: bool,
}

/// Takes the modules apart.
pub(crate) fn read_modules(modules: &[Module]) -> Result<Modules<'_>, Error> {
    let classes: Vec<_> = modules.iter().map(Module::class).collect();
    let (between, normalize) = match classes.as_slice() {
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
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut known = BTreeSet::new();
    let mut usable =
        |folder| !str::is_empty(folder) && folder.chars().all(plain) && known.insert(folder);
    if !transformer.is_empty() || !folders.iter().all(|folder| usable(folder)) {
        return Err(refuse(
            format!("modules in the folders `{transformer}` and `{}`", folders.join("`, `")),
            "the Transformer in the model's own folder and each other module in one of its own \
             below it",
        ));
    }
    Ok(Modules { pooling: folders[0], dense: folders[1..].to_vec(), normalize })
}

/// A Dense module: `activation(x · weightᵀ + bias)` on a text's vector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dense {
    /// Its folder in the model's.
    pub(crate) folder: String,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) bias: bool,
}

/// What is read of a module's `config.json`; what is absent is as its authors assume it.
#[derive(Deserialize)]
struct DenseConfig {
    in_features: usize,
    out_features: usize,
    bias: Option<bool>,
    activation_function: Option<String>,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

/// The classes of `torch.nn` that the compiler knows.
const ACTIVATIONS: [&str; 6] = ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU"];
/// The name of a text's vector on its way from module to module.
const SENTENCE: &str = "sentence_embedding";

/// Reads the Dense modules in `folders`, the first of which gets vectors of `width` numbers.
pub(crate) fn read_dense(
    place: &mut Place,
    folders: &[&str],
    width: usize,
) -> Result<Vec<Dense>, Error> {
    let mut modules: Vec<Dense> = Vec::new();
    for folder in folders {
        let inputs = modules.last().map_or(width, |before| before.outputs);
        let file = format!("{folder}/config.json");
        let config: DenseConfig = require(place, &file)?;
        config.check(&file, inputs)?;
        require_dense_weights(place, folder)?;
        modules.push(Dense {
            folder: (*folder).to_owned(),
            inputs,
            outputs: config.out_features,
            bias: config.bias.unwrap_or(true),
        });
    }
    Ok(modules)
}

impl DenseConfig {
    fn check(&self, file: &str, inputs: usize) -> Result<(), Error> {
        let unfit = |key: &str, value: Value, supported: String| {
            Err(refuse(format!("{file} with {key} {value}"), supported))
        };
        if self.in_features != inputs {
            let supported = format!("{inputs}, the width of the vectors that reach it");
            return unfit("in_features", self.in_features.into(), supported);
        }
        if self.out_features == 0 {
            return unfit("out_features", 0.into(), "at least 1".to_owned());
        }
        if self.use_residual {
            return unfit("use_residual", true.into(), "false".to_owned());
        }
        for (key, name) in [
            ("module_input_name", &self.module_input_name),
            ("module_output_name", &self.module_output_name),
        ] {
            if let Some(name) = name.as_deref().filter(|name| *name != SENTENCE) {
                return unfit(key, name.into(), SENTENCE.to_owned());
            }
        }
        let stated = self.activation_function.as_deref().unwrap_or("torch.nn.Tanh");
        let class = stated.strip_prefix("torch.nn.").and_then(|rest| rest.rsplit('.').next());
        if !class.is_some_and(|class| ACTIVATIONS.contains(&class)) {
            let supported = format!("{} of torch.nn", ACTIVATIONS.join(", "));
            return unfit("activation_function", stated.into(), supported);
        }
        Ok(())
    }
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
