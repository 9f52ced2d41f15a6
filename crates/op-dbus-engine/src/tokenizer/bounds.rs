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
/// Bytes of one piece of a Unigram vocabulary, beginnings of which are looked up at each letter.
const PIECE_BYTES_MAX: usize = 256;
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
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(default)]
    dropout: Option<f64>,
    #[serde(default)]
    max_input_chars_per_word: Option<u64>,
    #[serde(default, borrow)]
    vocab: Pieces<'a>,
}

/// The pieces of a Unigram vocabulary, which is a list; none of any other, which is a map.
#[derive(Default)]
struct Pieces<'a>(Vec<Cow<'a, str>>);

/// Refuses a file whose texts could cost more than those of any real model, or have another vector
/// each time.
pub(super) fn check(json: &[u8]) -> Result<(), TokenizerError> {
    let file: File<'_> =
        serde_json::from_slice(json).map_err(|error| TokenizerError::Damaged(error.into()))?;
    let (mut growth, mut steps) = (1, 0);
    for part in [&file.normalizer, &file.pre_tokenizer, &file.decoder] {
        growth = growth_of(part, &mut steps)?.max(growth);
    }
    at_most(growth, GROWTH_MAX, "bytes for one byte of a text")?;
    at_most(steps, STEPS_MAX, "normalizers, pre-tokenizers and decoders")?;
    let Model { dropout, max_input_chars_per_word, vocab } = file.model;
    if let Some(dropout) = dropout.filter(|dropout| *dropout != 0.0) {
        return Err(TokenizerError::Unsupported(format!(
            "it leaves out merges by chance (dropout {dropout}), so that a text would have another \
             vector each time; set dropout to null in its tokenizer.json"
        )));
    }
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
/// step has, since the parser takes one without its type, too.
fn growth_of(step: &Value, steps: &mut usize) -> Result<usize, TokenizerError> {
    let Some(step) = step.as_object() else { return Ok(1) };
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
