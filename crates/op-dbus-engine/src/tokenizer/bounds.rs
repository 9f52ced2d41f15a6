//! What a tokenizer file may ask for. A text costs a tokenizer as much as its file says: one that
//! writes a megabyte for each letter, or looks every beginning of a long word up, would take the
//! service's memory or its threads with a text of a kilobyte. Such a file is refused when it is read.

use std::borrow::Cow;
use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::TokenizerError;

/// Bytes that a file may have one byte of a text become, all of its steps together, each counted as if
/// it did its worst to all that the one before has made. What SentencePiece compiles into models is
/// the most that is known: 33 bytes for one ligature, and each expression that is replaced may double
/// that.
const GROWTH_MAX: usize = 256;
/// Normalizers, pre-tokenizers and decoders of a file, those within others included.
const STEPS_MAX: usize = 64;
/// Letters of a word that WordPiece splits; models have 100. It takes their cube of steps.
const WORD_LETTERS_MAX: u64 = 256;
/// Bytes of one piece of a Unigram vocabulary, beginnings of which are looked up at each letter, and of
/// what any vocabulary puts in place of a word or beside a letter.
const PIECE_BYTES_MAX: usize = 256;
/// Values of a file, each of which the parser takes some 100 to 300 bytes for. A million pieces with their
/// scores are three millions, and so are as many merges.
const VALUES_MAX: usize = 4 << 20;
/// Nodes of the tree that a Unigram vocabulary becomes, of some 400 bytes each. A million pieces of
/// natural languages have three millions.
const NODES_MAX: usize = 4 << 20;

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

/// A token beside the vocabulary. It is looked for as the normalizer leaves it, which may be a letter,
/// and told as it stands here.
#[derive(Deserialize)]
struct Added<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
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
    vocab: Pieces<'a>,
}

/// The pieces of a Unigram vocabulary, which is a list; none of any other, which is a map.
#[derive(Default)]
struct Pieces<'a>(Vec<Cow<'a, str>>);

