//! The model compiler of op-dbus: the weights of a sentence-transformers model in, an ONNX graph
//! written for what will run it out.
//!
//! The way of a model: a [family](Family) reads `config.json` and the tensors into one description
//! of the [encoder] that knows nothing of operators and precisions ([`read`], which is also what an
//! engine with kernels of its own begins with); a lowering writes that description for a
//! [`Target`], with pooling and normalisation inside the graph ([`compile`]). A new family adds a
//! reader, a new precision or set of operators adds to the lowering, and neither sees the other.
//!
//! No runtime is linked: bytes in, bytes out. Every byte of the input may be hostile; whatever is
//! wrong with it comes back as an [`Error`], which names the tensor or the key where one is to blame.

pub mod cache;
mod dense;
pub mod encoder;
mod error;
pub mod export;
mod families;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod inspect;
pub mod kept;
mod lower;
mod onnx;
#[cfg(test)]
mod tests;
mod weights;

use serde::{Deserialize, Serialize};

pub use encoder::Encoder;
pub use error::Error;
pub use lower::products;

/// Version of the compiler's output. A cached graph of another version is never loaded.
pub const COMPILER_VERSION: u32 = 4;

/// What a graph without padding calls the id of the token that positions are counted without, in its metadata.
pub const PADDING_ID: &str = "op-dbus.padding_id";

/// Encoder architecture of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT: absolute positions from 0, token types.
    Bert,
    /// MPNet: absolute positions from 2 and a relative position bias shared by all layers.
    Mpnet,
    /// RoBERTa, XLM-RoBERTa and CamemBERT: as BERT, with absolute positions from behind the
    /// padding's.
    Roberta,
    /// DistilBERT: as BERT, under other names and without token types.
    Distilbert,
}

/// How the token vectors of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pooling {
    /// Mean over the text's own tokens.
    Mean,
    /// The first token's vector.
    Cls,
    /// Largest value of each dimension over the text's own tokens.
    Max,
}

/// Precision of the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// 32-bit floating point throughout.
    F32,
    /// Products of 16-bit floats: word vectors, weights and what is multiplied with them. Sums,
    /// norms, the softmax and the pooling are 32-bit floats, and so is the result. With
    /// [`Dialect::Packed`] what goes from one layer to the next has 16 bits as well.
    F16,
}

/// Operators that the graph may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    /// Those of ONNX and ONNX Runtime's own `com.microsoft` domain.
    OnnxRuntime,
    /// As `OnnxRuntime`, with those for batches without padding, which its CUDA provider has.
    Packed,
    /// Those of ONNX alone, for providers that lack the others.
    Onnx,
}

/// What will run the graph. Every row of a batch has the length of its longest one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Precision of the arithmetic.
    pub precision: Precision,
    /// Operators that the graph may use.
    pub dialect: Dialect,
}

/// The files of a model.
#[derive(Clone, Debug)]
pub struct ModelFiles<'a> {
    /// Encoder architecture.
    pub family: Family,
    /// The model's own `config.json`.
    pub config: &'a serde_json::Value,
    /// The model's own `model.safetensors`.
    pub weights: &'a [u8],
    /// The Dense modules between pooling and normalisation, in their order.
    pub dense: Vec<DenseFiles<'a>>,
}

/// The files of one Dense module.
#[derive(Clone, Copy, Debug)]
pub struct DenseFiles<'a> {
    /// The module's `config.json`.
    pub config: &'a serde_json::Value,
    /// The module's `model.safetensors`.
    pub weights: &'a [u8],
}

/// What a compiled graph computes beside the model's own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Recipe {
    /// How token vectors become one vector.
    pub pooling: Pooling,
    /// Whether the graph ends in a division by the vector's length.
    pub normalize: bool,
    /// Longest row the graph must take, in tokens, special tokens included; at least 1.
    pub max_input_tokens: usize,
    /// What will run the graph.
    pub target: Target,
}

/// Reads the description of the encoder in `files`, in which the weights stay where they are.
///
/// # Errors
/// A tensor that is missing or of the wrong shape or type (named), a damaged file, or a model whose
/// configuration is not supported (with what was found and what is supported).
pub fn read<'a>(files: &ModelFiles<'a>) -> Result<Encoder<'a>, Error> {
    let weights = weights::Weights::parse(files.weights)?;
    let mut encoder = families::read(files.family, files.config, &weights)?;
    dense::read(&mut encoder, &files.dense)?;
    Ok(encoder)
}

/// Looks at the configurations of a model and of its Dense modules, in their order, and at no weights.
///
/// # Errors
/// Those of [`read`] that need no tensors.
pub fn check(
    family: Family,
    config: &serde_json::Value,
    dense: &[serde_json::Value],
) -> Result<(), Error> {
    dense::check(dense, families::width(family, config)?)
}

/// Compiles the model in `files` by `recipe`.
///
/// The graph takes `input_ids` (int32, `[batch, sequence]`) and `lengths` (int32, `[batch]`: real
/// tokens of each row, at least 1) and gives `embedding` (f32, `[batch, dimensions]`). Ids in the
/// padding must be valid token ids; they do not change the result.
///
/// Without padding ([`Dialect::Packed`]) `input_ids` is `[tokens]`, and there are three inputs more, all int32:
/// `position_ids`, `[tokens]`, the place of each token in its row; `cumulative_lengths`, `[batch + 1]`, the tokens before
/// each row and those of all; and `token_offset`, `[batch, sequence]`: where each token is in the padded
/// batch, and behind these all other places of it. Where the graph's metadata has a [`PADDING_ID`], positions are counted
/// from 1, and that token has position 0 and is not counted.
///
/// # Errors
/// Those of [`read`], or a row length that the model's position table does not cover.
pub fn compile(recipe: &Recipe, files: &ModelFiles<'_>) -> Result<Vec<u8>, Error> {
    lower::lower(&read(files)?, recipe)
}
