//! BERT and the MiniLM models made after it.

use super::{Config, LayerNames, Reader};
use crate::Error;
use crate::encoder::Encoder;
use crate::weights::Weights;

/// Also those of RoBERTa.
pub(super) const NAMES: LayerNames = LayerNames {
    layers: "encoder.layer",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    output_norm: "output.LayerNorm",
};
/// Where `config.json` does not say it.
pub(super) const TOKEN_TYPES: usize = 2;

/// Reads a BERT encoder.
///
/// # Errors
/// Another architecture's configuration, or tensors that do not fit.
pub(super) fn read<'a>(config: &Config, weights: &Weights<'a>) -> Result<Encoder<'a>, Error> {
    config.expect_model_type(&["bert"])?;
    let token_types = config.type_vocab_size.unwrap_or(TOKEN_TYPES);
    Reader::new(config, weights, "bert.")?.encoder(&NAMES, None, token_types)
}
