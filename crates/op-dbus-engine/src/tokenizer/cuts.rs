//! Where a text may be cut so that the tokens of its two parts, one after the other, are those of
//! the whole. A text of a megabyte for a model of 256 tokens is then tokenized as far as it matters.
//!
//! That holds at a space where everything in the tokenizer works on what lies between spaces: its
//! normaliser, its pre-tokenizer, its added tokens. It is read from the tokenizer's own description;
//! one that is not known to be so is never cut.

use serde_json::Value;
use tokenizers::AddedToken;

/// Bytes that are looked at for a cut.
const LOOKED_AT_BYTES: usize = 4 << 10;

/// Where cuts fall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cuts {
    /// Between any two characters.
    Characters,
    /// Before the first space behind a word; also before a line's end and a tab, and behind a
    /// Chinese character, which BERT's normaliser puts between spaces, and, where no added token is
    /// cut by it, beside a punctuation mark of ASCII, which is a word of its own.
    Bert(Added),
    /// Before the first space behind a word that ends in ASCII, so that no rule for neighbouring
    /// characters reaches over the cut.
    Spaces,
    Nowhere,
}

/// What added tokens are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// Two characters that follow each other in one that is found as it is written; in order.
    pairs: Vec<[u8; 2]>,
    /// Characters of those that are found in what the normaliser makes of a text, which may have any letter of the
    /// text beside them, or as words of their own, for which what stands beside them counts; in order.
    marks: Vec<u8>,
    /// Whether there are such words.
    has_words: bool,
}

impl Added {
    fn of<'a>(tokens: impl Iterator<Item = &'a AddedToken>) -> Self {
        let mut added = Self::default();
        for token in tokens {
            let bytes = token.content.as_bytes();
            if token.normalized || token.single_word {
                added.marks.extend(bytes);
            } else {
                added.pairs.extend(bytes.windows(2).map(|pair| [pair[0], pair[1]]));
            }
            if token.single_word {
                // Which counts as a letter.
                added.marks.push(b'_');
                added.has_words = true;
            }
        }
        added.pairs.sort_unstable();
        added.pairs.dedup();
        added.marks.sort_unstable();
        added.marks.dedup();
        added
    }

    /// Whether one of two characters is a punctuation mark, and no added token can have both. What follows a mark
    /// and is not of ASCII may belong to it.
    fn is_beside_mark(&self, before: u8, after: u8) -> bool {
        let is_mark = |byte: u8| byte.is_ascii_punctuation();
        let is_word = |byte: u8| byte.is_ascii_graphic() || !byte.is_ascii();
        let is_beside =
            (is_mark(after) && is_word(before)) || (is_mark(before) && after.is_ascii_graphic());
        is_beside
            && self.pairs.binary_search(&[before, after]).is_err()
            && ![before, after]
                .iter()
                .any(|byte| is_mark(*byte) && self.marks.binary_search(byte).is_ok())
    }
}

impl Cuts {
    /// What the tokenizer's parts allow.
    pub fn of(model: &tokenizers::Tokenizer) -> Self {
        let plain = |content: &str| content.bytes().all(|byte| byte.is_ascii_graphic());
        let added = model.get_added_tokens_decoder();
        if !added.values().all(|token| plain(&token.content) && !token.rstrip) {
            return Self::Nowhere;
        }
        let normalizer = model.get_normalizer().map(serde_json::to_value);
        let pre_tokenizer = model.get_pre_tokenizer().map(serde_json::to_value);
        match (normalizer.transpose(), pre_tokenizer.transpose()) {
            (Ok(normalizer), Ok(Some(pre_tokenizer))) => {
                Self::of_parts(normalizer.as_ref(), &pre_tokenizer, Added::of(added.values()))
            }
            // Without a pre-tokenizer the words are not apart.
            _ => Self::Nowhere,
        }
    }

    fn of_parts(normalizer: Option<&Value>, pre_tokenizer: &Value, added: Added) -> Self {
        let kind = |part: &Value| part["type"].as_str().map(str::to_owned);
        let normalizer_kind = normalizer.and_then(kind);
        if kind(pre_tokenizer).as_deref() == Some("BertPreTokenizer")
            && normalizer_kind.as_deref() == Some("BertNormalizer")
            && normalizer.is_some_and(|n| n["handle_chinese_chars"] == true)
        {
            return Self::Bert(added);
        }
        if normalizer.is_none_or(is_local) && splits_at_spaces(pre_tokenizer) {
            return Self::Spaces;
        }
        Self::Nowhere
    }

