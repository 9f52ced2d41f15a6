//! What the tokens beside the vocabulary may ask for: how much there is to look for, and how often a text is read in
//! doing so.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{NormalizedString, NormalizerWrapper};

use super::{PIECE_BYTES_MAX, at_most, damaged, normalize};
use crate::tokenizer::TokenizerError;

/// Bytes of all added tokens, as the normalizer leaves them, each of which takes some 130 bytes while the
/// table is made in which they are looked up. A thousand tokens have ten thousand.
const ADDED_BYTES_MAX: usize = 1 << 20;

/// A token beside the vocabulary. It is looked for as the normalizer leaves it, which may be a letter,
/// and told as it stands here.
#[derive(Deserialize)]
pub(super) struct Added<'a> {
    #[serde(borrow)]
    content: Cow<'a, str>,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// Bounds the table of the added tokens, in which they stand as the normalizer leaves them.
pub(super) fn check(tokens: &[Added<'_>], normalizer: Value) -> Result<(), TokenizerError> {
    let longest = tokens.iter().map(|token| token.content.len()).max().unwrap_or_default();
    at_most(longest, PIECE_BYTES_MAX, "bytes of an added token")?;
    let normalizer: Option<NormalizerWrapper> =
        serde_json::from_value(normalizer).map_err(damaged)?;
    let mut bytes = 0;
    // Those that are looked for in the text as it is, and as it is normalized.
    let mut spaces = [Spaces::default(); 2];
    for token in tokens {
        let mut content = NormalizedString::from(&*token.content);
        bytes += match &normalizer {
            Some(normalizer) if token.normalized => normalize(normalizer, &mut content)?,
            _ => content.len(),
        };
        at_most(bytes, ADDED_BYTES_MAX, "bytes of added tokens, as it normalizes them")?;
        spaces[usize::from(token.normalized)].heed(token, content.get())?;
    }
    Ok(())
}

/// What tokens that take the spaces beside them do with those that are tokens: each takes all that follow, which the
/// next does as well, in the text's square of steps and bytes.
#[derive(Clone, Copy, Default)]
struct Spaces {
    are_taken: bool,
    begin_token: bool,
}

impl Spaces {
    fn heed(&mut self, token: &Added<'_>, content: &str) -> Result<(), TokenizerError> {
        self.are_taken |= token.rstrip;
        self.begin_token |= content.starts_with(char::is_whitespace);
        let is_space = !content.is_empty() && content.chars().all(char::is_whitespace);
        if token.lstrip && is_space || self.are_taken && self.begin_token {
            return Err(TokenizerError::Unsupported(
                "it has added tokens that take the spaces beside them (lstrip, rstrip), and spaces that are added \
                 tokens, so that each of these in a row would be read for each other; no model has both"
                    .into(),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{file, refused};
    use crate::tokenizer::Tokenizer;

    #[test]
    fn added_tokens_that_blow_up_are_refused() {
        let grows =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(200)});
        let mut words: Value = serde_json::from_slice(&file(&grows, &Value::Null)).unwrap();
        let mut with = |count: usize, letter: &str, normalized: bool| {
            let token = |id| {
                json!({"id": id, "content": format!("{id}{}", letter.repeat(200)),
                "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": normalized, "special": false})
            };
            words["added_tokens"] = (2..count + 2).map(token).collect();
            serde_json::to_vec(&words).unwrap()
        };
        refused(&with(30, "a", true), "bytes of added tokens");
        refused(&with(10_000, "c", false), "bytes of added tokens");
        for few in [with(30, "a", false), with(30, "c", true), with(20, "a", true)] {
            Tokenizer::from_bytes(&few, 8).unwrap();
        }
    }

    #[test]
    fn added_spaces_that_are_taken_by_others_are_refused() {
        let space = json!({"type": "Replace", "pattern": {"String": "_"}, "content": " "});
        let mut words: Value = serde_json::from_slice(&file(&space, &Value::Null)).unwrap();
        let mut with = |tokens: &[(&str, bool, &str)]| {
            let token = |(content, normalized, strips): &(&str, bool, &str)| {
                json!({"id": 2, "content": content, "single_word": false, "normalized": normalized,
                    "lstrip": *strips == "l", "rstrip": *strips == "r", "special": false})
            };
            words["added_tokens"] = tokens.iter().map(token).collect();
            serde_json::to_vec(&words).unwrap()
        };
        for tokens in [
            &[(" ", false, "r")][..],
            &[(" \n", false, "l")],
            &[("_", true, "r")],
            &[("<m>", false, "r"), (" b", false, "")],
            &[(" b", true, ""), ("<m>", true, "r")],
        ] {
            refused(&with(tokens), "spaces that are added tokens");
        }
        for tokens in [
            &[("<m>", false, "l"), ("  ", true, ""), ("   ", true, "")][..],
            &[("<m>", false, "r"), ("<n>", false, "r")],
            &[("<m>", false, "r"), ("_", true, "")],
            &[("_", false, "r")],
        ] {
            Tokenizer::from_bytes(&with(tokens), 8).unwrap();
        }
    }
}
