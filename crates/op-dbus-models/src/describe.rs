//! Reading what a model's own files say of it: family, pooling, lengths, prompts. Nothing is
//! guessed; what is not understood is refused with what was found and what is supported.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;

use crate::import::{ImportOptions, OnnxFacts};
use crate::place::Place;
use crate::{Error, Family, Pooling};

const JSON_BYTES_MAX: u64 = 16 << 20;
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// Above this a stated limit means "none".
const INPUT_TOKENS_MAX: usize = 1 << 20;

/// Everything of a model but its weights and its name.
#[derive(Debug)]
pub(crate) struct Description {
    pub family: Family,
    pub pooling: Pooling,
    pub normalize: bool,
    pub dimensions: usize,
    pub max_input_tokens: usize,
    pub prompts: BTreeMap<String, String>,
    pub default_prompt: Option<String>,
    pub matryoshka: Vec<usize>,
    /// Rows of the word embedding; 0 for a graph.
    pub vocabulary: usize,
    /// The files to take over besides the weights.
    pub files: Vec<String>,
}

#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
    hidden_size: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    position_embedding_type: Option<String>,
    auto_map: Option<IgnoredAny>,
    #[serde(default)]
    matryoshka_dimensions: Vec<usize>,
}

#[derive(Deserialize)]
struct Module {
    #[serde(default)]
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize, Default)]
struct Lengths {
    max_seq_length: Option<usize>,
    #[serde(default)]
    do_lower_case: bool,
}

#[derive(Deserialize, Default)]
struct Prompts {
    #[serde(default)]
    prompts: BTreeMap<String, String>,
    default_prompt_name: Option<String>,
}

#[derive(Deserialize)]
struct TokenizerFile {
    normalizer: Option<Value>,
    #[serde(rename = "model")]
    _model: IgnoredAny,
}

#[derive(Deserialize, Default)]
struct TokenizerConfig {
    // Some files state an absurdly large number, which no integer holds.
    model_max_length: Option<f64>,
}

/// The largest size that is read of a file.
pub(crate) fn bytes_max(file: &str) -> u64 {
    if file == "tokenizer.json" { TOKENIZER_BYTES_MAX } else { JSON_BYTES_MAX }
}

/// Describes a sentence-transformers model of the BERT or MPNet family.
pub(crate) fn sentence_transformers(place: &mut Place) -> Result<Description, Error> {
    let modules: Vec<Module> = require(place, "modules.json")?;
    let (pooling_path, normalize) = read_modules(&modules)?;
    let config: Config = require(place, "config.json")?;
    let family = read_family(&config)?;
    require_weights(place)?;
    let (Some(dimensions), Some(vocabulary)) = (config.hidden_size, config.vocab_size) else {
        return Err(refuse("config.json without hidden_size or vocab_size", "both of them"));
    };
    let pooling_file = format!("{pooling_path}/config.json");
    let pooling = read_pooling(&require(place, &pooling_file)?, &pooling_file, dimensions)?;
    let lengths = read_lengths(place)?;
    let positions = positions(&config, family)?;
    let max_input_tokens = match lengths.max_seq_length {
        Some(stated) => stated,
        None => read_tokenizer_limit(place)?.map_or(positions, |limit| limit.min(positions)),
    };
    if max_input_tokens == 0 || max_input_tokens > positions {
        return Err(refuse(
            format!("a max_seq_length of {max_input_tokens}"),
            format!("1 to the {positions} positions that the weights have"),
        ));
    }
    let Prompts { prompts, default_prompt_name } = read_prompts(place)?;
    let mut files = vec!["tokenizer.json".to_owned(), "config.json".to_owned()];
    files.extend(["modules.json".to_owned(), pooling_file]);
    files.extend(OPTIONAL.iter().filter(|file| place.has(file)).map(|&file| file.to_owned()));
    Ok(Description {
        family,
        pooling,
        normalize,
        dimensions,
        max_input_tokens,
        prompts,
        default_prompt: default_prompt_name,
        matryoshka: cuts(config.matryoshka_dimensions, dimensions),
        vocabulary,
        files,
    })
}

const LENGTHS: &str = "sentence_bert_config.json";
const PROMPTS: &str = "config_sentence_transformers.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const OPTIONAL: &[&str] = &[LENGTHS, PROMPTS, TOKENIZER_CONFIG];

