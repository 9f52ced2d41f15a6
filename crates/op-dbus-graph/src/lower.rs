//! From the description of an encoder to a graph for one target.

mod assemble;
mod block;
mod dense;
mod fused;
mod operators;
mod packed;
mod plain;
mod pooling;
mod products;

use crate::encoder::Encoder;
use crate::{Dialect, Error, Recipe};

pub use products::products;

/// Writes `encoder` for the target of `recipe`.
///
/// # Errors
/// A row length that the model's position table does not cover, or a graph that is too large.
pub(crate) fn lower(encoder: &Encoder<'_>, recipe: &Recipe) -> Result<Vec<u8>, Error> {
    let positions = encoder.positions.rows();
    if recipe.max_input_tokens == 0 || recipe.max_input_tokens > positions {
        return Err(Error::Unsupported {
            what: "max_input_tokens",
            found: recipe.max_input_tokens.to_string(),
            supported: format!("1 to {positions}, the rows of the model's position table"),
        });
    }
    let operators: &dyn operators::Operators = match recipe.target.dialect {
        Dialect::OnnxRuntime => &fused::Fused { packs: false },
        Dialect::Packed => &fused::Fused { packs: true },
        Dialect::Onnx => &plain::Plain,
    };
    assemble::lower(encoder, recipe, operators)
}
