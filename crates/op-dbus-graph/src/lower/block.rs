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
    /// Writes the block; `bias` is empty or the name of the attention bias.
    pub fn write(&self, graph: &mut GraphWriter, input: &str, bias: &str) -> String {
        let Self { encoder, layer, operators, .. } = *self;
        let attention = Attention { encoder, layer, name: &self.name("attention"), bias };
        let parts = ["query", "key", "value"].map(|part| self.name(part));
        let attended = operators.attention(graph, &attention, &parts, input);
        let output = self.product(graph, "output", &layer.output, &attended);
        let middle =
            self.sum_norm(graph, "attention_norm", &layer.attention_norm, [&output, input]);
        let up = self.product(graph, "up", &layer.up, &middle);
        let bias = format!("{up}.bias");
        let active =
            operators.activate(graph, &self.name("activation"), encoder.activation, [&up, &bias]);
        let down = self.product(graph, "down", &layer.down, &active);
        self.sum_norm(graph, "output_norm", &layer.output_norm, [&down, &middle])
    }

    fn name(&self, part: &str) -> String {
        format!("layer.{}.{part}", self.index)
    }

    /// `input · weight`, without the bias, which the operator behind it adds.
    fn product(
        &self,
        graph: &mut GraphWriter,
        part: &str,
        linear: &Linear<'_>,
        input: &str,
    ) -> String {
        let name = self.name(part);
        bias(graph, &name, linear);
        product(graph, &name, linear, input)
    }

    /// The norm of a product, its bias and the block's input taken together.
    fn sum_norm(
        &self,
        graph: &mut GraphWriter,
        part: &str,
        weights: &Norm<'_>,
        [product, skip]: [&str; 2],
    ) -> String {
        let name = self.name(part);
        norm(graph, &name, weights);
        let bias = format!("{product}.bias");
        let terms = [product, skip, &bias];
        let numbers = operators::Norm { name: &name, epsilon: self.encoder.epsilon };
        self.operators.sum_norm(graph, &name, &terms, &numbers)
    }
}

/// `input · weight`.
pub(super) fn product(
    graph: &mut GraphWriter,
    name: &str,
    linear: &Linear<'_>,
    input: &str,
) -> String {
    let dims = [linear.weight.columns(), linear.weight.rows()];
    graph.floats(&format!("{name}.weight"), &dims, linear.weight.transposed());
    graph.node("MatMul", &[input, &format!("{name}.weight")], name)
}

/// The bias of a linear layer, as `{name}.bias`.
pub(super) fn bias(graph: &mut GraphWriter, name: &str, linear: &Linear<'_>) {
    let values = linear.bias.bytes().to_vec();
    graph.floats(&format!("{name}.bias"), &[linear.weight.rows()], values);
}

/// Scale and shift of a norm, as `{name}.scale` and `{name}.shift`.
pub(super) fn norm(graph: &mut GraphWriter, name: &str, norm: &Norm<'_>) {
    let length = [norm.scale.columns()];
    graph.floats(&format!("{name}.scale"), &length, norm.scale.bytes().to_vec());
    graph.floats(&format!("{name}.shift"), &length, norm.shift.bytes().to_vec());
}
