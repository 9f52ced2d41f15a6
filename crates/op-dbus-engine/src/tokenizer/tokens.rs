//! Tokens themselves: ids that a caller has made of a text already, and the pieces of a text with
//! where they stand in it.

use tokenizers::OffsetType;

use super::{EncodeError, Encoded, Tokenizer};
use crate::call::Truncate;

/// One token of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its id in the model's vocabulary.
    pub id: u32,
    /// Its name in the vocabulary, as the model's kind of tokenizer writes it.
    pub piece: String,
    /// The part of the text that it stands for, where the piece is not written so; of special tokens none.
    pub covered: Option<Box<str>>,
    /// Whether the model puts it around every text.
    pub special: bool,
    /// Bytes of the text that it stands for; of special tokens none.
    pub start: usize,
    /// The first byte behind them.
    pub end: usize,
}

impl Tokenizer {
    /// Makes the rows of a text that is given as token ids, with the special tokens around it or
    /// without them.
    pub(crate) fn encode_tokens(
        &self,
        ids: &[u32],
        truncate: Truncate,
    ) -> Result<Encoded, EncodeError> {
        let vocabulary = self.0.vocabulary.get_or_init(|| self.vocabulary());
        // Nearly all vocabularies leave no id out, so that each stands in its own place.
        let has = |id: u32| {
            vocabulary.get(id as usize) == Some(&id) || vocabulary.binary_search(&id).is_ok()
        };
        if let Some(id) = ids.iter().copied().find(|id| !has(*id)) {
            let vocabulary = vocabulary.last().map_or(0, |last| last.saturating_add(1));
            return Err(EncodeError::Unknown { id, vocabulary });
        }
        self.fit(self.without_specials(ids), truncate)
    }

    /// The ids of the vocabulary, in order. The largest may be any, however few there are.
    fn vocabulary(&self) -> Box<[u32]> {
        let mut ids: Vec<u32> = self.0.model.get_vocab(true).into_values().collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into()
    }

