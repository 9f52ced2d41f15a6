//! Replies: how large they will be, and vectors in the form that each method answers with.

use std::collections::HashMap;

use op_dbus_api::{Error, ErrorName, INLINE_REPLY_BYTES_MAX, Info, cosine};
use op_dbus_engine::{Piece, Reply};
use serde_bytes::ByteBuf;
use zbus::Variant;

use super::encoding::Encoding;
use crate::service::Served;

/// A dictionary `a{sv}` of ours.
pub type Dictionary = HashMap<&'static str, Variant<'static>>;

/// How a method answers, for the size of its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Arrays of doubles.
    Doubles,
    /// Bytes of elements of this type.
    Packed(Encoding),
    /// Likewise for token ids, which no other method takes.
    OfTokens(Encoding),
    /// This many indices with their cosines.
    Ranks(usize),
}

impl Form {
    /// Whether the reply has a place for what is to be told beside the vectors.
    pub const fn has_info(self) -> bool {
        matches!(self, Self::Packed(_) | Self::OfTokens(_))
    }

    /// Bytes of a reply. One that can't be sent inline is refused, before anything is computed.
    ///
    /// # Errors
    /// `TooLarge`.
    pub fn check(self, rows: usize, dimensions: usize) -> Result<usize, Error> {
        let limit = INLINE_REPLY_BYTES_MAX as usize;
        let row = match self {
            // Each row has its length and padding before it.
            Self::Doubles => 8 * dimensions + 8,
            Self::Packed(encoding) | Self::OfTokens(encoding) => encoding.row_bytes(dimensions),
            Self::Ranks(_) => 16,
        };
        let advice = match self {
            Self::Ranks(_) => "ask for fewer, or rank in several calls",
            Self::OfTokens(_) => "send fewer lists in a call",
            Self::Doubles if Self::Packed(Encoding::F32).check(rows, dimensions).is_ok() => {
                "use EmbedPacked, or send fewer texts in a call"
            }
            Self::Doubles | Self::Packed(_) => "use EmbedToFd, or send fewer texts in a call",
        };
        let rows = match self {
            Self::Ranks(count) => count,
            Self::Doubles | Self::Packed(_) | Self::OfTokens(_) => rows,
        };
        let found = rows.saturating_mul(row);
        if found <= limit {
            return Ok(found);
        }
        let fit = limit / row.max(1);
        let message = format!(
            "the reply would be {found} bytes for {rows} rows, the limit is {limit} ({fit} rows); \
             {advice}"
        );
        Err(Error::new(ErrorName::TooLarge, message))
    }
}

/// Vectors and the model that made them.
pub struct Embedded {
    /// What the engine answered.
    pub reply: Reply,
    /// The model.
    pub served: std::sync::Arc<Served>,
}

impl Embedded {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.reply.vectors.chunks_exact(self.reply.dimensions.max(1))
    }

    /// A vector of doubles for each text.
    pub fn doubles(&self) -> Vec<Vec<f64>> {
        self.rows().map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect()
    }

    /// Row-major bytes, rows, dimensions, information.
    pub fn packed(self, encoding: Encoding) -> (ByteBuf, u32, u32, Info) {
        let bytes = encoding.bytes(&self.reply.vectors, self.reply.dimensions).into_owned();
        let (rows, dimensions) = (wire(self.reply.rows), wire(self.reply.dimensions));
        (ByteBuf::from(bytes), rows, dimensions, self.info())
    }

    /// Cosine of the first vector with each of the others.
    pub fn cosines(&self) -> Vec<f64> {
        let mut rows = self.rows();
        let first = rows.next().unwrap_or_default();
        rows.map(|row| cosine(first, row)).collect()
    }

    /// How the vectors came to be.
    pub fn info(self) -> Info {
        let Self { reply, served } = self;
        Info {
            space: served.space_in(&reply.precision),
            level: served.choice.level().map_or("", |level| level.as_str()).to_owned(),
            model: served.model.clone(),
            dimensions: wire(reply.dimensions),
            provider: reply.provider,
            device: reply.device,
            precision: reply.precision,
            tokens: reply.tokens,
            truncated: reply.truncated,
            truncated_count: None,
            cached: wire(reply.cached),
            queue_us: reply.queue_us,
            compute_us: reply.compute_us,
        }
    }
}

