//! What dialects have different operators for.

use crate::encoder::{Activation, Encoder, Layer, Linear};
use crate::onnx::writer::GraphWriter;

/// The attention of one block.
pub(super) struct Attention<'b, 'a> {
    pub encoder: &'b Encoder<'a>,
    pub layer: &'b Layer<'a>,
    /// Name of the result.
    pub name: &'b str,
    /// Name of the attention bias, `[1, heads, sequence, sequence]`; empty where there is none.
    pub bias: &'b str,
}

/// A norm's numbers.
pub(super) struct Norm<'b> {
    /// Scale and shift are `{name}.scale` and `{name}.shift`.
    pub name: &'b str,
    pub epsilon: f32,
}

/// How a dialect writes what is more than a product. All take and return names. Operands are in the
/// precision of the graph.
pub(super) trait Operators {
    /// Whether the tokens of all rows are computed one behind the other, without padding. What goes from
    /// block to block is operands then, and else 32-bit floats in every precision.
    fn packs(&self) -> bool {
        false
    }

    /// Whether `mask` is used before the pooling.
    fn needs_mask(&self) -> bool;

    /// Writes what all blocks share.
    fn begin(&self, graph: &mut GraphWriter, encoder: &Encoder<'_>);

    /// The attention bias as the attention wants it, from the bias as an operand.
    fn attention_bias(&self, graph: &mut GraphWriter, operand: &str) -> String;

    /// Query, key and value of `input`, the products named by `parts`, and what the heads make of
    /// them: `[batch, sequence, hidden]`, or `[tokens, hidden]`. An operand becomes an operand.
    fn attention(
        &self,
        graph: &mut GraphWriter,
        attention: &Attention<'_, '_>,
        parts: &[String; 3],
        input: &str,
    ) -> String;

    /// The norm of the sum of two or three terms, all in 32-bit floats, or operands.
    fn sum_norm(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        terms: &[&str],
        norm: &Norm<'_>,
    ) -> String;

    /// The activation of a product and the bias of its linear layer, as an operand.
    fn activate(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        activation: Activation,
        product: (&Linear<'_>, &str),
    ) -> String;

    /// GELU by the error function, of 32-bit floats.
    fn gelu(&self, graph: &mut GraphWriter, name: &str, x: &str) -> String;

    /// The length of each row, `[batch, 1]`.
    fn length(&self, graph: &mut GraphWriter, pooled: &str) -> String;
}
