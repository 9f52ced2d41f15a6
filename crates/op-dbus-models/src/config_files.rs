//! The small files of a model: which keys are read, and which of their values are understood.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::place::Place;
use crate::{Error, Family, Pooling};

const JSON_BYTES_MAX: u64 = 16 << 20;
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// The largest weights that are taken over.
pub(crate) const WEIGHTS_BYTES_MAX: u64 = 20 << 30;
/// Above this a stated limit means "none".
pub(crate) const INPUT_TOKENS_MAX: usize = 1 << 20;

const LENGTHS: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub(crate) const OPTIONAL: &[&str] = &[LENGTHS, PROMPTS, TOKENIZER_CONFIG];

#[derive(Deserialize)]
pub(crate) struct Config {
    pub(crate) model_type: Option<String>,
    hidden_size: Option<usize>,
    /// What DistilBERT calls `hidden_size`.
    dim: Option<usize>,
    pub(crate) vocab_size: Option<usize>,
    pub(crate) max_position_embeddings: Option<usize>,
    pad_token_id: Option<usize>,
    pub(crate) position_embedding_type: Option<String>,
    pub(crate) auto_map: Option<IgnoredAny>,
    #[serde(default)]
    pub(crate) matryoshka_dimensions: Vec<usize>,
}

impl Config {
    /// Numbers in a token's vector.
    pub(crate) fn width(&self) -> Option<usize> {
        match self.model_type.as_deref() {
            Some("distilbert") => self.dim,
            _ => self.hidden_size,
        }
    }
}

#[derive(Deserialize, Default)]
pub(crate) struct Lengths {
    pub(crate) max_seq_length: Option<usize>,
    #[serde(default)]
    pub(crate) do_lower_case: bool,
}

#[derive(Deserialize, Default)]
pub(crate) struct Prompts {
    #[serde(default)]
    pub(crate) prompts: BTreeMap<String, String>,
    pub(crate) default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    pub(crate) normalizer: Option<Value>,
    #[serde(rename = "model")]
    pub(crate) _model: IgnoredAny,
}

#[derive(Deserialize, Default)]
struct TokenizerConfig {
    // Some files state an absurdly large number, which no integer holds.
    pub(crate) model_max_length: Option<f64>,
}

#[derive(Deserialize)]
pub(crate) struct PoolingConfig {
    #[serde(alias = "embedding_dimension")]
    pub(crate) word_embedding_dimension: Option<usize>,
    pub(crate) include_prompt: Option<bool>,
    /// Since version 6 the mode by name; before, one switch a mode.
    pub(crate) pooling_mode: Option<Value>,
    #[serde(flatten)]
    pub(crate) modes: BTreeMap<String, Value>,
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

pub(crate) fn refuse(found: impl Into<String>, supported: impl Into<String>) -> Error {
    Error::unsupported(found, supported)
}

pub(crate) fn read_family(config: &Config) -> Result<Family, Error> {
    const SUPPORTED: &str = "model_type bert, mpnet, roberta, xlm-roberta, camembert or distilbert \
                             (others as an ONNX graph)";
    if config.auto_map.is_some() {
        return Err(refuse("config.json with auto_map, which asks for code of its own", SUPPORTED));
    }
    let family = match config.model_type.as_deref() {
        Some("bert") => Family::Bert,
        Some("mpnet") => Family::Mpnet,
        Some("roberta" | "xlm-roberta" | "camembert") => Family::Roberta,
        Some("distilbert") => Family::Distilbert,
        Some(other) => return Err(refuse(format!("model_type {other}"), SUPPORTED)),
        None => return Err(refuse("config.json without model_type", SUPPORTED)),
    };
    match config.position_embedding_type.as_deref() {
        None | Some("absolute") => Ok(family),
        Some(other) => {
            let found = format!("position_embedding_type {other}");
            Err(refuse(found, "position_embedding_type absolute"))
        }
    }
}

pub(crate) fn require_weights(place: &Place) -> Result<(), Error> {
    let supported = "the weights in one model.safetensors (sentence-transformers writes it with \
                     model.save_pretrained(path, safe_serialization=True))";
    if place.has("adapter_config.json") {
        return Err(refuse("adapter_config.json, an adapter to another model", supported));
    }
    if place.has("model.safetensors") {
        return Ok(());
    }
    let found = ["model.safetensors.index.json", "pytorch_model.bin", "tf_model.h5"];
    match found.into_iter().find(|file| place.has(file)) {
        Some("model.safetensors.index.json") => Err(refuse("weights in several files", supported)),
        Some(file) => Err(refuse(format!("weights in {file} only"), supported)),
        None => Err(lacks(place, "model.safetensors")),
    }
}

pub(crate) fn read_pooling(
    pooling: &PoolingConfig,
    file: &str,
    dimensions: usize,
) -> Result<Pooling, Error> {
    if pooling.word_embedding_dimension.is_some_and(|width| width != dimensions) {
        return Err(refuse(
            format!("{file} with {:?} dimensions", pooling.word_embedding_dimension.unwrap_or(0)),
            format!("the model's own {dimensions}"),
        ));
    }
    if pooling.include_prompt == Some(false) {
        let found = format!("{file} with include_prompt false");
        return Err(refuse(found, "prompts that are pooled with the text"));
    }
    match modes(pooling).as_slice() {
        ["mean" | "mean_tokens"] => Ok(Pooling::Mean),
        ["cls" | "cls_token"] => Ok(Pooling::Cls),
        ["max" | "max_tokens"] => Ok(Pooling::Max),
        [] => Err(refuse(format!("{file} with no pooling mode"), "one of mean, cls and max")),
        others => Err(refuse(
            format!("{file} with the pooling mode {}", others.join(" and ")),
            "one of mean, cls and max",
        )),
    }
}

/// The names of the pooling modes that are on, in either form.
fn modes(pooling: &PoolingConfig) -> Vec<&str> {
    match &pooling.pooling_mode {
        Some(Value::String(mode)) => vec![mode],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).collect(),
        _ => {
            let on = pooling.modes.iter().filter(|(_, value)| **value == Value::Bool(true));
            on.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).collect()
        }
    }
}

