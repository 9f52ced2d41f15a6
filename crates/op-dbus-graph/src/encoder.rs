//! One description for all encoders: what is computed, with nothing said of layout or precision.
//!
//! Everything is borrowed from the model's files: reading a model copies no weights.

use serde::{Deserialize, Serialize};

/// A table of 32-bit floats, borrowed from the weights file as little-endian bytes. A vector is a
/// table of one row.
///
/// The bytes lie where the file has them, so nothing can be said of their alignment.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    columns: usize,
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// A table with this many columns; the rows follow from the bytes, of which an incomplete last
    /// row is ignored.
    pub fn new(columns: usize, bytes: &'a [u8]) -> Self {
        Self { columns, bytes }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len().checked_div(self.columns * 4).unwrap_or(0)
    }

    /// Number of values in a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All values as little-endian 32-bit floats, row after row.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The rows from `first` on; none if there are fewer.
    #[must_use]
    pub fn skip_rows(&self, first: usize) -> Self {
        let start = first.saturating_mul(self.columns * 4).min(self.bytes.len());
        Self { columns: self.columns, bytes: &self.bytes[start..] }
    }

    /// The row `row` as a table of its own; an empty one if there is no such row.
    #[must_use]
    pub fn only_row(&self, row: usize) -> Self {
        let rest = self.skip_rows(row).bytes;
        Self { columns: self.columns, bytes: &rest[..rest.len().min(self.columns * 4)] }
    }

    /// All values, row after row.
    pub fn values(&self) -> impl Iterator<Item = f32> + use<'a> {
        let value = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
        self.bytes.as_chunks::<4>().0.iter().map(value)
    }

    /// The values of one row; none if there is no such row.
    pub fn row(&self, row: usize) -> impl Iterator<Item = f32> + use<'a> {
        self.only_row(row).values()
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
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// `[outputs, inputs]`.
    pub weight: Tensor<'a>,
    /// `[outputs]`.
    pub bias: Tensor<'a>,
}

/// Layer normalisation over the hidden dimension: to mean 0 and variance 1 (with
/// [`Encoder::epsilon`] added to the variance), then times `scale`, plus `shift`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// `[hidden]`.
    pub scale: Tensor<'a>,
    /// `[hidden]`.
    pub shift: Tensor<'a>,
}

/// One block: attention and a feed-forward network, each followed by a norm over its sum with its
/// own input.
#[derive(Clone, Copy, Debug)]
pub struct Layer<'a> {
    /// `[hidden, hidden]`; head h has the rows from `h * hidden / heads` on, as in `key` and
    /// `value`. The scores are divided by the square root of a head's width.
    pub query: Linear<'a>,
    /// `[hidden, hidden]`.
    pub key: Linear<'a>,
    /// `[hidden, hidden]`.
    pub value: Linear<'a>,
    /// `[hidden, hidden]`: from the heads, side by side, back to the hidden dimension.
    pub output: Linear<'a>,
    /// Over the sum of `output` and the block's input.
    pub attention_norm: Norm<'a>,
    /// `[inner, hidden]`, followed by [`Encoder::activation`].
    pub up: Linear<'a>,
    /// `[hidden, inner]`.
    pub down: Linear<'a>,
    /// Over the sum of `down` and what `attention_norm` gave.
    pub output_norm: Norm<'a>,
}

/// What lies between the two products of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by its approximation with tanh.
    GeluTanh,
    /// The larger of 0 and the value.
    Relu,
}

/// A bias on the attention scores that depends on how far apart two tokens are. It is added after
/// the scores were divided by the square root of a head's width.
#[derive(Clone, Debug)]
pub struct RelativeBias {
    /// Distances beyond ± this have the bias of ± this.
    pub reach: usize,
    /// `[heads][2 * reach + 1]`, from key far before the query to key far behind it.
    pub values: Vec<Vec<f32>>,
}

impl RelativeBias {
    /// The bias of `head` where the key lies `distance` tokens behind the query.
    pub fn at(&self, head: usize, distance: isize) -> f32 {
        let reach = self.reach.cast_signed();
        let index = distance.clamp(-reach, reach) + reach;
        self.values[head][index.cast_unsigned()]
    }
}

/// What follows the product of a [`Dense`] module. sentence-transformers names them by their
/// `torch.nn` class, made with its default settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DenseActivation {
    /// The value itself (`Identity`).
    Identity,
    /// Hyperbolic tangent (`Tanh`).
    Tanh,
    /// The larger of 0 and the value (`ReLU`).
    Relu,
    /// GELU by the error function (`GELU`).
    Gelu,
    /// `1 / (1 + exp(-x))` (`Sigmoid`).
    Sigmoid,
    /// `x / (1 + exp(-x))` (`SiLU`).
    Silu,
}

/// A module between pooling and normalisation: `activation(x · linearᵀ + bias)`.
#[derive(Clone, Copy, Debug)]
pub struct Dense<'a> {
    /// `[outputs, inputs]`; the inputs are the hidden dimension or the outputs of the module
    /// before.
    pub linear: Tensor<'a>,
    /// `[outputs]`.
    pub bias: Option<Tensor<'a>>,
    /// What follows the product.
    pub activation: DenseActivation,
}

/// The token that batches are padded with in training. Where a text spells it out it is a token like any
/// other but for its position, and those behind it are counted as if it were not there.
#[derive(Clone, Copy, Debug)]
pub struct Padding<'a> {
    /// Its id.
    pub id: usize,
    /// `[hidden]`: the row of the position table that it takes wherever it stands.
    pub position: Tensor<'a>,
}

/// A whole encoder: token ids to token vectors, and the modules that a pooled vector goes through.
///
/// All shapes have been checked against the configuration: what a field's comment says of them
/// holds, and `heads` divides `hidden`.
#[derive(Clone, Debug)]
pub struct Encoder<'a> {
    /// Width of a token's vector.
    pub hidden: usize,
    /// Attention heads.
    pub heads: usize,
    /// Added to the variance by every norm.
    pub epsilon: f32,
    /// Between the products of every feed-forward network.
    pub activation: Activation,
    /// `[vocabulary, hidden]`.
    pub words: Tensor<'a>,
    /// `[positions, hidden]`; row 0 is that of a text's first token. A text may have as many tokens
    /// as there are rows.
    pub positions: Tensor<'a>,
    /// In families that find positions by token ids.
    pub padding: Option<Padding<'a>>,
    /// `[token types, hidden]`; row 0, that of the only type which a single text has, is added to
    /// every token.
    pub token_type: Option<Tensor<'a>>,
    /// Over the sum of word, position and token type.
    pub embedding_norm: Norm<'a>,
    /// In the order in which they are applied.
    pub layers: Vec<Layer<'a>>,
    /// Shared by all layers.
    pub relative_bias: Option<RelativeBias>,
    /// Applied to the pooled vector in this order, before it is normalised.
    pub dense: Vec<Dense<'a>>,
}

impl Encoder<'_> {
    /// Numbers in a text's vector.
    pub fn dimensions(&self) -> usize {
        self.dense.last().map_or(self.hidden, |dense| dense.linear.rows())
    }
}
