//! One block of the encoder on its way into the graph.

use super::operators::{self, Attention, Operators};
use crate::encoder::{Encoder, Layer, Linear, Norm};
use crate::onnx::writer::GraphWriter;

/// A block, and what it is written with.
pub(super) struct Block<'b, 'a> {
    pub encoder: &'b Encoder<'a>,
    pub layer: &'b Layer<'a>,
    pub index: usize,
    pub operators: &'b dyn Operators,
}

impl Block<'_, '_> {
    /// Writes the block; `bias` is empty or the name of the attention bias. What goes from block to
    /// block is 32-bit floats in every precision.
    pub fn write(&self, graph: &mut GraphWriter, input: &str, bias: &str) -> String {
        let Self { encoder, layer, operators, .. } = *self;
        let attention = Attention { encoder, layer, name: &self.name("attention"), bias };
        let parts = ["query", "key", "value"].map(|part| self.name(part));
        let operand = graph.narrow(input);
        let attended = operators.attention(graph, &attention, &parts, &operand);
        let output = product(graph, &self.name("output"), &layer.output, &attended);
        let norm = &layer.attention_norm;
        let middle = self.sum_norm(graph, "attention_norm", norm, (&layer.output, &output, input));
        let operand = graph.narrow(&middle);
        let up = product(graph, &self.name("up"), &layer.up, &operand);
        let name = self.name("activation");
        let active = operators.activate(graph, &name, encoder.activation, (&layer.up, &up));
        let down = product(graph, &self.name("down"), &layer.down, &active);
        let norm = &layer.output_norm;
        self.sum_norm(graph, "output_norm", norm, (&layer.down, &down, &middle))
    }

    fn name(&self, part: &str) -> String {
        format!("layer.{}.{part}", self.index)
    }

    /// The norm of a product, its bias and the block's input taken together.
    fn sum_norm(
        &self,
        graph: &mut GraphWriter,
        part: &str,
        weights: &Norm<'_>,
        (linear, product, skip): (&Linear<'_>, &str, &str),
    ) -> String {
        let name = self.name(part);
        norm(graph, &name, weights);
        let bias = bias(graph, product, linear);
        let terms = [&*graph.widen(product), skip, &bias];
        let numbers = operators::Norm { name: &name, epsilon: self.encoder.epsilon };
        self.operators.sum_norm(graph, &name, &terms, &numbers)
    }
}

/// `input · weight`, without the bias, which the operator behind it adds.
pub(super) fn product(
    graph: &mut GraphWriter,
    name: &str,
    linear: &Linear<'_>,
    input: &str,
) -> String {
    let dims = [linear.weight.columns(), linear.weight.rows()];
    graph.operand(&format!("{name}.weight"), &dims, linear.weight.transposed());
    graph.node("MatMul", &[input, &format!("{name}.weight")], name)
}

/// The bias of the linear layer whose product is `product`, in 32-bit floats.
pub(super) fn bias(graph: &mut GraphWriter, product: &str, linear: &Linear<'_>) -> String {
    let name = format!("{product}.bias");
    graph.floats(&name, &[linear.weight.rows()], linear.bias.bytes().to_vec());
    name
}

/// As [`bias`], for what adds it to the product as it is.
pub(super) fn operand_bias(graph: &mut GraphWriter, product: &str, linear: &Linear<'_>) -> String {
    let name = format!("{product}.bias");
    graph.operand(&name, &[linear.weight.rows()], linear.bias.bytes().to_vec());
    name
}

/// Scale and shift of a norm, as `{name}.scale` and `{name}.shift`.
pub(super) fn norm(graph: &mut GraphWriter, name: &str, norm: &Norm<'_>) {
    let length = [norm.scale.columns()];
    graph.floats(&format!("{name}.scale"), &length, norm.scale.bytes().to_vec());
    graph.floats(&format!("{name}.shift"), &length, norm.shift.bytes().to_vec());
}