/// Reads the lengths, and the tokenizer with them: both decide on the case of letters.
pub(crate) fn read_lengths(place: &mut Place) -> Result<Lengths, Error> {
    if !place.has("tokenizer.json") {
        let old = ["vocab.txt", "tokenizer.model", "sentencepiece.bpe.model", "vocab.json"];
        let found = match old.into_iter().find(|file| place.has(file)) {
            Some(file) => format!("a tokenizer in {file} only"),
            None => "no tokenizer".to_owned(),
        };
        let supported = "tokenizer.json (transformers writes it with \
                         AutoTokenizer.from_pretrained(path).save_pretrained(path))";
        return Err(refuse(found, supported));
    }
    let tokenizer: TokenizerFile = require(place, "tokenizer.json")?;
    let lengths: Lengths = read(place, LENGTHS)?.unwrap_or_default();
    let lowers = tokenizer.normalizer.as_ref().is_some_and(lowers);
    if lengths.do_lower_case && !lowers {
        return Err(refuse(
            format!("{LENGTHS} with do_lower_case, and a tokenizer.json that keeps the case"),
            "a tokenizer.json that itself does all that is done to the text",
        ));
    }
    Ok(lengths)
}

fn lowers(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice);
    normalizer["lowercase"] == Value::Bool(true)
        || normalizer["type"] == "Lowercase"
        || parts.iter().any(lowers)
}

pub(crate) fn read_tokenizer_limit(place: &mut Place) -> Result<Option<usize>, Error> {
    let config: TokenizerConfig = read(place, TOKENIZER_CONFIG)?.unwrap_or_default();
    let limit = config.model_max_length.filter(|limit| *limit >= 1.0);
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
fn positions(config: &Config, family: Family) -> Result<usize, Error> {
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

pub(crate) fn read_prompts(place: &mut Place) -> Result<Prompts, Error> {
    let prompts: Prompts = read(place, PROMPTS)?.unwrap_or_default();
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

pub(crate) fn read<T: DeserializeOwned>(place: &mut Place, file: &str) -> Result<Option<T>, Error> {
    let Some(bytes) = place.read(file, bytes_max(file))? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        refuse(
            format!("{}/{file} cannot be understood ({error})", place.path().display()),
            "valid JSON with the usual keys",
        )
    })
}
