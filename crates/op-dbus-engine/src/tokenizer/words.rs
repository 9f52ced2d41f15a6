//! BERT's tokenizer for plain ASCII words, which most texts are made of, without what the general
//! one builds for each text. Ids are the same, which the tests hold; anything else is left to it.

use std::collections::HashMap;
use std::ops::Range;

use ahash::RandomState;
use aho_corasick::AhoCorasick;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::{Model, ModelWrapper};

/// Longest piece of ASCII that is looked up, in bytes; a vocabulary with a longer one is left to the general
/// tokenizer. Those of BERT's languages with the longest words have some 20.
const PIECE_BYTES_MAX: usize = 32;

/// A vocabulary of word pieces.
#[derive(Debug)]
pub(super) struct Words {
    /// Pieces that begin a word.
    first: Pieces,
    /// Pieces within a word, without the prefix that marks them.
    inner: Pieces,
    unknown: u32,
    word_bytes_max: usize,
    lowercase: bool,
    /// Tokens that are found before the text is taken apart, some of them in any case; a word with
    /// one is not plain.
    added: AhoCorasick,
    /// Whether one of them begins with a byte, in either case.
    begins_added: [bool; 256],
}

#[derive(Debug, Default)]
struct Pieces {
    /// Each length that a piece may have is looked up, for each word. Who made the file can't know what collides here.
    ids: HashMap<Box<[u8]>, u32, RandomState>,
    longest: usize,
}

impl Pieces {
    fn insert(&mut self, piece: &str, id: u32) {
        // Others are never looked up.
        if piece.is_ascii() && !piece.is_empty() {
            self.longest = self.longest.max(piece.len());
            self.ids.insert(piece.as_bytes().into(), id);
        }
    }

    /// The longest piece that `word` begins with.
    fn longest(&self, word: &[u8]) -> Option<(usize, u32)> {
        let longest = self.longest.min(word.len());
        (1..=longest).rev().find_map(|end| Some((end, *self.ids.get(&word[..end])?)))
    }
}

impl Words {
    /// A vocabulary in which words can be looked up; `None` if the tokenizer does anything else.
    pub fn of(model: &tokenizers::Tokenizer) -> Option<Self> {
        let (Some(NormalizerWrapper::BertNormalizer(normalizer)), ModelWrapper::WordPiece(pieces)) =
            (model.get_normalizer(), model.get_model())
        else {
            return None;
        };
        if !matches!(model.get_pre_tokenizer(), Some(PreTokenizerWrapper::BertPreTokenizer(_)))
            || !normalizer.clean_text
        {
            return None;
        }
        let (mut added, mut begins_added) = (Vec::new(), [false; 256]);
        for token in model.get_added_tokens_decoder().values() {
            let plain = token.content.bytes().all(|byte| byte.is_ascii_graphic());
            let first = token.content.bytes().next().filter(|_| plain)?;
            begins_added[usize::from(first.to_ascii_lowercase())] = true;
            begins_added[usize::from(first.to_ascii_uppercase())] = true;
            added.push(token.content.clone());
        }
        let added = AhoCorasick::builder().ascii_case_insensitive(true).build(added).ok()?;
        let prefix = &pieces.continuing_subword_prefix;
        let (mut first, mut inner) = (Pieces::default(), Pieces::default());
        for (piece, id) in pieces.get_vocab() {
            first.insert(&piece, id);
            if let Some(piece) = piece.strip_prefix(prefix.as_str()) {
                inner.insert(piece, id);
            }
        }
        if first.longest.max(inner.longest) > PIECE_BYTES_MAX {
            return None;
        }
        Some(Self {
            first,
            inner,
            unknown: pieces.token_to_id(&pieces.unk_token)?,
            word_bytes_max: pieces.max_input_chars_per_word,
            lowercase: normalizer.lowercase,
            added,
            begins_added,
        })
    }

    /// Adds the ids of `text` to `ids`; `other` does so for words that are not plain.
    ///
    /// # Errors
    /// Those of `other`.
    pub fn encode<E>(
        &self,
        text: &str,
        ids: &mut Vec<u32>,
        mut other: impl FnMut(&str, &mut Vec<u32>) -> Result<(), E>,
    ) -> Result<(), E> {
        // Words that are not plain are kept together, as long as no plain one comes between them.
        let mut kept: Option<Range<usize>> = None;
        let mut word = Vec::with_capacity(PIECE_BYTES_MAX);
        let mut start = 0;
        for part in text.as_bytes().split(|byte| matches!(byte, b' ' | b'\n' | b'\t' | b'\r')) {
            let end = start + part.len();
            if part.is_empty() {
                // Spaces in a row.
            } else if self.is_plain(part) {
                if let Some(range) = kept.take() {
                    other(&text[range], ids)?;
                }
                self.plain(part, &mut word, ids);
            } else {
                kept = Some(kept.map_or(start, |range| range.start)..end);
            }
            start = end + 1;
        }
        kept.map_or(Ok(()), |range| other(&text[range], ids))
    }

    /// Whether a word is ASCII without characters that vanish, and holds no added token.
    fn is_plain(&self, word: &[u8]) -> bool {
        let mut begins_added = word.iter().map(|byte| self.begins_added[usize::from(*byte)]);
        word.iter().all(u8::is_ascii_graphic)
            && !(begins_added.any(|begins| begins) && self.added.is_match(word))
    }

    /// Adds the ids of what lies between two spaces.
    fn plain(&self, part: &[u8], word: &mut Vec<u8>, ids: &mut Vec<u32>) {
        word.clear();
        for byte in part {
            if byte.is_ascii_punctuation() {
                self.word(word, ids);
                self.word(&[*byte], ids);
                word.clear();
            } else {
                word.push(if self.lowercase { byte.to_ascii_lowercase() } else { *byte });
            }
        }
        self.word(word, ids);
    }

    /// Adds the ids of one word: the longest piece first, or unknown as a whole.
    fn word(&self, word: &[u8], ids: &mut Vec<u32>) {
        let before = ids.len();
        if word.len() > self.word_bytes_max {
            ids.push(self.unknown);
            return;
        }
        let mut rest = word;
        while !rest.is_empty() {
            let pieces = if rest.len() == word.len() { &self.first } else { &self.inner };
            let Some((end, id)) = pieces.longest(rest) else {
                ids.truncate(before);
                ids.push(self.unknown);
                return;
            };
            ids.push(id);
            rest = &rest[end..];
        }
    }
}
