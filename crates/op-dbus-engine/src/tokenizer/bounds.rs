//! What a tokenizer file may ask for. A text costs a tokenizer as much as its file says: one that
//! writes a megabyte for each letter, or looks every beginning of a long word up, would take the
//! service's memory or its threads with a text of a kilobyte. Such a file is refused when it is read.

mod added;
// Counted in the same way when a model is imported.
#[path = "../../../op-dbus-models/src/amount.rs"]
mod amount;
mod expressions;
mod steps;

use added::Added;
use amount::excess;
pub(super) use steps::Growth;

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper};

use super::TokenizerError;

/// Letters of a word that WordPiece splits: as many as models have. It takes their square of steps.
const WORD_LETTERS_MAX: u64 = 100;
/// Bytes of one piece of a Unigram vocabulary, beginnings of which are looked up at each letter.
const PIECE_BYTES_MAX: usize = 256;
/// Bytes of what any vocabulary puts in place of a word or beside a letter, perhaps for each letter of a text. Models
/// have some ten.
const AFFIX_BYTES_MAX: usize = 32;
/// Nodes of the tree that a Unigram vocabulary becomes, of some 350 bytes each. XLM-R's has less than a million.
const NODES_MAX: usize = 2 << 20;
/// Bytes of all pieces of a Unigram vocabulary that one text may begin with, each of which is copied where it does.
/// All runs of up to 63 of one letter of ASCII have that many, and up to 36 of one with three bytes; models have them
/// up to 32.
const BEGINNINGS_BYTES_MAX: usize = 2 << 10;
/// Bytes of a text as its normalizer leaves it, or one of the steps of that: each takes its time until the text has
/// its tokens. The longest text that is taken has a third of that, and BERT's makes three bytes of one at most.
const NORMALIZED_BYTES_MAX: usize = 3 << 20;
/// The same where the vocabulary is Unigram, which takes longer. Models of that kind have no more anyhow, as their
/// `Metaspace` counts as four.
const UNIGRAM_BYTES_MAX: usize = 2 << 20;
/// Bytes of a text as normalizer and pre-tokenizer leave it, each of which takes some 40 bytes of memory until the
/// text has its tokens.
const PRE_TOKENIZED_BYTES_MAX: usize = 8 << 20;
/// The same where an expression may look at all of it for each of its letters, which takes up to some seconds for as
/// many.
const FAR_BYTES_MAX: usize = 8 << 10;
/// A text is measured in pieces of this size, so that measuring takes no memory.
const MEASURED_BYTES: usize = 1 << 10;

/// What of a `tokenizer.json` decides about what it costs.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default, borrow)]
    added_tokens: Vec<Added<'a>>,
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
    #[serde(default)]
    unk_token: Option<Value>,
    #[serde(default)]
    continuing_subword_prefix: Option<Value>,
    #[serde(default)]
    end_of_word_suffix: Option<Value>,
    #[serde(default, borrow)]
    vocab: Option<&'a RawValue>,
}

/// A piece of a Unigram vocabulary, borrowed unless it has escapes, and its score.
#[derive(Deserialize)]
struct Piece<'a>(#[serde(borrow)] Cow<'a, str>, IgnoredAny);

/// Refuses a file whose texts could cost more than those of any real model, or have another vector
/// each time. Returns what it may make of one byte.
pub(super) fn check(json: &[u8]) -> Result<Growth, TokenizerError> {
    if let Some((found, most)) = excess(json) {
        return Err(TokenizerError::Unsupported(format!(
            "it asks for {found}, and no model needs more than {most}"
        )));
    }
    let file: File<'_> = serde_json::from_slice(json).map_err(damaged)?;
    let mut growth = steps::check(&file.normalizer, [&file.pre_tokenizer, &file.decoder])?;
    let pieces = pieces(file.model.vocab)?;
    check_model(&file.model, &pieces)?;
    if !pieces.is_empty() {
        growth.normalized_max = growth.normalized_max.min(UNIGRAM_BYTES_MAX);
    }
    let (nodes, beginnings) = tree(pieces);
    at_most(nodes, NODES_MAX, "nodes in the tree of its vocabulary")?;
    at_most(beginnings, BEGINNINGS_BYTES_MAX, "bytes of pieces that begin with each other")?;
    added::check(&file.added_tokens, file.normalizer)?;
    Ok(growth)
}