    /// The ids between the special tokens, where both ends are there.
    pub(crate) fn without_specials<'a>(&self, ids: &'a [u32]) -> &'a [u32] {
        let is = |found: &[u32], special: &[i32]| {
            found.iter().map(|id| i64::from(*id)).eq(special.iter().map(|id| i64::from(*id)))
        };
        let (prefix, suffix) = (&self.0.prefix, &self.0.suffix);
        let Some(end) = ids.len().checked_sub(suffix.len()).filter(|end| *end >= prefix.len())
        else {
            return ids;
        };
        let whole = is(&ids[..prefix.len()], prefix) && is(&ids[end..], suffix);
        if whole { &ids[prefix.len()..end] } else { ids }
    }

    /// The tokens of `text` before truncation, special tokens included.
    pub(crate) fn pieces(&self, text: &str) -> Result<Vec<Piece>, EncodeError> {
        // By characters: the library trims spaces by their number, which is not that of their bytes.
        self.check(text)?;
        let encoding = self.encoded(text, OffsetType::Char, true)?;
        let bytes: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let byte = |character: usize| bytes.get(character).copied().unwrap_or(text.len());
        let specials = encoding.get_special_tokens_mask();
        let names = encoding.get_ids().iter().zip(encoding.get_tokens());
        let pieces = names.zip(specials).zip(encoding.get_offsets());
        let piece = |(((id, piece), special), (start, end)): (((&u32, &String), &u32), &(_, _))| {
            let (special, start, end) = (*special == 1, byte(*start), byte(*end));
            let covered = text.get(start..end).filter(|covered| !special && *covered != piece);
            let covered = covered.map(Box::from);
            Piece { id: *id, piece: piece.clone(), covered, special, start, end }
        };
        Ok(pieces.map(piece).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows(encoded: Encoded) -> Vec<Vec<i32>> {
        encoded.windows.into_iter().map(|window| window.ids.into()).collect()
    }

    #[test]
    fn ids_are_embedded_as_their_text_is() {
        let tokenizer = Tokenizer::bytes(6);
        for text in ["", "a", "abcd", "abcdefg"] {
            let content: Vec<u32> =
                text.bytes().map(|byte| tokenizer_id(&tokenizer, byte)).collect();
            let whole = [&[256], &content[..], &[257]].concat();
            for truncate in [Truncate::End, Truncate::Start, Truncate::Mean] {
                let expected = tokenizer.encode(text, truncate).unwrap();
                for ids in [&content, &whole] {
                    assert_eq!(tokenizer.encode_tokens(ids, truncate).unwrap(), expected, "{text}");
                }
            }
        }
    }

    fn tokenizer_id(tokenizer: &Tokenizer, byte: u8) -> u32 {
        let text = char::from(byte).to_string();
        tokenizer.pieces(&text).unwrap()[1].id
    }

    #[test]
    fn one_special_token_alone_is_part_of_the_text() {
        let tokenizer = Tokenizer::bytes(8);
        for (ids, expected) in [
            (&[256, 7][..], vec![256, 256, 7, 257]),
            (&[7, 257], vec![256, 7, 257, 257]),
            (&[256, 257], vec![256, 257]),
        ] {
            let encoded = tokenizer.encode_tokens(ids, Truncate::End).unwrap();
            assert_eq!(rows(encoded), [expected]);
        }
    }

    #[test]
    fn an_id_beyond_the_vocabulary_is_refused() {
        let tokenizer = Tokenizer::bytes(8);
        let error = tokenizer.encode_tokens(&[1, 258, 4], Truncate::End).unwrap_err();
        assert!(matches!(error, EncodeError::Unknown { id: 258, vocabulary: 258 }), "{error:?}");
    }

    #[test]
    fn an_id_that_the_vocabulary_leaves_out_is_refused() {
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": null,
            "model": {"type": "WordLevel", "unk_token": "x", "vocab": {"x": 0, "a": 5}},
        });
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), 8).unwrap();
        let encoded = tokenizer.encode_tokens(&[5, 0], Truncate::End).unwrap();
        assert_eq!(rows(encoded), [[5, 0]]);
        let error = tokenizer.encode_tokens(&[5, 3], Truncate::End).unwrap_err();
        assert!(matches!(error, EncodeError::Unknown { id: 3, vocabulary: 6 }), "{error:?}");
    }

    #[test]
    fn pieces_say_where_they_stand() {
        let pieces = Tokenizer::bytes(8).pieces("né").unwrap();
        let places: Vec<_> = pieces.iter().map(|p| (p.special, p.start, p.end)).collect();
        let expected = [(true, 0, 0), (false, 0, 1), (false, 1, 3), (false, 1, 3), (true, 0, 0)];
        assert_eq!(places, expected);
        let covered: Vec<_> = pieces.iter().map(|p| p.covered.as_deref()).collect();
        // Half of a letter is written as another letter.
        assert_eq!(covered, [None, None, Some("é"), Some("é"), None]);
    }

    #[test]
    fn no_piece_begins_within_a_character() {
        let mask = json!({"id": 3, "content": "<mask>", "single_word": false, "lstrip": true,
            "rstrip": false, "normalized": false, "special": true});
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [mask],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0],
                "trim_offsets": true, "add_prefix_space": false},
            "model": {"type": "WordLevel", "unk_token": "a",
                "vocab": {"<s>": 0, "</s>": 1, "a": 2, "<mask>": 3}},
        });
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), 8).unwrap();
        let text = "a\u{3000}\u{3000}<mask>";
        let pieces = tokenizer.pieces(text).unwrap();
        assert_eq!(
            pieces[1..3].iter().map(|p| &text[p.start..p.end]).collect::<Vec<_>>(),
            ["a", "<mask>"]
        );
    }
}
