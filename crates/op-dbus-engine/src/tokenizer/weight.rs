//! What a text takes of the machine until it has its tokens: known before by its bytes, and by what the tokenizer's file
//! may make of each.

use super::cuts::Cuts;
use super::{Tokenizer, bounds, guarded};

/// Up to here tokenizing takes about a millisecond at most and is not worth a change of threads.
const INLINE_BYTES_MAX: usize = 2 << 10;
/// The same of what may become of them: XLM-R's normalizer counts as 66 bytes for one.
const INLINE_NORMALIZED_MAX: usize = 66 * INLINE_BYTES_MAX;

/// Of what has more than that, since it can't be cut, one is tokenized at a time: it may take 0.8 GiB.
pub(super) const WHOLE_BYTES_MAX: usize = 128 << 10;
/// What BERT's normalizer makes of one byte at most. It counts as more, by the worst of each of its steps.
const BERT_GROWTH: usize = 3;
/// The same as [`WHOLE_BYTES_MAX`], of a text as its normalizer leaves it.
const WHOLE_NORMALIZED_MAX: usize = BERT_GROWTH * WHOLE_BYTES_MAX;

impl Tokenizer {
    /// Whether texts of so many bytes together may be tokenized where others wait for that.
    pub(crate) fn is_quick(&self, bytes: usize) -> bool {
        let growth = self.0.growth;
        bytes <= INLINE_BYTES_MAX
            && bytes.saturating_mul(growth.normalizer) <= INLINE_NORMALIZED_MAX
            && !growth.looks_far
    }

    /// Whether a text may take so much memory, `in_parts` where it can be cut or else as a whole, that no other
    /// such is to be tokenized beside it. Takes its time where that [is measured](Self::is_measured).
    pub(crate) fn is_heavy(&self, text: &str, in_parts: bool) -> bool {
        if !self.may_be_heavy(text, in_parts) {
            return false;
        }
        if !self.may_grow() {
            return true;
        }
        let mut rest = text;
        while !rest.is_empty() {
            let part = if in_parts { self.0.cuts.head(rest, self.part_bytes()) } else { rest };
            if part.len() > WHOLE_BYTES_MAX || self.grows(part) {
                return true;
            }
            rest = &rest[part.len()..];
        }
        false
    }

    /// Whether it takes the text's normalizer to say how much memory the text takes.
    pub(crate) fn is_measured(&self, text: &str, in_parts: bool) -> bool {
        self.may_grow() && self.may_be_heavy(text, in_parts)
    }

    /// Bytes, and up to as many again, of the parts in which a text is given to the library where it can be cut.
    pub(super) fn part_bytes(&self) -> usize {
        self.light_bytes_max() / 2
    }

    fn may_be_heavy(&self, text: &str, in_parts: bool) -> bool {
        text.len() > self.light_bytes_max()
            && !(in_parts && self.0.cuts.are_among(self.part_bytes(), text))
    }

    /// Bytes that a text may have for it to take little memory whatever becomes of it.
    fn light_bytes_max(&self) -> usize {
        let growth = match self.0.cuts {
            Cuts::Bert(_) => BERT_GROWTH,
            _ => self.0.growth.normalizer.max(1),
        };
        WHOLE_BYTES_MAX.min(WHOLE_NORMALIZED_MAX / growth)
    }

    fn may_grow(&self) -> bool {
        self.light_bytes_max() < WHOLE_BYTES_MAX
    }

    fn grows(&self, part: &str) -> bool {
        let (normalizer, growth) = (self.0.model.get_normalizer(), self.0.growth);
        let grows = || bounds::grows_beyond(normalizer, growth, part, WHOLE_NORMALIZED_MAX);
        // Where it looks far, longer texts than these are refused; one that fails here does so again.
        !growth.looks_far && matches!(guarded(grows), Ok(true))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A token for each letter of what this normalizer makes of a text.
    fn tokenizer(normalizer: &Value) -> Tokenizer {
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": normalizer, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordPiece", "vocab": {"b": 0, "##b": 1}, "unk_token": "b",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        });
        Tokenizer::from_bytes(file.to_string().as_bytes(), 8).unwrap()
    }

    fn replace(pattern: &str, words: usize) -> Tokenizer {
        let content = ("b".repeat(99) + " ").repeat(words);
        tokenizer(&json!({"type": "Replace", "pattern": {"String": pattern}, "content": content}))
    }

    #[test]
    fn what_is_blown_up_is_heavy_however_short_it_is() {
        let tokenizer = replace("ж", 40);
        for in_parts in [true, false] {
            assert!(tokenizer.is_heavy(&"ж".repeat(780), in_parts));
            // What might be and is not.
            assert!(!tokenizer.is_heavy(&"é".repeat(780), in_parts));
            assert!(tokenizer.is_measured(&"é".repeat(780), in_parts));
        }
        assert!(tokenizer.is_quick(67) && !tokenizer.is_quick(68));
        // A pattern that is longer than the pieces in which a text is measured.
        let long = "ж".repeat(513);
        assert!(replace(&long, 5_000).is_heavy(&long, true));
    }

    #[test]
    fn a_part_is_as_short_as_its_letters_may_be_many() {
        let tokenizer = tokenizer(&json!({"type": "NFKC"}));
        // 33 bytes of three.
        let ligatures = "\u{fdfa}".repeat(20_000);
        let words = "\u{fdfa}b ".repeat(12_000);
        assert!(tokenizer.is_heavy(&ligatures, true) && tokenizer.is_heavy(&ligatures, false));
        assert!(!tokenizer.is_measured(&words, true) && tokenizer.is_heavy(&words, false));
        assert!(!tokenizer.is_heavy(&words, true));
        // A stretch in which no cut is found by looking at little.
        let sparse = format!("{words}{} ", "é".repeat(10_000)).repeat(2);
        assert!(tokenizer.is_measured(&sparse, true) && !tokenizer.is_heavy(&sparse, true));
    }

    #[test]
    fn expressions_that_look_far_are_not_quick() {
        let far = json!({"type": "Replace", "pattern": {"Regex": "a*b|a"}, "content": ""});
        assert!(!tokenizer(&far).is_quick(1) && tokenizer(&Value::Null).is_quick(2 << 10));
        assert!(!tokenizer(&Value::Null).is_quick((2 << 10) + 1));
    }
}