/// Describes a user's own graph with the files that lie beside it, of which only `tokenizer.json`
/// must be there.
pub(crate) fn onnx(
    place: &mut Place,
    facts: OnnxFacts,
    options: &ImportOptions<'_>,
) -> Result<Description, Error> {
    if facts.external_data {
        return Err(refuse(
            "an ONNX graph with its weights in other files",
            "a graph with everything in one file",
        ));
    }
    let modules: Option<Vec<Module>> = read(place, "modules.json")?;
    let (path, normalize) = match &modules {
        Some(modules) => read_modules(modules)?,
        None => ("1_Pooling", false),
    };
    let config: Option<Config> = read(place, "config.json")?;
    let pooling_file = format!("{path}/config.json");
    let stated: Option<PoolingConfig> = read(place, &pooling_file)?;
    let width = stated.as_ref().and_then(|pooling| pooling.word_embedding_dimension);
    let width = width.or(config.as_ref().and_then(|config| config.hidden_size));
    let dimensions = facts.dimensions.or(width).filter(|&dimensions| dimensions > 0);
    let Some(dimensions) = dimensions else {
        return Err(refuse(
            "an ONNX graph whose output has no fixed width, and no config.json that states it",
            "either of them",
        ));
    };
    let pooling = match &stated {
        Some(stated) => Some(read_pooling(stated, &pooling_file, dimensions)?),
        // Of a graph that pools by itself, nothing is left to be pooled.
        None => options.pooling.or(facts.pooled.then_some(Pooling::Mean)),
    };
    let Some(pooling) = pooling else {
        return Err(refuse(
            "an ONNX graph that ends in one vector per token, and no 1_Pooling/config.json",
            "a graph that ends in one vector per text, a 1_Pooling folder, or --pooling",
        ));
    };
    let max_input_tokens = graph_limit(place, config.as_ref(), options)?;
    let Prompts { prompts, default_prompt_name } = read_prompts(place)?;
    let mut files = vec!["tokenizer.json".to_owned()];
    let others = ["config.json", "modules.json", pooling_file.as_str()];
    let others = others.iter().chain(OPTIONAL).filter(|file| place.has(file));
    files.extend(others.map(|&file| file.to_owned()));
    Ok(Description {
        family: Family::Onnx,
        pooling,
        normalize,
        dimensions,
        max_input_tokens,
        prompts,
        default_prompt: default_prompt_name,
        matryoshka: config.map_or_else(Vec::new, |c| cuts(c.matryoshka_dimensions, dimensions)),
        vocabulary: 0,
        files,
    })
}

/// The refusal of a place that has no such file.
pub(crate) fn lacks(place: &Place, file: &str) -> Error {
    refuse(format!("{} without {file}", place.path().display()), KINDS)
}

const KINDS: &str = "a sentence-transformers folder or .zip of the BERT or MPNet family (modules.json, \
    config.json, model.safetensors, tokenizer.json), or an ONNX graph with its tokenizer.json";

#[derive(Deserialize)]
struct PoolingConfig {
    word_embedding_dimension: Option<usize>,
    include_prompt: Option<bool>,
    #[serde(flatten)]
    modes: BTreeMap<String, Value>,
}

fn refuse(found: impl Into<String>, supported: impl Into<String>) -> Error {
    Error::unsupported(found, supported)
}

