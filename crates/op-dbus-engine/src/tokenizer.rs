//! Texts to token ids: the model's own tokenizer, with truncation done here, on token boundaries.

mod bounds;
mod cuts;
mod specials;
mod text;
mod tokens;
mod weight;
mod word_pieces;
mod words;
mod words_kept;

use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use crate::call::Truncate;
use bounds::Growth;
use cuts::Cuts;
use tokenizers::{Encoding, OffsetType};
pub use tokens::Piece;
use word_pieces::WordPieces;
use words::Words;

/// The largest tokenizer files of real models have some 35 MB.
const FILE_BYTES_MAX: usize = 64 << 20;

/// A text that is to be cut is first tokenized for this many bytes per token that the model reads:
/// a little more than plain English takes. Twice as many if that was not enough.
const BYTES_PER_TOKEN: usize = 6;

/// A model's tokenizer. Cheap to clone, usable from many threads at once.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    model: tokenizers::Tokenizer,
    /// Its pieces of words, where it has such.
    word_pieces: Option<WordPieces>,
    /// The same for plain words, where the model's kind of tokenizer is known.
    words: Option<Words>,
    /// Where a text may be cut before it is tokenized.
    cuts: Cuts,
    /// What the steps of the file may make of one byte.
    growth: Growth,
    /// Special tokens before and after each text, as the file's own post-processor puts them.
    prefix: Vec<i32>,
    suffix: Vec<i32>,
    max_input_tokens: usize,
    /// Its ids in order, found when ids are first given.
    vocabulary: OnceLock<Box<[u32]>>,
    /// What stands for words that are not in it, found when a text is first rebuilt.
    unknown: OnceLock<Option<String>>,
}

/// Why a tokenizer can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is larger than any real one.
    #[error("the tokenizer file has {bytes} bytes, the limit is {limit}; is it a tokenizer.json?")]
    TooBig {
        /// Bytes of the file.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// The file can't be parsed.
    #[error("the tokenizer file is damaged or of an unknown kind; install the model again")]
    Damaged(#[source] Box<dyn StdError + Send + Sync>),
    /// The file can be read but asks for something that the engine can't do.
    #[error("{0}")]
    Unsupported(String),
}

/// What became of one text: one window of tokens, or several under [`Truncate::Mean`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub windows: Vec<Window>,
    /// Whether the text has more tokens than the model reads.
    pub truncated: bool,
}

/// One row of a batch to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Token ids, special tokens included.
    pub ids: Box<[i32]>,
    /// Tokens of the text itself: the weight of this window in a mean.
    pub weight: u32,
}

/// Why a text has no encoding.
#[derive(Debug)]
pub(crate) enum EncodeError {
    TooLong {
        tokens: usize,
        limit: usize,
    },
    /// A token id that the model does not have. Those that it has are below `vocabulary`.
    Unknown {
        id: u32,
        vocabulary: u32,
    },
    Failed(String),
}

