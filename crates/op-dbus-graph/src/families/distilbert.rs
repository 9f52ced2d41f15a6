//! DistilBERT: BERT without token types, under names of its own.

use serde::Deserialize;
use serde_json::Value;

use super::{Config, Keys, LayerNames, Reader, gelu};
use crate::Error;
use crate::encoder::Encoder;
use crate::weights::Weights;

const NAMES: LayerNames = LayerNames {
    layers: "transformer.layer",
    query: "attention.q_lin",
    key: "attention.k_lin",
    value: "attention.v_lin",
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    output_norm: "output_layer_norm",
};
/// Fixed by the architecture, which has no key for it.
const EPSILON: f32 = 1e-12;

/// What DistilBERT calls the keys of its `config.json`.
#[derive(Deserialize)]
struct OwnConfig {
    model_type: Option<String>,
    dim: usize,
    n_layers: usize,
    n_heads: usize,
    hidden_dim: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    #[serde(default = "gelu")]
    activation: String,
    position_embedding_type: Option<String>,
}

/// Reads `config.json` under the names of this family.
///
/// # Errors
/// A key that is missing or of the wrong kind.
pub(super) fn config(config: &Value) -> Result<Config, serde_json::Error> {
    let own = OwnConfig::deserialize(config)?;
    Ok(Config {
        model_type: own.model_type,
        hidden_size: own.dim,
        num_hidden_layers: own.n_layers,
        num_attention_heads: own.n_heads,
        intermediate_size: own.hidden_dim,
        vocab_size: own.vocab_size,
        max_position_embeddings: own.max_position_embeddings,
        type_vocab_size: None,
        hidden_act: own.activation,
        layer_norm_eps: EPSILON,
        position_embedding_type: own.position_embedding_type,
        is_decoder: None,
        relative_attention_num_buckets: None,
        pad_token_id: None,
        keys: Keys {
            hidden: "dim",
            heads: "n_heads",
            layers: "n_layers",
            inner: "hidden_dim",
            activation: "activation",
        },
    })
}

/// Reads a DistilBERT encoder.
///
/// # Errors
/// Another architecture's configuration, or tensors that do not fit.
pub(super) fn read<'a>(config: &Config, weights: &Weights<'a>) -> Result<Encoder<'a>, Error> {
    config.expect_model_type(&["distilbert"])?;
    // Positions of sines and cosines lie in the file as a table like any other.
    Reader::new(config, weights, "distilbert.")?.encoder(&NAMES, None, 0)
}
