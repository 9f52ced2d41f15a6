//! The files of the tokenizer. The service reads `tokenizer.json` alone; transformers lets
//! `tokenizer_config.json`, and the defaults of the class that it names, overrule some of that. A
//! model in which they differ would have other tokens here, and is refused.

mod added;
mod classes;

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::Error;
use crate::config_files::{Config, read, require};
use crate::error::refuse;
use crate::place::Place;

const FILE: &str = "tokenizer.json";
pub(crate) const SETTINGS: &str = "tokenizer_config.json";
/// Where old versions of transformers keep the special tokens.
const SPECIALS: &str = "special_tokens_map.json";

#[derive(Deserialize)]
struct TokenizerFile {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    truncation: Value,
    model: Vocabulary,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct Vocabulary {
    #[serde(default)]
    vocab: Pieces,
    #[serde(default, rename = "type")]
    kind: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    continuing_subword_prefix: Value,
    #[serde(default)]
    end_of_word_suffix: Value,
    #[serde(default)]
    max_input_chars_per_word: Value,
    #[serde(default)]
    ignore_merges: Value,
    #[serde(default)]
    unk_id: Value,
    #[serde(default)]
    byte_fallback: Value,
}

/// The pieces of a vocabulary by their ids, or in the order of these.
#[derive(Deserialize, Default)]
#[serde(untagged)]
enum Pieces {
    Ids(HashMap<String, usize>),
    Ordered(Vec<(String, IgnoredAny)>),
    #[default]
    None,
}

impl Pieces {
    /// The id of each.
    fn by_piece(&self) -> HashMap<&str, usize> {
        match self {
            Self::Ids(ids) => ids.iter().map(|(piece, id)| (piece.as_str(), *id)).collect(),
            Self::Ordered(pieces) => {
                pieces.iter().enumerate().map(|(id, (piece, _))| (piece.as_str(), id)).collect()
            }
            Self::None => HashMap::new(),
        }
    }
}

#[derive(Deserialize)]
struct AddedToken {
    id: usize,
    #[serde(default)]
    content: String,
}

impl TokenizerFile {
    /// How many ids it has, or would have if all were there up to the largest. Added tokens have an id that is stated,
    /// and that of their piece or, where there is none, the next behind all pieces, which is the one they are given.
    fn ids(&self) -> usize {
        let (own, count, pieces): (_, _, HashSet<&str>) = match &self.model.vocab {
            Pieces::Ids(ids) => {
                let largest = ids.values().max().map_or(0, |id| id.saturating_add(1));
                (largest, ids.len(), ids.keys().map(String::as_str).collect())
            }
            Pieces::Ordered(pieces) => {
                let names = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
                (pieces.len(), pieces.len(), names)
            }
            Pieces::None => (0, 0, HashSet::new()),
        };
        let contents = self.added_tokens.iter().map(|token| token.content.as_str());
        let added: HashSet<&str> =
            contents.filter(|it| !it.is_empty() && !pieces.contains(it)).collect();
        // As many as there are, with gaps between their ids or without.
        let given = if added.is_empty() { 0 } else { count + added.len() };
        self.added_tokens
            .iter()
            .map(|token| token.id.saturating_add(1))
            .fold(own.max(given), usize::max)
    }
}

/// What is read of `tokenizer_config.json`.
#[derive(Deserialize, Default)]
pub(crate) struct TokenizerConfig {
    // Some files state an absurdly large number, which no integer holds.
    model_max_length: Option<f64>,
    /// What old versions call it.
    max_len: Option<f64>,
    tokenizer_class: Option<String>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
    add_prefix_space: Option<bool>,
    truncation_side: Option<String>,
    split_special_tokens: Option<bool>,
    fast_tokenizer_files: Option<Vec<String>>,
    from_slow: Option<bool>,
    added_tokens_decoder: Option<Map<String, Value>>,
    #[serde(default)]
    additional_special_tokens: Value,
    #[serde(default)]
    extra_special_tokens: Value,
    #[serde(default)]
    bos_token: Value,
    #[serde(default)]
    eos_token: Value,
    #[serde(default)]
    cls_token: Value,
    #[serde(default)]
    sep_token: Value,
    #[serde(default)]
    unk_token: Value,
    #[serde(default)]
    pad_token: Value,
    #[serde(default)]
    mask_token: Value,
}

impl TokenizerConfig {
    /// Reads it, with the special tokens that go before its own unless it is known to be newer, as transformers does.
    fn read(place: &mut Place) -> Result<Self, Error> {
        let mut told: Self = read(place, SETTINGS)?.unwrap_or_default();
        if told.added_tokens_decoder.is_none() {
            let old: Self = read(place, SPECIALS)?.unwrap_or_default();
            for (token, old) in [
                (&mut told.bos_token, old.bos_token),
                (&mut told.eos_token, old.eos_token),
                (&mut told.cls_token, old.cls_token),
                (&mut told.sep_token, old.sep_token),
                (&mut told.unk_token, old.unk_token),
            ] {
                if !old.is_null() {
                    *token = old;
                }
            }
        }
        Ok(told)
    }

