//! WordPiece without what the library's own costs: that one looks up all that is left of a word, then that
//! without its last letter, and so on, also where no piece of the vocabulary is nearly as long. Ids and places
//! are the same, which the tests hold.

use tokenizers::models::wordpiece::WordPiece;
use tokenizers::{Encoding, Model, ModelWrapper, OffsetType, PreTokenizer, Result, Token};

/// What is known of a vocabulary of word pieces.
#[derive(Debug)]
pub(super) struct WordPieces {
    /// Bytes of the longest piece, and of the longest within a word, without the prefix that marks it.
    longest: usize,
    longest_inner: usize,
    unknown: Option<u32>,
}

impl WordPieces {
    /// Those of the tokenizer; `None` if it does anything else.
    pub fn of(model: &tokenizers::Tokenizer) -> Option<Self> {
        let ModelWrapper::WordPiece(model) = model.get_model() else { return None };
        let (mut longest, mut longest_inner) = (0, 0);
        for piece in model.get_vocab().keys() {
            // Those that a word begins with; the library takes a marked one for such, too.
            longest = longest.max(piece.len());
            if let Some(piece) = piece.strip_prefix(&model.continuing_subword_prefix) {
                longest_inner = longest_inner.max(piece.len());
            }
        }
        Some(Self { longest, longest_inner, unknown: model.token_to_id(&model.unk_token) })
    }

    /// What `model`, whose pieces these are, makes of a text, with or without the special tokens around it.
    pub fn encode(
        &self,
        model: &tokenizers::Tokenizer,
        text: &str,
        offsets: OffsetType,
        specials: bool,
    ) -> Result<Encoding> {
        let ModelWrapper::WordPiece(pieces) = model.get_model() else {
            return Err("the tokenizer has no word pieces".into());
        };
        let added = model.get_added_vocabulary();
        let mut words = added.extract_and_normalize(model.get_normalizer(), text);
        if let Some(pre_tokenizer) = model.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut words)?;
        }
        words.tokenize(|word| self.tokens(pieces, word.get()))?;
        model.post_process(words.into_encoding(None, 0, offsets)?, None, specials)
    }

    /// The pieces of one word: the longest first, or the unknown one as a whole.
    fn tokens(&self, model: &WordPiece, word: &str) -> Result<Vec<Token>> {
        let unknown = || {
            let id = self
                .unknown
                .ok_or("a word is unknown, and the vocabulary has no token for those")?;
            Ok(vec![Token::new(id, model.unk_token.clone(), (0, word.len()))])
        };
        if word.chars().count() > model.max_input_chars_per_word {
            return unknown();
        }
        let (mut tokens, mut start) = (Vec::new(), 0);
        // What is looked up: the rest of the word, behind the prefix where it is not the whole of it.
        let mut sought = String::with_capacity(word.len());
        while start < word.len() {
            let (prefix, longest) = match start {
                0 => ("", self.longest),
                _ => (model.continuing_subword_prefix.as_str(), self.longest_inner),
            };
            let rest = &word[start..];
            let rest = &rest[..rest.floor_char_boundary(longest)];
            sought.clear();
            sought.push_str(prefix);
            sought.push_str(rest);
            let id = loop {
                if sought.len() == prefix.len() {
                    return unknown();
                }
                if let Some(id) = model.token_to_id(&sought) {
                    break id;
                }
                sought.pop();
            };
            let end = start + sought.len() - prefix.len();
            tokens.push(Token::new(id, sought.clone(), (start, end)));
            start = end;
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::tokenizer::Tokenizer;

    /// A vocabulary of these pieces; nothing is done to words but to tell them from each other.
    fn tokenizer(pieces: &[&str], prefix: &str) -> Tokenizer {
        let vocabulary: serde_json::Map<_, _> =
            (0_u32..).zip(pieces).map(|(id, piece)| ((*piece).to_owned(), id.into())).collect();
        let added = json!({"id": 1, "content": "a", "single_word": true, "lstrip": false,
            "rstrip": true, "normalized": false, "special": false});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [added],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordPiece", "unk_token": "?", "max_input_chars_per_word": 9,
                "continuing_subword_prefix": prefix, "vocab": vocabulary},
        });
        Tokenizer::from_bytes(file.to_string().as_bytes(), 64).unwrap()
    }

    const PIECES: [&str; 14] =
        ["?", "a", "##a", "b", "##b", "ab", "##ab", "aba", "я", "##я", "яб", "##бя", "##", "##a##"];

    proptest! {
        #[test]
        fn pieces_are_those_of_the_library(text in "[aAbяб漢# ]{0,24}", prefix in "(##|#|)") {
            let tokenizer = tokenizer(&PIECES, &prefix);
            let model = &tokenizer.0.model;
            for offsets in [OffsetType::None, OffsetType::Char] {
                let expected = match offsets {
                    OffsetType::None => model.encode_fast(text.as_str(), true),
                    _ => model.encode_char_offsets(text.as_str(), true),
                };
                let found = tokenizer.encoded(&text, offsets, true).unwrap();
                prop_assert_eq!(found, expected.unwrap());
            }
        }
    }

    #[test]
    fn a_word_that_is_unknown_needs_a_token_for_that() {
        let tokenizer = tokenizer(&["b", "a"], "##");
        assert_eq!(tokenizer.count("b a b").unwrap(), 3);
        let refusal = tokenizer.count("b c").map_err(|error| format!("{error:?}")).unwrap_err();
        assert!(refusal.contains("has no token for those"), "{refusal}");
    }
}
