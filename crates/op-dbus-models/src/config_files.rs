//! The small files of a model: which keys are read, and which of their values are understood.

use std::collections::BTreeMap;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};

use crate::amount::excess;
use crate::error::refuse;
use crate::place::Place;
use crate::tokenizer::{self, TokenizerConfig};
use crate::{Error, Family, transformer};

const JSON_BYTES_MAX: u64 = 16 << 20;
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// The largest weights that are taken over.
pub(crate) const WEIGHTS_BYTES_MAX: u64 = 20 << 30;
/// Above this a stated limit means "none".
pub(crate) const INPUT_TOKENS_MAX: usize = 1 << 20;

pub(crate) const PROMPTS: &str = "config_sentence_transformers.json";

/// Which of the files that a model need not have are there and are taken over with it.
pub(crate) fn optional(place: &Place) -> impl Iterator<Item = String> {
    let files = [transformer::file(place), PROMPTS, tokenizer::SETTINGS];
    files.into_iter().filter(|file| place.has(file)).map(str::to_owned)
}

#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) model_type: Option<String>,
    hidden_size: Option<usize>,
    /// What DistilBERT calls `hidden_size`.
    dim: Option<usize>,
    pub(crate) vocab_size: Option<usize>,
    pub(crate) max_position_embeddings: Option<usize>,
    pad_token_id: Option<usize>,
    position_embedding_type: Option<String>,
    pub(crate) auto_map: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "null_is_absent")]
    pub(crate) matryoshka_dimensions: Vec<usize>,
    pub(crate) tokenizer_class: Option<String>,
    hidden_act: Option<String>,
    /// What DistilBERT calls `hidden_act`.
    activation: Option<String>,
    num_attention_heads: Option<usize>,
    /// What DistilBERT calls `num_attention_heads`.
    n_heads: Option<usize>,
    num_hidden_layers: Option<usize>,
    /// What DistilBERT calls `num_hidden_layers`.
    n_layers: Option<usize>,
    layer_norm_eps: Option<f32>,
}

impl Config {
    fn family(&self) -> Option<Family> {
        match self.model_type.as_deref()? {
            "bert" => Some(Family::Bert),
            "mpnet" => Some(Family::Mpnet),
            "roberta" | "xlm-roberta" | "camembert" => Some(Family::Roberta),
            "distilbert" => Some(Family::Distilbert),
            _ => None,
        }
    }

    /// The family whose table of positions the model has, where the size of that table is stated.
    pub(crate) fn with_table(&self) -> Option<Family> {
        let is_plain = self.auto_map.is_none()
            && matches!(self.position_embedding_type.as_deref(), None | Some("absolute"));
        self.family().filter(|_| is_plain && self.max_position_embeddings.is_some())
    }

    /// Of two keys for the same the one that the model's family has.
    fn own<'a, T>(&self, distilbert: &'a T, others: &'a T) -> &'a T {
        match self.model_type.as_deref() {
            Some("distilbert") => distilbert,
            _ => others,
        }
    }

    /// Numbers in a token's vector.
    pub(crate) fn width(&self) -> Option<usize> {
        *self.own(&self.dim, &self.hidden_size)
    }

    /// Blocks, one after another.
    pub(crate) fn layers(&self) -> Option<usize> {
        *self.own(&self.n_layers, &self.num_hidden_layers)
    }

    fn heads(&self) -> Option<usize> {
        *self.own(&self.n_heads, &self.num_attention_heads)
    }

    /// The activation, under the first of its names: some are one function under two.
    fn activation(&self) -> &str {
        match self.own(&self.activation, &self.hidden_act).as_deref() {
            None | Some("gelu_python") => "gelu",
            Some("gelu_pytorch_tanh") => "gelu_new",
            Some(other) => other,
        }
    }

    /// What the vectors depend on beside the weights, where it is not as the most models of the family
    /// have it.
    pub(crate) fn unusual(&self, family: Family) -> Vec<String> {
        let activation = self.activation();
        let epsilon = match family {
            Family::Bert => Some(1e-12),
            Family::Mpnet | Family::Roberta => Some(1e-5),
            Family::Distilbert | Family::Onnx => None,
        };
        let stated = self.layer_norm_eps.unwrap_or(EPSILON);
        let first = self.pad_token_id.filter(|&pad| family == Family::Roberta && pad != 1);
        let lines = [
            (activation != "gelu").then(|| format!("activation {activation}")),
            epsilon.filter(|usual| *usual != stated).map(|_| format!("epsilon {stated:e}")),
            self.heads().filter(|&heads| heads != 12).map(|heads| format!("heads {heads}")),
            first.map(|pad| format!("padding {pad}")),
        ];
        lines.into_iter().flatten().collect()
    }
}

