//! The files of the tokenizer. The service reads `tokenizer.json` alone; transformers lets
//! `tokenizer_config.json`, and the defaults of the class that it names, overrule some of that. A
//! model in which they differ would have other tokens here, and is refused.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::Error;
use crate::config_files::{Config, read, refuse, require};
use crate::place::Place;

const FILE: &str = "tokenizer.json";
pub(crate) const SETTINGS: &str = "tokenizer_config.json";

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
    pub(crate) model_max_length: Option<f64>,
    tokenizer_class: Option<String>,
    do_lower_case: Option<bool>,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: Option<bool>,
    add_prefix_space: Option<bool>,
    truncation_side: Option<String>,
    split_special_tokens: Option<bool>,
    #[serde(default)]
    cls_token: Value,
    #[serde(default)]
    sep_token: Value,
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
    let file: TokenizerFile = require(place, FILE)?;
    let told: TokenizerConfig = read(place, SETTINGS)?.unwrap_or_default();
    let config: Option<Config> = read(place, "config.json")?;
    check_pieces(&file, &told, class(&told, config.as_ref()))?;
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

/// The class by which transformers reads the tokenizer.
fn class<'a>(told: &'a TokenizerConfig, config: Option<&'a Config>) -> Option<&'a str> {
    let of_config = || config.and_then(|config| config.tokenizer_class.as_deref());
    let of_type = || match config?.model_type.as_deref()? {
        "bert" | "distilbert" => Some("BertTokenizer"),
        "mpnet" => Some("MPNetTokenizer"),
        "roberta" => Some("RobertaTokenizer"),
        _ => None,
    };
    let class = told.tokenizer_class.as_deref().or_else(of_config).or_else(of_type)?;
    Some(class.strip_suffix("Fast").unwrap_or(class))
}

/// Compares what decides on the tokens with what the class makes of it. Others take `tokenizer.json` as
/// it is.
fn check_pieces(
    file: &TokenizerFile,
    told: &TokenizerConfig,
    class: Option<&str>,
) -> Result<(), Error> {
    let Some(class) = class else { return Ok(()) };
    let (normalizer, splitter) = (&file.normalizer, &file.pre_tokenizer);
    let compared = match class {
        "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" | "MPNetTokenizer" => {
            check_kind(class, "normalizer", normalizer, "BertNormalizer")?;
            check_kind(class, "pre_tokenizer", splitter, "BertPreTokenizer")?;
            let own = |key: &str| normalizer[key].as_bool();
            if own("clean_text") == Some(false) {
                return Err(replaced(class, "clean_text false", "clean_text true"));
            }
            let (lowers, has_lower) = (told.do_lower_case.unwrap_or(true), own("lowercase"));
            let has_lower = has_lower.unwrap_or(true);
            // Accents go with the case, unless something is said of them.
            let (strips, has_strip) = (told.strip_accents, own("strip_accents"));
            vec![
                ("do_lower_case", told.do_lower_case, lowers, "lowercase", has_lower),
                (
                    "strip_accents",
                    strips,
                    strips.unwrap_or(lowers),
                    "strip_accents",
                    has_strip.unwrap_or(has_lower),
                ),
                (
                    "tokenize_chinese_chars",
                    told.tokenize_chinese_chars,
                    told.tokenize_chinese_chars.unwrap_or(true),
                    "handle_chinese_chars",
                    own("handle_chinese_chars").unwrap_or(true),
                ),
            ]
        }
        "RobertaTokenizer" => {
            check_kind(class, "pre_tokenizer", splitter, "ByteLevel")?;
            if !normalizer.is_null() {
                return Err(rebuilt(class, "normalizer", normalizer, "none"));
            }
            let has = splitter["add_prefix_space"].as_bool().unwrap_or(true);
            let wanted = told.add_prefix_space.unwrap_or(false);
            vec![("add_prefix_space", told.add_prefix_space, wanted, "add_prefix_space", has)]
        }
        _ => return Ok(()),
    };
    let placed = around(&file.post_processor).is_some_and(|(before, behind)| {
        is_told(&told.cls_token, before) && is_told(&told.sep_token, behind)
    });
    if !placed {
        let kind = "one with cls_token before a text and sep_token behind it";
        return Err(rebuilt(class, "post_processor", &file.post_processor, kind));
    }
    for (key, stated, wanted, own_key, has) in compared {
        if wanted == has {
            continue;
        }
        let found = match stated {
            Some(_) => format!("{SETTINGS} with {key} {wanted}"),
            None => format!("no {key} in {SETTINGS}, which for a {class} means {wanted}"),
        };
        return Err(refuse(
            format!("{found}, and a {FILE} with {own_key} {has}"),
            format!("a {FILE} with {own_key} {wanted} {ANEW}, or {key} {has} in {SETTINGS}"),
        ));
    }
    Ok(())
}

/// Refuses a part of another kind than the class makes anew, whatever the file has; transformers before
/// version 5 took such a part as it is.
fn check_kind(class: &str, part: &str, found: &Value, kind: &str) -> Result<(), Error> {
    if found["type"] == kind { Ok(()) } else { Err(rebuilt(class, part, found, kind)) }
}

/// The tokens before and behind a text, where there is one of either.
fn around(processor: &Value) -> Option<(&str, &str)> {
    match processor["type"].as_str()? {
        "BertProcessing" | "RobertaProcessing" => {
            Some((processor["cls"][0].as_str()?, processor["sep"][0].as_str()?))
        }
        "TemplateProcessing" => match processor["single"].as_array()?.as_slice() {
            [before, text, behind] if text["Sequence"]["id"] == "A" => Some((
                before["SpecialToken"]["id"].as_str()?,
                behind["SpecialToken"]["id"].as_str()?,
            )),
            _ => None,
        },
        "Sequence" => processor["processors"].as_array()?.iter().find_map(around),
        _ => None,
    }
}

/// Whether a special token of the settings, which may say nothing of it, is this one.
fn is_told(told: &Value, token: &str) -> bool {
    told.as_str().or_else(|| told["content"].as_str()).is_none_or(|told| told == token)
}

fn rebuilt(class: &str, part: &str, found: &Value, kind: &str) -> Error {
    let found = found["type"].as_str().unwrap_or("none");
    replaced(class, &format!("the {part} {found}"), kind)
}

fn replaced(class: &str, found: &str, kind: &str) -> Error {
    refuse(
        format!("a {FILE} with {found}, in place of which a {class} puts {kind}"),
        format!(
            "{kind}, or the tokenizer_class PreTrainedTokenizerFast in {SETTINGS}, which takes it as it is"
        ),
    )
}

fn lowers(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array().map_or(&[][..], Vec::as_slice);
    normalizer["lowercase"] == Value::Bool(true)
        || normalizer["type"] == "Lowercase"
        || parts.iter().any(lowers)
}