    /// The start of `text` up to the first cut from byte `at` on; all of it if there is none.
    pub fn head<'a>(&self, text: &'a str, at: usize) -> &'a str {
        let end = (at..text.len()).find(|at| self.is_cut(text, *at));
        &text[..end.unwrap_or(text.len())]
    }

    /// The end of `text` from the last cut up to byte `at` on; all of it if there is none.
    pub fn tail<'a>(&self, text: &'a str, at: usize) -> &'a str {
        let start = (1..=at.min(text.len())).rev().find(|at| self.is_cut(text, *at));
        &text[start.unwrap_or(0)..]
    }

    /// Whether a cut falls among any so many bytes of a text that follow each other. It may say no where one does:
    /// so that little of the text is read, it looks for a cut at the beginning of each half of them.
    pub fn are_among(&self, bytes: usize, text: &str) -> bool {
        let half = bytes / 2;
        let looked_at = half.min(LOOKED_AT_BYTES);
        let mut starts = (0..text.len().saturating_sub(half)).step_by(half);
        starts.all(|start| (start..start + looked_at).any(|at| self.is_cut(text, at)))
    }

    /// Whether a cut falls before byte `at`.
    fn is_cut(&self, text: &str, at: usize) -> bool {
        let bytes = text.as_bytes();
        let (Some(before), Some(after)) =
            (at.checked_sub(1).and_then(|i| bytes.get(i)), bytes.get(at))
        else {
            return false;
        };
        match self {
            Self::Characters => text.is_char_boundary(at),
            Self::Bert(added) => {
                (matches!(after, b' ' | b'\n' | b'\t') && !before.is_ascii_whitespace())
                    || (!added.has_words
                        && text.is_char_boundary(at)
                        && follows_ideograph(&text[..at]))
                    || added.is_beside_mark(*before, *after)
            }
            Self::Spaces => *after == b' ' && before.is_ascii_graphic(),
            Self::Nowhere => false,
        }
    }
}

/// Whether the last character is of the block of unified ideographs.
fn follows_ideograph(text: &str) -> bool {
    text.chars().next_back().is_some_and(|last| ('\u{4e00}'..='\u{9fff}').contains(&last))
}

/// Whether a normaliser changes characters, or runs of spaces, whatever lies beyond.
fn is_local(normalizer: &Value) -> bool {
    match normalizer["type"].as_str() {
        Some(
            "BertNormalizer" | "Lowercase" | "NFC" | "NFD" | "NFKC" | "NFKD" | "StripAccents"
            | "Precompiled",
        ) => true,
        Some("Replace") => {
            normalizer["pattern"]["Regex"] == " {2,}" && normalizer["content"] == " "
        }
        Some("Sequence") => {
            normalizer["normalizers"].as_array().is_some_and(|parts| parts.iter().all(is_local))
        }
        _ => false,
    }
}

/// Whether a pre-tokenizer puts what lies before and behind a space into different words, whatever
/// lies beyond.
fn splits_at_spaces(pre_tokenizer: &Value) -> bool {
    let kind = |part: &Value| part["type"].as_str().unwrap_or_default().to_owned();
    let splits_all = |part: &Value| {
        matches!(kind(part).as_str(), "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit")
    };
    let keeps_apart = |part: &Value| match kind(part).as_str() {
        "Punctuation" | "Digits" | "ByteLevel" => true,
        // Otherwise the first word of a part would be told from the first word of the text.
        "Metaspace" => part["prepend_scheme"] != "first",
        _ => splits_all(part),
    };
    match kind(pre_tokenizer).as_str() {
        "ByteLevel" => pre_tokenizer["use_regex"] == true,
        "Metaspace" => pre_tokenizer["split"] == true,
        "Sequence" => match pre_tokenizer["pretokenizers"].as_array().map(Vec::as_slice) {
            Some([first, rest @ ..]) => splits_all(first) && rest.iter().all(keeps_apart),
            _ => false,
        },
        _ => splits_all(pre_tokenizer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART_BYTES: usize = 64 << 10;

    /// Such a one is found where no letter stands beside it, which a cut may take away.
    #[test]
    fn nothing_is_cut_from_a_token_that_is_a_word_of_its_own() {
        let cut = |single_word, normalized, before: u8, after: u8| {
            let token = AddedToken::from("[x]", true);
            let token = token.single_word(single_word).normalized(normalized);
            Added::of([token].iter()).is_beside_mark(before, after)
        };
        assert!(cut(false, false, b'a', b'[') && !cut(false, false, b'[', b'x'));
        assert!(!cut(true, false, b'a', b'[') && !cut(false, true, 0xa9, b']'));
        assert!(cut(true, false, b'a', b'!') && !cut(true, false, b'a', b'_'));
    }

    #[test]
    fn a_long_stretch_without_a_cut_is_seen_wherever_it_is() {
        let words = "words ".repeat(PART_BYTES / 2);
        let word = "x".repeat(PART_BYTES + 2);
        assert!(Cuts::Spaces.are_among(PART_BYTES, &words));
        for start in (0..PART_BYTES).step_by(509) {
            let text = format!("{}{word} {words}", &words[..start]);
            assert!(!Cuts::Spaces.are_among(PART_BYTES, &text), "{start}");
        }
    }
}