/// The epsilon of a `config.json` that states none.
const EPSILON: f32 = 1e-12;

#[derive(Deserialize, Default)]
pub(crate) struct Prompts {
    #[serde(default, deserialize_with = "null_is_absent")]
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt_name: Option<String>,
    /// How sentence-transformers compares two vectors.
    pub(crate) similarity_fn_name: Option<String>,
    truncate_dim: Option<usize>,
}

/// The largest size that is read of a file.
pub(crate) fn bytes_max(file: &str) -> u64 {
    match file.rsplit('/').next() {
        Some("tokenizer.json") => TOKENIZER_BYTES_MAX,
        Some("model.safetensors") => WEIGHTS_BYTES_MAX,
        _ => JSON_BYTES_MAX,
    }
}

/// The refusal of a place that has no such file.
pub(crate) fn lacks(place: &Place, file: &str) -> Error {
    refuse(format!("{} without {file}", place.path().display()), KINDS)
}

const KINDS: &str = "a sentence-transformers folder or .zip of the BERT, MPNet, RoBERTa or \
    DistilBERT family (modules.json, config.json, model.safetensors, tokenizer.json), or an ONNX \
    graph with its tokenizer.json";

pub(crate) fn read_family(config: &Config) -> Result<Family, Error> {
    const SUPPORTED: &str = "model_type bert, mpnet, roberta, xlm-roberta, camembert or distilbert \
                             (others as an ONNX graph)";
    if config.auto_map.is_some() {
        return Err(refuse("config.json with auto_map, which asks for code of its own", SUPPORTED));
    }
    match (config.family(), &config.model_type) {
        (Some(family), _) => Ok(family),
        (None, Some(other)) => Err(refuse(format!("model_type {other}"), SUPPORTED)),
        (None, None) => Err(refuse("config.json without model_type", SUPPORTED)),
    }
}

/// Files that tell of weights which are not read, and where these are. An index lists several files, as transformers
/// saves what is larger than any model of these families.
const OTHER_WEIGHTS: [(&str, &str); 4] = [
    ("model.safetensors.index.json", "several files (model.safetensors.index.json)"),
    ("pytorch_model.bin", "pytorch_model.bin only"),
    ("pytorch_model.bin.index.json", "several files (pytorch_model.bin.index.json)"),
    ("tf_model.h5", "tf_model.h5 only"),
];

/// The refusal of a graph that was taken because there is no `model.safetensors`: where the folder has a model of a
/// family in other files, with what makes one of them.
pub(crate) fn with_weights(place: &mut Place, graph: Error) -> Error {
    let is_refusal = matches!(graph, Error::Hook { .. } | Error::Unsupported { .. });
    let config: Option<Config> = read(place, "config.json").ok().flatten();
    let is_of_family = config.is_some_and(|config| read_family(&config).is_ok());
    let has_others = OTHER_WEIGHTS.iter().any(|(file, _)| place.has(file));
    let is_whole = place.has("modules.json") && has_others;
    match require_weights(place) {
        Err(Error::Unsupported { found, supported }) if is_refusal && is_of_family && is_whole => {
            let beside = format!("{found}, and beside them a graph that can't be taken ({graph})");
            refuse(beside, supported)
        }
        _ => graph,
    }
}

pub(crate) fn require_weights(place: &Place) -> Result<(), Error> {
    let supported = "the weights as model.safetensors (sentence-transformers writes it with \
                     model.save_pretrained(path, safe_serialization=True))";
    if place.has("adapter_config.json") {
        return Err(refuse("adapter_config.json, an adapter to another model", supported));
    }
    if place.has("model.safetensors") {
        return Ok(());
    }
    match OTHER_WEIGHTS.into_iter().find(|(file, _)| place.has(file)) {
        Some((_, whereabouts)) => Err(refuse(format!("weights in {whereabouts}"), supported)),
        None => Err(lacks(place, "model.safetensors")),
    }
}

pub(crate) fn read_tokenizer_limit(place: &mut Place) -> Result<Option<usize>, Error> {
    let config: TokenizerConfig = read(place, tokenizer::SETTINGS)?.unwrap_or_default();
    let limit = config.length().filter(|limit| *limit >= 1.0);
    // Within these bounds the conversion is exact.
    Ok(limit.filter(|limit| *limit <= INPUT_TOKENS_MAX as f64).map(|limit| limit as usize))
}

