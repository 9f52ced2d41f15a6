//! BERT and the MiniLM models made after it.

use super::{Config, LayerNames, Reader, unsupported};
use crate::Error;
use crate::encoder::Encoder;
use crate::weights::Weights;

const NAMES: LayerNames = LayerNames {
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
};

/// Reads a BERT encoder.
///
/// # Errors
/// Relative positions, another architecture's configuration, or tensors that do not fit.
pub(super) fn read<'a>(config: &Config, weights: &Weights<'a>) -> Result<Encoder<'a>, Error> {
    config.expect_model_type("bert")?;
    if let Some(found) = config.position_embedding_type.as_deref()
        && found != "absolute"
    {
        return Err(unsupported("position_embedding_type", found, "absolute"));
    }
    let reader = Reader::new(config, weights, &["", "bert."])?;
    let hidden = config.hidden_size;
    let token_types = config.type_vocab_size.unwrap_or(2);
    let token_type = (token_types > 0)
        .then(|| reader.table("embeddings.token_type_embeddings.weight", token_types, hidden))
        .transpose()?;
    Ok(Encoder {
        hidden,
        heads: config.num_attention_heads,
        epsilon: config.layer_norm_eps,
        activation: config.activation()?,
        words: reader.table("embeddings.word_embeddings.weight", config.vocab_size, hidden)?,
        positions: reader.table(
            "embeddings.position_embeddings.weight",
            config.max_position_embeddings,
            hidden,
        )?,
        token_type,
        embedding_norm: reader.norm("embeddings.LayerNorm")?,
        layers: reader.layers(&NAMES)?,
        relative_bias: None,
        dense: Vec::new(),
    })
}