impl Tokenizer {
    /// Reads the content of a `tokenizer.json`. `max_input_tokens` is what the model reads at most,
    /// special tokens included; padding and truncation that the file asks for are ignored.
    ///
    /// # Errors
    /// A file that is too big, damaged, would make a text cost more than any real one does, or puts special
    /// tokens anywhere but around the text.
    pub fn from_bytes(json: &[u8], max_input_tokens: usize) -> Result<Self, TokenizerError> {
        if json.len() > FILE_BYTES_MAX {
            return Err(TokenizerError::TooBig { bytes: json.len(), limit: FILE_BYTES_MAX });
        }
        let read = || {
            let growth = bounds::check(json)?;
            let mut model =
                tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::Damaged)?;
            words_kept::none(&mut model)?;
            Ok((model, growth))
        };
        // The parser asserts in places; a hostile file must not end the process.
        let (model, growth) = catch_unwind(read)
            .map_err(|_| TokenizerError::Damaged("the parser panicked".into()))??;
        let cuts = Cuts::of(&model);
        Self::with_model(model, cuts, growth, max_input_tokens)
    }

    fn with_model(
        mut model: tokenizers::Tokenizer,
        cuts: Cuts,
        growth: Growth,
        max_input_tokens: usize,
    ) -> Result<Self, TokenizerError> {
        model.with_padding(None);
        model.with_truncation(None).map_err(TokenizerError::Damaged)?;
        let (prefix, suffix) = specials::of(&model)?;
        let specials = prefix.len() + suffix.len();
        if max_input_tokens <= specials {
            return Err(TokenizerError::Unsupported(format!(
                "it puts {specials} special tokens around each text and the model reads \
                 {max_input_tokens} tokens, so that none of a text is left: import it with a larger \
                 max_seq_length, or --max-input-tokens of a graph"
            )));
        }
        if let Some(id) = prefix.iter().chain(&suffix).find(|id| !has_id(&model, **id)) {
            return Err(TokenizerError::Unsupported(format!(
                "it puts the token id {id} around each text, which its vocabulary does not have"
            )));
        }
        let (word_pieces, words) = (WordPieces::of(&model), Words::of(&model));
        let (vocabulary, unknown) = (OnceLock::new(), OnceLock::new());
        Ok(Self(Arc::new(Inner {
            model,
            word_pieces,
            words,
            cuts,
            growth,
            prefix,
            suffix,
            max_input_tokens,
            vocabulary,
            unknown,
        })))
    }

    /// The simulator's tokenizer: one token per byte between two special tokens.
    ///
    /// # Panics
    /// If `max_input_tokens` is below 3: no text would fit.
    pub fn bytes(max_input_tokens: usize) -> Self {
        let letters = (0..=u8::MAX).map(byte_letter);
        let mut vocabulary: serde_json::Map<String, serde_json::Value> =
            letters.enumerate().map(|(id, letter)| (letter.to_string(), id.into())).collect();
        vocabulary.insert("<s>".into(), 256.into());
        vocabulary.insert("</s>".into(), 257.into());
        let special =
            |name: &str, id: u32| serde_json::json!({"id": name, "ids": [id], "tokens": [name]});
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "decoder": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": false, "use_regex": false},
            "post_processor": {"type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": special("<s>", 256), "</s>": special("</s>", 257)}},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "byte_fallback": false, "vocab": vocabulary, "merges": []},
        });
        tokenizers::Tokenizer::from_bytes(json.to_string().as_bytes())
            .map_err(TokenizerError::Damaged)
            .and_then(|mut model| {
                words_kept::none(&mut model)?;
                Self::with_model(model, Cuts::Characters, Growth::NONE, max_input_tokens)
            })
            .expect("the byte tokenizer is valid for three tokens and more")
    }

    /// Tokens that the model reads at most, special tokens included.
    pub fn max_input_tokens(&self) -> usize {
        self.0.max_input_tokens
    }

    /// Token ids of a text, special tokens included, cut at the end to what the model reads.
    ///
    /// # Errors
    /// The file's rules can't encode this text.
    pub fn ids(&self, text: &str) -> Result<Vec<i32>, TokenizerError> {
        let encoded = self.encode(text, Truncate::End).map_err(|error| match error {
            EncodeError::Failed(reason) => TokenizerError::Damaged(reason.into()),
            EncodeError::TooLong { .. } | EncodeError::Unknown { .. } => {
                TokenizerError::Damaged("a cut text is too long".into())
            }
        })?;
        Ok(encoded.windows.into_iter().next().map(|window| window.ids.into()).unwrap_or_default())
    }

    /// Special tokens around each text.
    pub(crate) fn specials(&self) -> usize {
        self.0.prefix.len() + self.0.suffix.len()
    }

    /// Tokens of `text` before truncation, special tokens included.
    pub(crate) fn count(&self, text: &str) -> Result<usize, EncodeError> {
        Ok(self.content(text)?.len() + self.specials())
    }

    /// Makes the rows of a text. Of one that is cut, no more is tokenized than it takes to know what
    /// stays, unless the caller is to be told of all its tokens.
    pub(crate) fn encode(&self, text: &str, truncate: Truncate) -> Result<Encoded, EncodeError> {
        let room = self.room();
        let content = match truncate {
            Truncate::End => self.enough(text, room, |at| self.0.cuts.head(text, at))?,
            Truncate::Start => {
                self.enough(text, room, |at| self.0.cuts.tail(text, text.len() - at))?
            }
            Truncate::Error | Truncate::Mean => self.content(text)?,
        };
        self.fit(&content, truncate)
    }

    /// Tokens of a text that the model reads beside the special tokens.
    fn room(&self) -> usize {
        // Positive: checked when the tokenizer was made.
        self.0.max_input_tokens - self.specials()
    }

    /// The rows of a text of these tokens.
    fn fit(&self, content: &[u32], truncate: Truncate) -> Result<Encoded, EncodeError> {
        let (room, limit) = (self.room(), self.0.max_input_tokens);
        let truncated = content.len() > room;
        let windows = match truncate {
            _ if !truncated => vec![self.window(content)?],
            Truncate::Error => {
                let tokens = content.len() + self.specials();
                return Err(EncodeError::TooLong { tokens, limit });
            }
            Truncate::End => vec![self.window(&content[..room])?],
            Truncate::Start => vec![self.window(&content[content.len() - room..])?],
            Truncate::Mean => {
                content.chunks(room).map(|part| self.window(part)).collect::<Result<_, _>>()?
            }
        };
        Ok(Encoded { windows, truncated })
    }

    /// Tokens of the text, or of a part of it that has more than there is room for.
    fn enough<'a>(
        &self,
        text: &'a str,
        room: usize,
        part: impl Fn(usize) -> &'a str,
    ) -> Result<Vec<u32>, EncodeError> {
        let mut bytes = room.saturating_mul(BYTES_PER_TOKEN);
        while bytes < text.len() {
            let part = part(bytes);
            let content = self.content(part)?;
            if content.len() > room || part.len() == text.len() {
                return Ok(content);
            }
            bytes = part.len().saturating_mul(2);
        }
        self.content(text)
    }

    fn content(&self, text: &str) -> Result<Vec<u32>, EncodeError> {
        // More than English takes: a vector that grows is copied.
        let mut ids = Vec::with_capacity(text.len() / 3 + 8);
        match &self.0.words {
            Some(words) => words.encode(text, &mut ids, |part, ids| self.model(part, ids))?,
            None => self.model(text, &mut ids)?,
        }
        Ok(ids)
    }

    /// Adds what the model's own tokenizer makes of a text, of one part of it after the other: each takes hundreds
    /// of times as much memory.
    fn model(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), EncodeError> {
        self.check(text)?;
        let mut rest = text;
        loop {
            let part = self.0.cuts.head(rest, self.part_bytes());
            ids.extend_from_slice(self.encoded(part, OffsetType::None, false)?.get_ids());
            rest = &rest[part.len()..];
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Refuses a text that grows too much on its way.
    fn check(&self, text: &str) -> Result<(), EncodeError> {
        let Inner { model, growth, .. } = &*self.0;
        guarded(|| bounds::check_text(model.get_normalizer(), *growth, text))
    }

    /// What becomes of a text that was [checked](Self::check), with or without the special tokens around it. It is
    /// for the caller to see that no other is under way where [it takes much memory](Self::is_heavy).
    fn encoded(
        &self,
        text: &str,
        offsets: OffsetType,
        specials: bool,
    ) -> Result<Encoding, EncodeError> {
        let Inner { model, word_pieces, .. } = &*self.0;
        guarded(|| {
            let encoding = match (word_pieces, offsets) {
                (Some(pieces), _) => pieces.encode(model, text, offsets, specials),
                (None, OffsetType::None) => model.encode_fast(text, specials),
                (None, OffsetType::Char) => model.encode_char_offsets(text, specials),
                (None, OffsetType::Byte) => model.encode(text, specials),
            };
            encoding.map_err(|error| error.to_string())
        })
    }

    fn window(&self, content: &[u32]) -> Result<Window, EncodeError> {
        let Inner { prefix, suffix, .. } = &*self.0;
        let mut ids = Vec::with_capacity(prefix.len() + content.len() + suffix.len());
        ids.extend_from_slice(prefix);
        for id in content {
            ids.push(token_id(*id).map_err(EncodeError::Failed)?);
        }
        ids.extend_from_slice(suffix);
        if ids.is_empty() {
            // Only without special tokens: a row needs one token at least, and 0 always exists.
            ids.push(0);
        }
        let weight = u32::try_from(content.len()).unwrap_or(u32::MAX);
        Ok(Window { ids: ids.into(), weight })
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("max_input_tokens", &self.0.max_input_tokens)
            .finish_non_exhaustive()
    }
}

/// The letter that byte-level tokenizers write for a byte: itself where it can be seen, else a
/// letter from 256 on, in order.
fn byte_letter(byte: u8) -> char {
    let visible = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if visible(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !visible(*other)).count();
    u32::try_from(before).ok().and_then(|n| char::from_u32(256 + n)).unwrap_or('?')
}

fn token_id(id: u32) -> Result<i32, String> {
    i32::try_from(id).map_err(|_| format!("token id {id} is beyond 2³¹; the file is damaged"))
}

/// A panic of the library is the end of a text, not of who asks.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, EncodeError> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the tokenizer panicked".to_owned()))
        .map_err(EncodeError::Failed)
}

fn has_id(model: &tokenizers::Tokenizer, id: i32) -> bool {
    u32::try_from(id).is_ok_and(|id| model.id_to_token(id).is_some())
}

#[cfg(test)]
mod tests;