/// The longest text, in tokens: what is stated, or what tokenizer and position table allow.
pub(crate) fn input_tokens(
    place: &mut Place,
    config: &Config,
    family: Family,
    stated: Option<usize>,
) -> Result<usize, Error> {
    let positions = positions(config, family)?;
    let limit = match stated {
        // Where a family leaves rows of its table unused, sentence-transformers states all of them
        // by itself; longer texts than the positions fail there.
        Some(stated) if Some(stated) == config.max_position_embeddings => positions,
        Some(stated) => stated,
        None => read_tokenizer_limit(place)?.map_or(positions, |limit| limit.min(positions)),
    };
    if limit == 0 || limit > positions {
        return Err(refuse(
            format!("a max_seq_length of {limit}"),
            format!("1 to the {positions} positions that the weights have"),
        ));
    }
    Ok(limit)
}

/// The positions that can be used: MPNet counts them from 2, RoBERTa from one behind the number of
/// its padding token.
pub(crate) fn positions(config: &Config, family: Family) -> Result<usize, Error> {
    let positions = config.max_position_embeddings.filter(|&n| n <= INPUT_TOKENS_MAX);
    let unused = match family {
        Family::Mpnet => 2,
        Family::Roberta => config.pad_token_id.unwrap_or(1).saturating_add(1),
        Family::Bert | Family::Distilbert | Family::Onnx => 0,
    };
    positions.and_then(|positions| positions.checked_sub(unused)).filter(|&n| n > 0).ok_or_else(
        || refuse("config.json without a usable max_position_embeddings", "a number of positions"),
    )
}

/// The prompts of a model with so many dimensions, where the file `unprompted`, if there is one, says that their tokens
/// are not pooled.
pub(crate) fn read_prompts(
    place: &mut Place,
    dimensions: usize,
    unprompted: Option<&str>,
) -> Result<Prompts, Error> {
    let prompts: Prompts = read(place, PROMPTS)?.unwrap_or_default();
    if let Some(file) = unprompted.filter(|_| prompts.prompts.values().any(|it| !it.is_empty())) {
        return Err(refuse(
            format!("{file} with include_prompt false, and prompts in {PROMPTS}"),
            "prompts that are pooled with the text, or none",
        ));
    }
    if let Some(cut) = prompts.truncate_dim.filter(|&cut| cut < dimensions) {
        return Err(refuse(
            format!("{PROMPTS} with truncate_dim {cut}"),
            format!(
                "the model's own {dimensions} dimensions, without truncate_dim (where config.json \
                 lists matryoshka_dimensions, a call cuts vectors by its option `dimensions`)"
            ),
        ));
    }
    if prompts.prompts.keys().any(|name| name.contains('\0')) {
        return Err(refuse(
            format!("{PROMPTS} with the character U+0000 in the name of a prompt"),
            "names that D-Bus can carry",
        ));
    }
    if prompts.prompts.contains_key("") {
        return Err(refuse(
            format!(
                "{PROMPTS} with a prompt whose name is empty, which is how a call asks for none"
            ),
            "prompts with a name",
        ));
    }
    match &prompts.default_prompt_name {
        Some(name) if !prompts.prompts.contains_key(name) => Err(refuse(
            format!("{PROMPTS} with the default prompt `{name}`, which is not among its prompts"),
            "a default prompt that is one of them",
        )),
        _ => Ok(prompts),
    }
}

pub(crate) fn cuts(mut stated: Vec<usize>, dimensions: usize) -> Vec<usize> {
    stated.retain(|&cut| cut > 0 && cut < dimensions);
    stated.sort_unstable();
    stated.dedup();
    stated
}

pub(crate) fn require<T: DeserializeOwned>(place: &mut Place, file: &str) -> Result<T, Error> {
    read(place, file)?.ok_or_else(|| lacks(place, file))
}

/// Some programs write `null` for what others leave out.
fn null_is_absent<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    value: D,
) -> Result<T, D::Error> {
    Option::deserialize(value).map(Option::unwrap_or_default)
}

/// The content of a JSON file; nothing when it is not there.
pub(crate) fn read<T: DeserializeOwned>(place: &mut Place, file: &str) -> Result<Option<T>, Error> {
    let Some(bytes) = place.read(file, bytes_max(file))? else { return Ok(None) };
    let shown = format!("{}/{file}", place.path().display());
    check_amount(&bytes, &shown)?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        let found = format!("{shown} cannot be understood ({error})");
        refuse(found, "valid JSON with the usual keys")
    })
}

/// Refuses a JSON text, called `shown`, that would take gigabytes to be parsed.
pub(crate) fn check_amount(json: &[u8], shown: &str) -> Result<(), Error> {
    let Some((found, most)) = excess(json) else { return Ok(()) };
    Err(refuse(format!("{shown} with {found}"), format!("at most {most}, as in any model")))
}