    /// The longest text, in tokens, where that is said.
    pub(crate) fn length(&self) -> Option<f64> {
        self.model_max_length.or(self.max_len)
    }
}

/// Refuses a tokenizer that is told to do what its `tokenizer.json` does not; returns whether it
/// lowers the case of letters.
pub(crate) fn check(place: &mut Place) -> Result<bool, Error> {
    if !place.has(FILE) {
        let old = ["vocab.txt", "tokenizer.model", "sentencepiece.bpe.model", "vocab.json"];
        let found = match old.into_iter().find(|file| place.has(file)) {
            Some(file) => format!("a tokenizer in {file} only"),
            None => "no tokenizer".to_owned(),
        };
        return Err(refuse(found, format!("{FILE} {ANEW}")));
    }
    let mut file: TokenizerFile = require(place, FILE)?;
    let told = TokenizerConfig::read(place)?;
    check_source(&told)?;
    let config: Option<Config> = read(place, "config.json")?;
    let class = classes::check(&file, &told, config.as_ref())?;
    file.added_tokens.retain(|token| !added::is_unused(class, &token.content));
    added::check(place, &file, &told, class)?;
    check_types(&file.post_processor)?;
    // A text with one of the others would fail, and nothing else tells of them.
    if let Some(rows) = config.and_then(|config| config.vocab_size)
        && file.ids() > rows
    {
        let found = format!("{FILE} with ids of tokens up to {}", file.ids() - 1);
        return Err(refuse(found, format!("ids below {rows}, the vocab_size of config.json")));
    }
    if told.split_special_tokens == Some(true) {
        let supported = "split_special_tokens false, as which they are read in a text";
        return Err(refuse(format!("{SETTINGS} with split_special_tokens true"), supported));
    }
    let own = file.truncation["direction"].as_str();
    let (key, side) = match told.truncation_side.as_deref() {
        Some(told) => (format!("{SETTINGS} with truncation_side"), told),
        None => (format!("{FILE} with the truncation direction"), own.unwrap_or_default()),
    };
    if side.eq_ignore_ascii_case("left") {
        let supported = "truncation at the right (the option `truncate` of a call may be `start`)";
        return Err(refuse(format!("{key} {side}"), supported));
    }
    Ok(lowers(&file.normalizer))
}

const ANEW: &str = "(transformers writes it with \
                    AutoTokenizer.from_pretrained(path).save_pretrained(path))";

/// Refuses what has the tokenizer read from another file.
fn check_source(told: &TokenizerConfig) -> Result<(), Error> {
    let mut files = told.fast_tokenizer_files.iter().flatten();
    let other = match files.find(|file| file.as_str() != FILE) {
        Some(file) => format!("{file} in fast_tokenizer_files"),
        None if told.from_slow == Some(true) => "from_slow true".to_owned(),
        None => return Ok(()),
    };
    let right = format!("the tokenizer of {FILE}, without that");
    Err(refuse(format!("{SETTINGS} with {other}"), right))
}

/// Refuses what gives tokens of a single text another type than the one that all have here.
fn check_types(processor: &Value) -> Result<(), Error> {
    list(processor, "processors").iter().try_for_each(check_types)?;
    let parts = list(processor, "single")
        .iter()
        .flat_map(|part| [&part["Sequence"], &part["SpecialToken"]]);
    match parts.map(|part| &part["type_id"]).find(|id| id.as_u64().is_some_and(|id| id != 0)) {
        None => Ok(()),
        Some(id) => Err(refuse(
            format!("{FILE} with the type_id {id} in its post_processor"),
            "0, for all tokens of a text",
        )),
    }
}

fn lowers(normalizer: &Value) -> bool {
    normalizer["lowercase"] == Value::Bool(true)
        || normalizer["type"] == "Lowercase"
        || list(normalizer, "normalizers").iter().any(lowers)
}

/// What a token is in a text, which is named in either form.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The list under a key, where there is one.
fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}
