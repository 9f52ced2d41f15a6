//! One description for all encoders: what is computed, with nothing said of layout or precision.

/// A table of 32-bit floats, borrowed from the weights file as little-endian bytes. A vector is a
/// table of one row.
#[derive(Clone, Copy)]
pub(crate) struct Tensor<'a> {
    columns: usize,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// A table with this many columns; the rows follow from the bytes.
    pub(crate) fn new(columns: usize, bytes: &'a [u8]) -> Self {
        Self { columns, bytes }
    }

    pub(crate) fn rows(&self) -> usize {
        self.bytes.len().checked_div(self.columns * 4).unwrap_or(0)
    }

    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The rows from `first` on.
    pub(crate) fn skip_rows(&self, first: usize) -> Self {
        let start = (first * self.columns * 4).min(self.bytes.len());
        Self { columns: self.columns, bytes: &self.bytes[start..] }
    }

    /// All values, row after row.
    pub(crate) fn values(&self) -> impl Iterator<Item = f32> + use<'a> {
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        self.bytes.as_chunks::<4>().0.iter().map(value)
    }

    /// The values of one row.
    pub(crate) fn row(&self, row: usize) -> impl Iterator<Item = f32> + use<'a> {
        self.skip_rows(row).values().take(self.columns)
    }

    /// The bytes with rows and columns changed over.
    pub(crate) fn transposed(&self) -> Vec<u8> {
        transpose(self.bytes, self.rows(), self.columns)
    }
}

/// Changes rows and columns of a table of 4-byte elements.
pub(crate) fn transpose(bytes: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let elements = bytes.as_chunks::<4>().0;
    let mut out = Vec::with_capacity(bytes.len());
    for column in 0..columns {
        for row in 0..rows {
            out.extend_from_slice(&elements[row * columns + column]);
        }
    }
    out
}

/// `x · weightᵀ + bias`.
pub(crate) struct Linear<'a> {
    /// `[outputs, inputs]`.
    pub weight: Tensor<'a>,
    /// `[outputs]`.
    pub bias: Tensor<'a>,
}

/// Layer normalisation over the hidden dimension.
pub(crate) struct Norm<'a> {
    pub scale: Tensor<'a>,
    pub shift: Tensor<'a>,
}

/// One block: attention and a feed-forward network, each followed by a norm over its sum with its
/// own input.
pub(crate) struct Layer<'a> {
    pub query: Linear<'a>,
    pub key: Linear<'a>,
    pub value: Linear<'a>,
    pub output: Linear<'a>,
    pub attention_norm: Norm<'a>,
    pub up: Linear<'a>,
    pub down: Linear<'a>,
    pub output_norm: Norm<'a>,
}

/// What lies between the two products of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by its approximation with tanh.
    GeluTanh,
    Relu,
}

/// A bias on the attention scores that depends on how far apart two tokens are.
pub(crate) struct RelativeBias {
    /// Distances beyond ± this have the bias of ± this.
    pub reach: usize,
    /// `[heads][2 * reach + 1]`, from key far before the query to key far behind it.
    pub values: Vec<Vec<f32>>,
}

impl RelativeBias {
    /// The bias of `head` where the key lies `distance` tokens behind the query.
    pub(crate) fn at(&self, head: usize, distance: isize) -> f32 {
        let reach = self.reach.cast_signed();
        let index = distance.clamp(-reach, reach) + reach;
        self.values[head][index.cast_unsigned()]
    }
}

/// A whole encoder: token ids to token vectors.
pub(crate) struct Encoder<'a> {
    pub hidden: usize,
    pub heads: usize,
    /// Added to the variance by every norm.
    pub epsilon: f32,
    pub activation: Activation,
    /// `[vocabulary, hidden]`.
    pub words: Tensor<'a>,
    /// `[positions, hidden]`; row 0 is that of a text's first token.
    pub positions: Tensor<'a>,
    /// Added to every token: the row of the only token type that a single text has.
    pub token_type: Option<Tensor<'a>>,
    pub embedding_norm: Norm<'a>,
    pub layers: Vec<Layer<'a>>,
    pub relative_bias: Option<RelativeBias>,
}