/// Refuses a file whose texts could cost more than those of any real model, or have another vector
/// each time.
pub(super) fn check(json: &[u8]) -> Result<(), TokenizerError> {
    // Those within texts are counted as well, and are few.
    let values = json.iter().filter(|byte| b",[{".contains(byte)).count();
    at_most(values, VALUES_MAX, "JSON values")?;
    let file: File<'_> =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Damaged(error.into()))?;
    let (mut growth, mut steps) = (1, 0);
    for part in [&file.normalizer, &file.pre_tokenizer, &file.decoder] {
        growth = growth_of(part, &mut steps)?.max(growth);
    }
    at_most(growth, GROWTH_MAX, "bytes for one byte of a text")?;
    at_most(steps, STEPS_MAX, "normalizers, pre-tokenizers and decoders")?;
    let Model { dropout, max_input_chars_per_word, vocab, .. } = file.model;
    for (name, text) in [
        ("unk_token", file.model.unk_token),
        ("continuing_subword_prefix", file.model.continuing_subword_prefix),
        ("end_of_word_suffix", file.model.end_of_word_suffix),
    ] {
        let bytes = text.as_ref().and_then(Value::as_str).map_or(0, str::len);
        at_most(bytes, PIECE_BYTES_MAX, &format!("bytes of {name}"))?;
    }
    if let Some(dropout) = dropout.filter(|dropout| *dropout != 0.0) {
        return Err(TokenizerError::Unsupported(format!(
            "it leaves out merges by chance (dropout {dropout}), so that a text would have another \
             vector each time; set dropout to null in its tokenizer.json"
        )));
    }
    let longest = file.added_tokens.iter().map(|token| token.content.len()).max();
    at_most(longest.unwrap_or_default(), PIECE_BYTES_MAX, "bytes of an added token")?;
    let letters = max_input_chars_per_word.unwrap_or_default();
    at_most(letters, WORD_LETTERS_MAX, "letters a word (max_input_chars_per_word)")?;
    let longest = vocab.0.iter().map(|piece| piece.len()).max().unwrap_or_default();
    at_most(longest, PIECE_BYTES_MAX, "bytes in one piece of its vocabulary")?;
    at_most(vocab.nodes(), NODES_MAX, "nodes in the tree of its vocabulary")
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

/// Bytes that one byte becomes at most by a step, or by one after another; counts them. Goes by what a
/// step has, since the parser takes one without its type, too; and a list of what it has, which nobody
/// writes and which is refused here.
fn growth_of(step: &Value, steps: &mut usize) -> Result<usize, TokenizerError> {
    let step = match step {
        Value::Object(step) => step,
        Value::Null => return Ok(1),
        _ => return Err(TokenizerError::Damaged("a step that is no object".into())),
    };
    *steps += 1;
    let mut growth = 1_usize;
    for key in ["normalizers", "pretokenizers", "decoders"] {
        for step in step.get(key).and_then(Value::as_array).into_iter().flatten() {
            growth = growth.saturating_mul(growth_of(step, steps)?);
        }
    }
    let text = |key: &str| step.get(key).and_then(Value::as_str);
    if let (Some(pattern), Some(content)) = (step.get("pattern"), text("content")) {
        growth = growth.saturating_mul(match pattern.get("String").and_then(Value::as_str) {
            Some(pattern) => content.len().div_ceil(pattern.len().max(1)).max(1),
            // An expression may be found between any two letters.
            None => content.len() + 1,
        });
    }
    if let Some(prefix) = text("prepend") {
        growth = growth.saturating_mul(prefix.len() + 1);
    }
    if let Some(charsmap) = text("precompiled_charsmap") {
        growth = growth.saturating_mul(longest_of(charsmap)?.max(1));
    }
    Ok(growth)
}

/// The longest of the strings that a compiled table puts in place of letters: behind the table of
/// letters, the size of which stands first, one after another with a NUL at the end of each.
fn longest_of(charsmap: &str) -> Result<usize, TokenizerError> {
    let damaged = |error: Box<dyn std::error::Error + Send + Sync>| TokenizerError::Damaged(error);
    let bytes = BASE64_STANDARD.decode(charsmap).map_err(|error| damaged(error.into()))?;
    let strings = bytes
        .split_first_chunk()
        .and_then(|(size, rest)| rest.get(u32::from_le_bytes(*size) as usize..))
        .ok_or_else(|| damaged("its table of letters is cut off".into()))?;
    Ok(strings.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default())
}

impl Pieces<'_> {
    /// Nodes of the tree in which pieces share their beginnings, byte by byte.
    fn nodes(mut self) -> usize {
        self.0.sort_unstable();
        let mut before: &[u8] = b"";
        let own = |piece| {
            let shared = std::iter::zip(before, piece).take_while(|(a, b)| a == b).count();
            before = piece;
            piece.len() - shared
        };
        self.0.iter().map(|piece| piece.as_bytes()).map(own).sum()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pieces<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Vocabulary;

        impl<'de> Visitor<'de> for Vocabulary {
            type Value = Pieces<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a vocabulary")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut pieces = Vec::new();
                while let Some((Piece(piece), _)) = list.next_element::<(_, IgnoredAny)>()? {
                    pieces.push(piece);
                }
                Ok(Pieces(pieces))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Pieces::default())
            }

            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Pieces::default())
            }
        }

        /// Borrowed, unless it has escapes.
        #[derive(Deserialize)]
        struct Piece<'a>(#[serde(borrow)] Cow<'a, str>);

        deserializer.deserialize_any(Vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tokenizer::Tokenizer;

    /// A tokenizer of a few words, with these parts.
    fn file(normalizer: &Value, model: &Value) -> Vec<u8> {
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
    fn refused(file: &[u8], why: &str) {
        match Tokenizer::from_bytes(file, 8) {
            Err(TokenizerError::Unsupported(message)) => {
                assert!(message.contains(why), "{message}")
            }
            other => panic!("{:?}", other.map(drop)),
        }
    }

    #[test]
    fn normalizers_that_blow_texts_up_are_refused() {
        let replace = |with: usize| json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(with)});
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "normalizers": steps});
        let growth = "bytes for one byte of a text";
        refused(&file(&replace(1 << 20), &Value::Null), growth);
        refused(
            &file(&sequence(&[replace(16), sequence(&[replace(17)])]), &Value::Null),
            "272 bytes",
        );
        refused(&file(&sequence(&vec![replace(1); 64]), &Value::Null), "66 normalizers");
        let anywhere =
            json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "b".repeat(300)});
        refused(&file(&anywhere, &Value::Null), "301 bytes");
        // The parser takes it without its name.
        let nameless = json!({"pattern": {"String": "a"}, "content": "b".repeat(300)});
        refused(&file(&nameless, &Value::Null), "300 bytes");
        // As it would a list in place of an object.
        let list = json!([{"String": "a"}, "b".repeat(300)]);
        for list in [list.clone(), sequence(&[list])] {
            let refusal = Tokenizer::from_bytes(&file(&list, &Value::Null), 8);
            assert!(matches!(refusal, Err(TokenizerError::Damaged(_))));
        }
        refused(
            &file(&json!({"type": "Prepend", "prepend": "b".repeat(300)}), &Value::Null),
            growth,
        );
        let table = |string: usize| {
            let string = "b".repeat(string);
            let bytes =
                [&1024_u32.to_le_bytes()[..], &[0; 1024], string.as_bytes(), b"\0c\0"].concat();
            let bytes = BASE64_STANDARD.encode(bytes);
            json!({"type": "Precompiled", "precompiled_charsmap": bytes})
        };
        refused(&file(&table(300), &Value::Null), "300 bytes");
        // As many as these are of use.
        for normalizer in [Value::Null, replace(3), sequence(&[replace(4), replace(20)]), table(33)]
        {
            Tokenizer::from_bytes(&file(&normalizer, &Value::Null), 8).unwrap();
        }
    }

    #[test]
    fn a_file_of_too_many_values_is_refused_before_it_is_parsed() {
        let empty = "[],".repeat(VALUES_MAX / 2) + "[]";
        let file = format!(r#"{{"normalizer": {{"type": "Lowercase", "x": [{empty}]}}"#);
        refused(file.as_bytes(), "JSON values");
    }

    #[test]
    fn vocabularies_that_blow_up_are_refused() {
        let words = |letters: usize| {
            json!({"type": "WordPiece", "vocab": {"x": 0, "a": 1}, "unk_token": "x",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": letters})
        };
        Tokenizer::from_bytes(&file(&Value::Null, &words(100)), 8).unwrap();
        refused(&file(&Value::Null, &words(1_000_000)), "1000000 letters a word");
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
        // Each is all its own after a few letters.
        let many: Vec<_> = (0..20_000).map(|n| format!("{n:05}{}", "a".repeat(240))).collect();
        refused(&file(&Value::Null, &pieces(&many)), "nodes in the tree");
    }
}