fn check_model(model: &Model<'_>, pieces: &[Piece<'_>]) -> Result<(), TokenizerError> {
    for (name, text) in [
        ("unk_token", &model.unk_token),
        ("continuing_subword_prefix", &model.continuing_subword_prefix),
        ("end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        let bytes = text.as_ref().and_then(Value::as_str).map_or(0, str::len);
        at_most(bytes, AFFIX_BYTES_MAX, &format!("bytes of {name}"))?;
    }
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(TokenizerError::Unsupported(format!(
            "it leaves out merges by chance (dropout {dropout}), so that a text would have another \
             vector each time; set dropout to null in its tokenizer.json"
        )));
    }
    let letters = model.max_input_chars_per_word.unwrap_or_default();
    at_most(letters, WORD_LETTERS_MAX, "letters a word (max_input_chars_per_word)")?;
    let longest = pieces.iter().map(|piece| piece.0.len()).max().unwrap_or_default();
    at_most(longest, PIECE_BYTES_MAX, "bytes in one piece of its vocabulary")
}

/// Refuses a text that `normalizer` blows up, which may do so by `growth`; says so in words.
pub(super) fn check_text(
    normalizer: Option<&NormalizerWrapper>,
    growth: Growth,
    text: &str,
) -> Result<(), String> {
    if growth.looks_far {
        // Not measured, which would take as long.
        let most = FAR_BYTES_MAX / growth.normalizer.saturating_mul(growth.pre_tokenizer).max(1);
        if text.len() > most {
            return Err(format!(
                "its {} bytes are more than {most}, and an expression in this model's tokenizer.json may look at \
                 all of them for each letter; send less of it at a time",
                text.len()
            ));
        }
    }
    let most = growth.normalized_max;
    if !grows_beyond(normalizer, growth, text, most)? {
        return Ok(());
    }
    Err(format!(
        "its {} bytes become more than {most} by this model's normalizer, or by a step of it; send \
         less of it at a time",
        text.len()
    ))
}

/// Whether `normalizer`, which may make so much of a text, or a step of it makes more than `most` bytes of this one.
pub(super) fn grows_beyond(
    normalizer: Option<&NormalizerWrapper>,
    growth: Growth,
    mut text: &str,
    most: usize,
) -> Result<bool, String> {
    if text.len().saturating_mul(growth.normalizer) <= most {
        return Ok(false);
    }
    let mut bytes = 0;
    while !text.is_empty() {
        let (part, rest) = text.split_at(text.floor_char_boundary(MEASURED_BYTES));
        bytes += match normalizer {
            Some(normalizer) => {
                let mut part = NormalizedString::from(part);
                normalize(normalizer, &mut part).map_err(|error| error.to_string())?
            }
            None => part.len(),
        };
        if !rest.is_empty() {
            bytes += growth.across;
        }
        if bytes > most {
            return Ok(true);
        }
        text = rest;
    }
    Ok(false)
}

/// Normalizes a text, and returns the most bytes that it had behind any step.
fn normalize(
    normalizer: &NormalizerWrapper,
    text: &mut NormalizedString,
) -> Result<usize, TokenizerError> {
    if let NormalizerWrapper::Sequence(steps) = normalizer {
        // What one of them writes another may take away again.
        return steps
            .as_ref()
            .iter()
            .try_fold(text.len(), |most, step| Ok(normalize(step, text)?.max(most)));
    }
    normalizer.normalize(text).map_err(TokenizerError::Damaged)?;
    Ok(text.len())
}

fn damaged(error: serde_json::Error) -> TokenizerError {
    TokenizerError::Damaged(error.into())
}

fn at_most<T: PartialOrd + fmt::Display>(
    found: T,
    limit: T,
    of_what: &str,
) -> Result<(), TokenizerError> {
    if found <= limit {
        return Ok(());
    }
    Err(TokenizerError::Unsupported(format!(
        "it asks for {found} {of_what}, and no model needs more than {limit}"
    )))
}

/// The pieces of a Unigram vocabulary, which is a list; none of any other, which is a map.
fn pieces(vocab: Option<&RawValue>) -> Result<Vec<Piece<'_>>, TokenizerError> {
    let list = vocab.map(RawValue::get).filter(|json| json.starts_with('['));
    list.map_or(Ok(Vec::new()), |json| serde_json::from_str(json).map_err(damaged))
}