/// The folder of the pooling module, and whether a normalising one follows.
fn read_modules(modules: &[Module]) -> Result<(&str, bool), Error> {
    let kind = |module: &Module| {
        let ours = module.kind.starts_with("sentence_transformers.");
        let name = module.kind.rsplit('.').next().filter(|_| ours);
        name.unwrap_or(&module.kind).to_owned()
    };
    let kinds: Vec<_> = modules.iter().map(kind).collect();
    let kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
    let normalize = match kinds.as_slice() {
        ["Transformer", "Pooling"] => false,
        ["Transformer", "Pooling", "Normalize"] => true,
        _ => {
            return Err(refuse(
                format!("modules.json with {}", kinds.join(", ")),
                "Transformer, Pooling and, if wanted, Normalize",
            ));
        }
    };
    let [transformer, pooling, ..] = modules else {
        return Err(refuse("modules.json with too few modules", "Transformer and Pooling"));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !transformer.path.is_empty() || pooling.path.is_empty() || !pooling.path.chars().all(plain) {
        return Err(refuse(
            format!("modules in the folders `{}` and `{}`", transformer.path, pooling.path),
            "the Transformer in the model's own folder and the Pooling in one below it",
        ));
    }
    Ok((&pooling.path, normalize))
}

fn read_family(config: &Config) -> Result<Family, Error> {
    const SUPPORTED: &str = "model_type bert or mpnet (others as an ONNX graph)";
    if config.auto_map.is_some() {
        return Err(refuse("config.json with auto_map, which asks for code of its own", SUPPORTED));
    }
    let family = match config.model_type.as_deref() {
        Some("bert") => Family::Bert,
        Some("mpnet") => Family::Mpnet,
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

fn require_weights(place: &Place) -> Result<(), Error> {
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

fn read_pooling(pooling: &PoolingConfig, file: &str, dimensions: usize) -> Result<Pooling, Error> {
    let on: Vec<&str> = pooling
        .modes
        .iter()
        .filter(|(name, value)| name.starts_with("pooling_mode_") && **value == Value::Bool(true))
        .map(|(name, _)| name.as_str())
        .collect();
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
    match on.as_slice() {
        ["pooling_mode_mean_tokens"] => Ok(Pooling::Mean),
        ["pooling_mode_cls_token"] => Ok(Pooling::Cls),
        ["pooling_mode_max_tokens"] => Ok(Pooling::Max),
        _ => Err(refuse(
            format!("{file} with {}", if on.is_empty() { "no mode".into() } else { on.join(", ") }),
            "one of pooling_mode_mean_tokens, _cls_token and _max_tokens",
        )),
    }
}

/// Reads the lengths, and the tokenizer with them: both decide on the case of letters.
fn read_lengths(place: &mut Place) -> Result<Lengths, Error> {
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

fn read_tokenizer_limit(place: &mut Place) -> Result<Option<usize>, Error> {
    let config: TokenizerConfig = read(place, TOKENIZER_CONFIG)?.unwrap_or_default();
    let limit = config.model_max_length.filter(|limit| *limit >= 1.0);
    // Within these bounds the conversion is exact.
    Ok(limit.filter(|limit| *limit <= INPUT_TOKENS_MAX as f64).map(|limit| limit as usize))
}

/// The positions that can be used: MPNet counts them from 2.
fn positions(config: &Config, family: Family) -> Result<usize, Error> {
    let positions = config.max_position_embeddings.filter(|&n| n <= INPUT_TOKENS_MAX);
    let unused = if family == Family::Mpnet { 2 } else { 0 };
    positions.and_then(|positions| positions.checked_sub(unused)).filter(|&n| n > 0).ok_or_else(
        || refuse("config.json without a usable max_position_embeddings", "a number of positions"),
    )
}

fn graph_limit(
    place: &mut Place,
    config: Option<&Config>,
    options: &ImportOptions<'_>,
) -> Result<usize, Error> {
    let stated = match (options.max_input_tokens, read_lengths(place)?.max_seq_length) {
        (Some(given), _) => Some(given),
        (None, Some(stated)) => Some(stated),
        (None, None) => match read_tokenizer_limit(place)? {
            Some(limit) => Some(limit),
            None => config
                .filter(|config| config.model_type.as_deref() == Some("bert"))
                .and_then(|config| config.max_position_embeddings),
        },
    };
    stated.filter(|&limit| limit > 0 && limit <= INPUT_TOKENS_MAX).ok_or_else(|| {
        refuse(
            "an ONNX graph and no file that says how many tokens it takes",
            "sentence_bert_config.json, tokenizer_config.json with model_max_length, or \
             --max-input-tokens",
        )
    })
}

fn read_prompts(place: &mut Place) -> Result<Prompts, Error> {
    let prompts: Prompts = read(place, PROMPTS)?.unwrap_or_default();
    match &prompts.default_prompt_name {
        Some(name) if !prompts.prompts.contains_key(name) => Err(refuse(
            format!("{PROMPTS} with the default prompt `{name}`, which is not among its prompts"),
            "a default prompt that is one of them",
        )),
        _ => Ok(prompts),
    }
}

fn cuts(mut stated: Vec<usize>, dimensions: usize) -> Vec<usize> {
    stated.retain(|&cut| cut > 0 && cut < dimensions);
    stated.sort_unstable();
    stated.dedup();
    stated
}

fn require<T: DeserializeOwned>(place: &mut Place, file: &str) -> Result<T, Error> {
    read(place, file)?.ok_or_else(|| lacks(place, file))
}

fn read<T: DeserializeOwned>(place: &mut Place, file: &str) -> Result<Option<T>, Error> {
    let Some(bytes) = place.read(file, bytes_max(file))? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| {
        refuse(
            format!("{}/{file} cannot be understood ({error})", place.path().display()),
            "valid JSON with the usual keys",
        )
    })
}
