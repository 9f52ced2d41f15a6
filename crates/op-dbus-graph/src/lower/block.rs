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
        let stream = Stream::of(operators);
        let operand = stream.operand(graph, input);
        let attended = operators.attention(graph, &attention, &parts, &operand);
        let output = product(graph, &self.name("output"), &layer.output, &attended);
        let norm = &layer.attention_norm;
        let middle = self.sum_norm(graph, "attention_norm", norm, (&layer.output, &output, input));
        let operand = stream.operand(graph, &middle);
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
        let (name, stream) = (self.name(part), Stream::of(self.operators));
        stream.norm(graph, &name, weights);
        let bias = stream.bias(graph, product, linear);
        let terms = [&*stream.term(graph, product), skip, &bias];
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

/// What goes from block to block, and with it the numbers of the norms.
#[derive(Clone, Copy)]
pub(super) enum Stream {
    /// 32-bit floats in every precision.
    Wide,
    /// Operands.
    Narrow,
}

impl Stream {
    pub fn of(operators: &dyn Operators) -> Self {
        if operators.packs() { Self::Narrow } else { Self::Wide }
    }

    /// What is in the stream as something to multiply.
    pub fn operand(self, graph: &mut GraphWriter, value: &str) -> String {
        match self {
            Self::Wide => graph.narrow(value),
            Self::Narrow => value.to_owned(),
        }
    }

    /// What a product gave, or a table of operands, as something to add to the stream.
    pub fn term(self, graph: &mut GraphWriter, value: &str) -> String {
        match self {
            Self::Wide => graph.widen(value),
            Self::Narrow => value.to_owned(),
        }
    }

    /// What is in the stream in 32-bit floats.
    pub fn wide(self, graph: &mut GraphWriter, value: &str) -> String {
        match self {
            Self::Wide => value.to_owned(),
            Self::Narrow => graph.widen(value),
        }
    }

    /// Adds numbers that go with the stream, given as little-endian bytes of 32-bit floats.
    pub fn numbers(self, graph: &mut GraphWriter, name: &str, dims: &[usize], bytes: Vec<u8>) {
        match self {
            Self::Wide => graph.floats(name, dims, bytes),
            Self::Narrow => graph.operand(name, dims, bytes),
        }
    }

    /// The bias of the linear layer whose product is `product`.
    pub fn bias(self, graph: &mut GraphWriter, product: &str, linear: &Linear<'_>) -> String {
        let name = format!("{product}.bias");
        self.numbers(graph, &name, &[linear.weight.rows()], linear.bias.bytes().to_vec());
        name
    }

    /// Scale and shift of a norm, as `{name}.scale` and `{name}.shift`.
    pub fn norm(self, graph: &mut GraphWriter, name: &str, norm: &Norm<'_>) {
        let length = [norm.scale.columns()];
        self.numbers(graph, &format!("{name}.scale"), &length, norm.scale.bytes().to_vec());
        self.numbers(graph, &format!("{name}.shift"), &length, norm.shift.bytes().to_vec());
    }
}
