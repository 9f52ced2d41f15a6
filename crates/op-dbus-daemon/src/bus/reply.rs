//! Replies: how large they will be, and vectors in the form that each method answers with.

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;

use op_dbus_api::{Error, ErrorName, INLINE_REPLY_BYTES_MAX, Info, cosine};
use op_dbus_engine::{Piece, Reply};
use serde::{Serialize, Serializer};
use zbus::{Signature, Type, Variant};

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

/// A vector as doubles, which are made of what was computed where they are written and nowhere before.
pub struct Doubles<T>(T);

impl<T> Type for Doubles<T> {
    const SIGNATURE: &'static Signature = <Vec<f64> as Type>::SIGNATURE;
}

impl<T: AsRef<[f32]>> Serialize for Doubles<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.as_ref().iter().map(|x| f64::from(*x)))
    }
}

/// Vectors as [`Doubles`].
pub struct AllDoubles {
    vectors: Vec<f32>,
    dimensions: usize,
}

impl Type for AllDoubles {
    const SIGNATURE: &'static Signature = <Vec<Vec<f64>> as Type>::SIGNATURE;
}

impl Serialize for AllDoubles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.vectors.chunks_exact(self.dimensions.max(1));
        serializer.collect_seq(rows.map(Doubles))
    }
}

/// Vectors as bytes, row-major.
pub enum Packed {
    /// As they were computed, and where they lie since.
    AsComputed(Vec<f32>),
    /// Made of them.
    Encoded(Vec<u8>),
}

impl Packed {
    fn new(vectors: Vec<f32>, dimensions: usize, encoding: Encoding) -> Self {
        let encoded = match encoding.bytes(&vectors, dimensions) {
            Cow::Borrowed(_) => None,
            Cow::Owned(bytes) => Some(bytes),
        };
        encoded.map_or(Self::AsComputed(vectors), Self::Encoded)
    }
}

impl Type for Packed {
    const SIGNATURE: &'static Signature = <Vec<u8> as Type>::SIGNATURE;
}

impl Serialize for Packed {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: &[u8] = match self {
            Self::AsComputed(vectors) => bytemuck::cast_slice(vectors),
            Self::Encoded(bytes) => bytes,
        };
        serializer.serialize_bytes(bytes)
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

    /// The vector of the only text.
    pub fn only(self) -> Doubles<Vec<f32>> {
        Doubles(self.reply.vectors)
    }

    /// A vector for each text.
    pub fn doubles(self) -> AllDoubles {
        let Reply { vectors, dimensions, .. } = self.reply;
        AllDoubles { vectors, dimensions }
    }

    /// Bytes, rows, dimensions, information.
    pub fn packed(mut self, encoding: Encoding) -> (Packed, u32, u32, Info) {
        let (vectors, dimensions) = (mem::take(&mut self.reply.vectors), self.reply.dimensions);
        let packed = Packed::new(vectors, dimensions, encoding);
        (packed, wire(self.reply.rows), wire(dimensions), self.info())
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
    use zbus::wire::serialized::Context;
    use zbus::wire::{LE, to_bytes};

    use super::*;
    use crate::bus::encoding::NAMES;

    const VECTORS: [f32; 6] = [0.5, -1.0, 0.0, 1e-3, -2e-3, 3e-3];

    /// What a value is on the wire.
    fn written<T: Serialize + Type>(value: &T) -> (&'static Signature, Vec<u8>) {
        let bytes = to_bytes(Context::new(LE, 0), value).unwrap();
        (T::SIGNATURE, bytes.to_vec())
    }

    #[test]
    fn vectors_are_written_as_arrays_of_their_elements() {
        let rows: Vec<Vec<f64>> =
            VECTORS.chunks(3).map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect();
        assert_eq!(written(&Doubles(&VECTORS[..3])), written(&rows[0]));
        let all = |vectors: &[f32]| AllDoubles { vectors: vectors.to_vec(), dimensions: 3 };
        assert_eq!(written(&all(&VECTORS)), written(&rows));
        assert_eq!(written(&all(&[])), written(&Vec::<Vec<f64>>::new()));
        for (name, encoding) in NAMES {
            let packed = Packed::new(VECTORS.to_vec(), 3, encoding);
            let bytes = encoding.bytes(&VECTORS, 3).into_owned();
            assert_eq!(written(&packed), written(&bytes), "{name}");
            let none = Packed::new(Vec::new(), 3, encoding);
            assert_eq!(written(&none), written(&Vec::<u8>::new()), "{name}");
        }
    }

    #[test]
    fn vectors_as_they_were_computed_are_not_copied() {
        let vectors = VECTORS.to_vec();
        let computed = vectors.as_ptr();
        let packed = Packed::new(vectors, 3, Encoding::F32);
        assert!(matches!(&packed, Packed::AsComputed(kept) if kept.as_ptr() == computed));
    }

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
