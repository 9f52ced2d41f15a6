//! The files of the tokenizer. The service reads `tokenizer.json` alone; transformers lets
//! `tokenizer_config.json`, and the defaults of the class that it names, overrule some of that. A
//! model in which they differ would have other tokens here, and is refused.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

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
    added_tokens_decoder: Option<IgnoredAny>,
    #[serde(default)]
    cls_token: Value,
    #[serde(default)]
    sep_token: Value,
    #[serde(default)]
    unk_token: Value,
}

impl TokenizerConfig {
    /// Reads it, with the special tokens that go before its own unless it is known to be newer, as transformers does.
    fn read(place: &mut Place) -> Result<Self, Error> {
        let mut told: Self = read(place, SETTINGS)?.unwrap_or_default();
        if told.added_tokens_decoder.is_none() {
            let old: Self = read(place, SPECIALS)?.unwrap_or_default();
            for (token, old) in [
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
    let file: TokenizerFile = require(place, FILE)?;
    let told = TokenizerConfig::read(place)?;
    let config: Option<Config> = read(place, "config.json")?;
    check_pieces(&file, &told, class(&told, config.as_ref()))?;
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

/// A switch of the settings, whether it is stated, and what the class does by it; its name in the file, and what is
/// done by that.
type Switch = (&'static str, Option<bool>, bool, &'static str, bool);

/// Compares what decides on the tokens with what the class makes of it. Others take `tokenizer.json` as
/// it is.
fn check_pieces(
    file: &TokenizerFile,
    told: &TokenizerConfig,
    class: Option<&str>,
) -> Result<(), Error> {
    let Some(class) = class else { return Ok(()) };
    let switches = match class {
        "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" | "MPNetTokenizer" => {
            word_piece_switches(class, file, told)?
        }
        "RobertaTokenizer" => byte_switches(class, file, told)?,
        _ => return Ok(()),
    };
    check_model(class, &file.model, stated(&told.unk_token, "[UNK]"))?;
    let (cls, sep) = match class {
        "MPNetTokenizer" | "RobertaTokenizer" => ("<s>", "</s>"),
        _ => ("[CLS]", "[SEP]"),
    };
    let (cls, sep) = (stated(&told.cls_token, cls), stated(&told.sep_token, sep));
    if around(&file.post_processor) != Some((cls, sep)) {
        let kind = format!("one with cls_token {cls} before a text and sep_token {sep} behind it");
        return Err(rebuilt(class, "post_processor", &file.post_processor, &kind));
    }
    for (key, stated, wanted, own_key, has) in switches {
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

/// What is compared of BERT's tokenizers.
fn word_piece_switches(
    class: &str,
    file: &TokenizerFile,
    told: &TokenizerConfig,
) -> Result<Vec<Switch>, Error> {
    let normalizer = &file.normalizer;
    check_kind(class, "normalizer", normalizer, "BertNormalizer")?;
    check_kind(class, "pre_tokenizer", &file.pre_tokenizer, "BertPreTokenizer")?;
    let own = |key: &str| normalizer[key].as_bool();
    if own("clean_text") == Some(false) {
        return Err(replaced(class, "clean_text false", "clean_text true"));
    }
    let lowers = told.do_lower_case.unwrap_or(true);
    let has_lower = own("lowercase").unwrap_or(true);
    // Accents go with the case, unless something is said of them.
    let strips = told.strip_accents.unwrap_or(lowers);
    let has_strip = own("strip_accents").unwrap_or(has_lower);
    let chinese = told.tokenize_chinese_chars;
    let has_chinese = own("handle_chinese_chars").unwrap_or(true);
    Ok(vec![
        ("do_lower_case", told.do_lower_case, lowers, "lowercase", has_lower),
        ("strip_accents", told.strip_accents, strips, "strip_accents", has_strip),
        (
            "tokenize_chinese_chars",
            chinese,
            chinese.unwrap_or(true),
            "handle_chinese_chars",
            has_chinese,
        ),
    ])
}

/// What is compared of RoBERTa's.
fn byte_switches(
    class: &str,
    file: &TokenizerFile,
    told: &TokenizerConfig,
) -> Result<Vec<Switch>, Error> {
    let (normalizer, splitter) = (&file.normalizer, &file.pre_tokenizer);
    check_kind(class, "pre_tokenizer", splitter, "ByteLevel")?;
    if !normalizer.is_null() {
        return Err(rebuilt(class, "normalizer", normalizer, "none"));
    }
    if splitter["use_regex"] == false {
        return Err(replaced(class, "use_regex false", "use_regex true"));
    }
    let has = splitter["add_prefix_space"].as_bool().unwrap_or(true);
    let wanted = told.add_prefix_space.unwrap_or(false);
    Ok(vec![("add_prefix_space", told.add_prefix_space, wanted, "add_prefix_space", has)])
}

/// Compares what makes pieces of words: of that these classes take from the file no more than the pieces and their
/// merges, since version 5.
fn check_model(class: &str, model: &Vocabulary, unknown: &str) -> Result<(), Error> {
    let (kind, prefix) = (&model.kind, &model.continuing_subword_prefix);
    let parts = match class {
        "RobertaTokenizer" => [
            ("type", kind, json!("BPE")),
            ("continuing_subword_prefix", prefix, json!("")),
            ("end_of_word_suffix", &model.end_of_word_suffix, json!("")),
            ("ignore_merges", &model.ignore_merges, json!(false)),
        ],
        _ => [
            ("type", kind, json!("WordPiece")),
            ("continuing_subword_prefix", prefix, json!("##")),
            ("unk_token", &model.unk_token, json!(unknown)),
            ("max_input_chars_per_word", &model.max_input_chars_per_word, json!(100)),
        ],
    };
    match parts.into_iter().find(|(_, found, anew)| !found.is_null() && *found != anew) {
        None => Ok(()),
        Some((key, found, anew)) => {
            Err(replaced(class, &format!("the {key} {found} in its model"), &anew.to_string()))
        }
    }
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

/// A special token of the settings, or the class's own where they say nothing of it.
fn stated<'a>(told: &'a Value, own: &'a str) -> &'a str {
    told.as_str().or_else(|| told["content"].as_str()).unwrap_or(own)
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
    normalizer["lowercase"] == Value::Bool(true)
        || normalizer["type"] == "Lowercase"
        || list(normalizer, "normalizers").iter().any(lowers)
}

/// The list under a key, where there is one.
fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().map_or(&[], Vec::as_slice)
}