/// Nodes of the tree in which pieces share their beginnings, byte by byte; and the bytes of all that lie on one
/// way through it, at most.
fn tree(mut pieces: Vec<Piece<'_>>) -> (usize, usize) {
    pieces.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let (mut nodes, mut most, mut bytes) = (0, 0, 0);
    // The piece before, and those that it begins with.
    let mut way: Vec<&str> = Vec::new();
    let mut before: &[u8] = b"";
    for Piece(piece, _) in &pieces {
        let shared = std::iter::zip(before, piece.as_bytes()).take_while(|(a, b)| a == b).count();
        nodes += piece.len() - shared;
        before = piece.as_bytes();
        while let Some(last) = way.pop_if(|last| !piece.starts_with(*last)) {
            bytes -= last.len();
        }
        way.push(piece);
        bytes += piece.len();
        most = most.max(bytes);
    }
    (nodes, most)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::amount::{OBJECTS_MAX, VALUES_MAX};
    use super::*;
    use crate::tokenizer::Tokenizer;

    /// A tokenizer of a few words, with these parts.
    pub(super) fn file(normalizer: &Value, model: &Value) -> Vec<u8> {
        let words = json!({"type": "WordLevel", "vocab": {"x": 0, "a": 1}, "unk_token": "x"});
        let model = if model.is_null() { &words } else { model };
        serde_json::to_vec(&json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": normalizer, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
            "decoder": null, "model": model,
        }))
        .unwrap()
    }

    #[track_caller]
    pub(super) fn refused(file: &[u8], why: &str) {
        match Tokenizer::from_bytes(file, 8) {
            Err(TokenizerError::Unsupported(message)) => {
                assert!(message.contains(why), "{message}")
            }
            other => panic!("{:?}", other.map(drop)),
        }
    }

    #[test]
    fn a_file_of_too_many_values_is_refused_before_it_is_parsed() {
        let empty = "[],".repeat(VALUES_MAX / 2) + "[]";
        let file = format!(r#"{{"normalizer": {{"type": "Lowercase", "x": [{empty}]}}"#);
        refused(file.as_bytes(), "JSON values");
        let objects = "{},".repeat(OBJECTS_MAX) + "{}";
        let file = format!(r#"{{"normalizer": {{"type": "Lowercase", "x": [{objects}]}}"#);
        refused(file.as_bytes(), "JSON objects");
    }

    #[test]
    fn a_text_that_the_normalizer_blows_up_is_refused() {
        let grows =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(200)});
        let tokenizer = Tokenizer::from_bytes(&file(&grows, &Value::Null), 8).unwrap();
        let text = |letter: &str| letter.repeat(NORMALIZED_BYTES_MAX / 100);
        let refusal = tokenizer.count(&text("a")).map_err(|error| format!("{error:?}"));
        let refusal = refusal.unwrap_err();
        assert!(refusal.contains("its 31457 bytes become more than 3145728"), "{refusal}");
        // One that could be blown up and is not has its tokens.
        assert_eq!(tokenizer.count(&text("é")).unwrap(), 1);
        // A Unigram vocabulary takes longer for each byte.
        let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["x", -1.0], ["b", -1.0]]});
        let tokenizer = Tokenizer::from_bytes(&file(&grows, &unigram), 8).unwrap();
        let refusal = tokenizer.count(&text("a")).map_err(|error| format!("{error:?}"));
        assert!(refusal.unwrap_err().contains("become more than 2097152"));
        // What is written and taken away again was there.
        let gone = json!({"type": "Replace", "pattern": {"String": "b"}, "content": ""});
        let both = json!({"type": "Sequence", "normalizers": [grows, gone]});
        let tokenizer = Tokenizer::from_bytes(&file(&both, &Value::Null), 8).unwrap();
        let refusal = tokenizer.count(&text("a")).map_err(|error| format!("{error:?}"));
        assert!(refusal.unwrap_err().contains("become more than 3145728"));
        // A pattern that no piece that is measured has the whole of.
        let long = json!({"type": "Replace", "pattern": {"String": "a".repeat(MEASURED_BYTES + 1)},
            "content": "b".repeat(200 * MEASURED_BYTES)});
        let tokenizer = Tokenizer::from_bytes(&file(&long, &Value::Null), 8).unwrap();
        let refusal = tokenizer.count(&text("a")).map_err(|error| format!("{error:?}"));
        assert!(refusal.unwrap_err().contains("become more than 3145728"));
    }

    #[test]
    fn a_text_that_is_looked_at_for_each_letter_is_short() {
        let far = |expression: &str| json!({"type": "Replace", "pattern": {"Regex": expression}, "content": ""});
        let tokenizer = Tokenizer::from_bytes(&file(&far("a*b|a"), &Value::Null), 8).unwrap();
        let refusal = tokenizer.count(&"a".repeat(FAR_BYTES_MAX + 1));
        let refusal = refusal.map_err(|error| format!("{error:?}")).unwrap_err();
        assert!(refusal.contains("its 8193 bytes are more than 8192"), "{refusal}");
        assert_eq!(tokenizer.count(&"a".repeat(FAR_BYTES_MAX)).unwrap(), 0);
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "normalizers": steps});
        refused(
            &file(&sequence(&vec![far("a*b|a"); 3]), &Value::Null),
            "3 expressions that may look at all of a text for each of its letters",
        );
        let grows =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(17)});
        refused(&file(&sequence(&[grows, far("a*b|a")]), &Value::Null), "17 bytes for one byte");
        let mut decodes: Value = serde_json::from_slice(&file(&Value::Null, &Value::Null)).unwrap();
        decodes["decoder"] = far("a*b|a");
        refused(&serde_json::to_vec(&decodes).unwrap(), "1 expressions in its decoder");
        // Expressions of models take texts of any length.
        let tokenizer = Tokenizer::from_bytes(&file(&far(" {2,}"), &Value::Null), 8).unwrap();
        assert_eq!(tokenizer.count(&" ".repeat(1 << 20)).unwrap(), 0);
    }

    #[test]
    fn vocabularies_that_blow_up_are_refused() {
        let words = |letters: usize| {
            json!({"type": "WordPiece", "vocab": {"x": 0, "a": 1}, "unk_token": "x",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": letters})
        };
        Tokenizer::from_bytes(&file(&Value::Null, &words(100)), 8).unwrap();
        refused(&file(&Value::Null, &words(101)), "101 letters a word");
        let unknown = "x".repeat(300);
        let stands_for = json!({"type": "WordLevel", "vocab": {&unknown: 0}, "unk_token": unknown});
        refused(&file(&Value::Null, &stands_for), "300 bytes of unk_token");
        let prefixed = json!({"type": "WordPiece", "vocab": {"x": 0}, "unk_token": "x",
            "continuing_subword_prefix": unknown, "max_input_chars_per_word": 100});
        refused(&file(&Value::Null, &prefixed), "300 bytes of continuing_subword_prefix");
        let ended =
            json!({"type": "BPE", "vocab": {"x": 0}, "merges": [], "end_of_word_suffix": unknown});
        refused(&file(&Value::Null, &ended), "300 bytes of end_of_word_suffix");
        let mut added: Value = serde_json::from_slice(&file(&Value::Null, &Value::Null)).unwrap();
        added["added_tokens"] = json!([{"id": 2, "content": unknown, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": true, "special": false}]);
        refused(&serde_json::to_vec(&added).unwrap(), "300 bytes of an added token");
        let merges = |dropout: Value| json!({"type": "BPE", "vocab": {"x": 0, "a": 1}, "merges": [], "dropout": dropout});
        Tokenizer::from_bytes(&file(&Value::Null, &merges(Value::Null)), 8).unwrap();
        refused(&file(&Value::Null, &merges(json!(0.1))), "by chance (dropout 0.1)");
        let pieces = |pieces: &[String]| {
            let pieces: Vec<_> = pieces.iter().map(|piece| json!([piece, -1.0])).collect();
            json!({"type": "Unigram", "unk_id": 0, "vocab": pieces})
        };
        Tokenizer::from_bytes(&file(&Value::Null, &pieces(&["x".into(), "a\"b".into()])), 8)
            .unwrap();
        refused(&file(&Value::Null, &pieces(&["a".repeat(300)])), "300 bytes in one piece");
        let runs = |longest: usize| (1..=longest).map(|run| "a".repeat(run)).collect::<Vec<_>>();
        Tokenizer::from_bytes(&file(&Value::Null, &pieces(&runs(63))), 8).unwrap();
        refused(&file(&Value::Null, &pieces(&runs(64))), "2080 bytes of pieces that begin with");
        // Each is all its own after a few letters.
        let many: Vec<_> = (0..20_000).map(|n| format!("{n:05}{}", "a".repeat(240))).collect();
        refused(&file(&Value::Null, &pieces(&many)), "nodes in the tree");
    }
}