/// A token as `Tokenize` tells it: id, piece or what it covers, whether it is special, and its bytes in the text.
pub type Token = (u32, String, bool, u32, u32);

/// Four numbers, the length of the piece and its end, and what aligns them.
const TOKEN_BYTES: usize = 28;
/// How many times the memory that tokens have in a reply they take before they are there: each has a string of its own.
pub const TOKEN_HELD: usize = 4;

/// What a reply with the tokens of so many texts, of so many bytes together with their prompts, has at most.
pub fn token_bytes_max(texts: usize, bytes: usize) -> usize {
    // A token for each byte, and two around each text.
    let tokens = bytes.saturating_add(texts.saturating_mul(2));
    tokens.saturating_mul(TOKEN_BYTES + 1).min(INLINE_REPLY_BYTES_MAX as usize)
}

/// Bytes of the tokens of texts.
///
/// # Errors
/// `TooLarge` when they can't be sent inline.
pub fn token_bytes(texts: &[Vec<Token>]) -> Result<usize, Error> {
    let bytes = |(_, piece, ..): &Token| TOKEN_BYTES + piece.len();
    let found: usize = texts.iter().flatten().map(bytes).sum();
    let limit = INLINE_REPLY_BYTES_MAX as usize;
    if found > limit {
        let message = format!(
            "the reply would be {found} bytes for {} tokens, the limit is {limit}; send less text in \
             a call",
            texts.iter().map(Vec::len).sum::<usize>()
        );
        return Err(Error::new(ErrorName::TooLarge, message));
    }
    Ok(found)
}

/// The tokens of each text, by their pieces or by what they cover.
pub fn tokens(texts: Vec<Vec<Piece>>, by_covered: bool) -> Vec<Vec<Token>> {
    let token = |token: Piece| {
        let Piece { id, piece, covered, special, start, end } = token;
        let text = covered.filter(|_| by_covered).map_or(piece, String::from);
        (id, text, special, wire(start), wire(end))
    };
    texts.into_iter().map(|pieces| pieces.into_iter().map(token).collect()).collect()
}

/// The best `count` of `cosines`, best first; of equals the first.
pub fn best(cosines: &[f64], count: u32) -> Vec<(u32, f64)> {
    let mut ranks: Vec<(u32, f64)> = (0..).zip(cosines.iter().copied()).collect();
    ranks.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    ranks.truncate(count as usize);
    ranks
}

/// A count as the wire has it. Counts that are sent are far below the limit of the type.
pub fn wire(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_that_is_too_large_is_refused_with_what_fits() {
        assert_eq!(Form::Packed(Encoding::F32).check(10_922, 384), Ok(10_922 * 1536));
        let error = Form::Packed(Encoding::F32).check(10_923, 384).unwrap_err();
        assert_eq!(error.name(), ErrorName::TooLarge);
        assert_eq!(
            error.message(),
            "the reply would be 16777728 bytes for 10923 rows, the limit is 16777216 (10922 \
             rows); use EmbedToFd, or send fewer texts in a call"
        );
        assert_eq!(Form::Packed(Encoding::B1).check(32 * 10_922, 384), Ok(32 * 10_922 * 48));
        assert!(Form::Packed(Encoding::I8).check(4 * 10_923, 384).is_err());
        let error = Form::Doubles.check(16_384, 384).unwrap_err();
        assert!(error.message().contains("EmbedToFd"), "{error}");
        let error = Form::Doubles.check(10_922, 384).unwrap_err();
        assert!(error.message().contains("EmbedPacked"), "{error}");
        assert_eq!(Form::Ranks(10).check(20_000, 768), Ok(160));
    }

    #[test]
    fn ranks_are_best_first_and_stable() {
        assert_eq!(best(&[0.1, 0.9, 0.5, 0.9], 3), [(1, 0.9), (3, 0.9), (2, 0.5)]);
        assert_eq!(best(&[0.1], 0), []);
        assert_eq!(best(&[f64::NAN, 0.2], 5).len(), 2);
    }
}
