//! ONNX Runtime's own operators, each for a group of ONNX's.

use super::block::{Stream, product};
use super::operators::{Attention, Norm, Operators};
use super::packed;
use crate::encoder::{Activation, Encoder, Linear};
use crate::onnx::writer::{GraphWriter, integer, real};

/// The dialect of ONNX Runtime.
pub(super) struct Fused {
    /// For batches without padding. All families here end each block in a norm, so what goes on is small, and
    /// the kernels of the norms sum in 32-bit floats.
    pub packs: bool,
}

impl Operators for Fused {
    fn packs(&self) -> bool {
        self.packs
    }

    fn needs_mask(&self) -> bool {
        false
    }

    fn begin(&self, graph: &mut GraphWriter, encoder: &Encoder<'_>) {
        if self.packs {
            packed::begin(graph, encoder);
        }
    }

    fn attention_bias(&self, _: &mut GraphWriter, operand: &str) -> String {
        operand.to_owned()
    }

    // Its softmax sums in 32-bit floats whatever it is given.
    fn attention(
        &self,
        graph: &mut GraphWriter,
        attention: &Attention<'_, '_>,
        parts: &[String; 3],
        input: &str,
    ) -> String {
        if self.packs {
            return packed::attention(graph, attention, input);
        }
        let Attention { encoder, layer, name, bias } = *attention;
        let mut products = Vec::new();
        let mut biases = Vec::new();
        for (part, linear) in parts.iter().zip([&layer.query, &layer.key, &layer.value]) {
            products.push(product(graph, part, linear, input));
            biases.extend_from_slice(linear.bias.bytes());
        }
        let all = format!("{name}.bias");
        graph.operand(&all, &[3 * encoder.hidden], biases);
        let mut inputs = vec![&*products[0], &products[1], &products[2], &all, "lengths"];
        if !bias.is_empty() {
            inputs.push(bias);
        }
        let heads = vec![integer("num_heads", encoder.heads as i64)];
        graph.microsoft("MultiHeadAttention", &inputs, name, heads)
    }

    fn sum_norm(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        terms: &[&str],
        norm: &Norm<'_>,
    ) -> String {
        let (scale, shift) = (format!("{}.scale", norm.name), format!("{}.shift", norm.name));
        let mut inputs = vec![terms[0], terms[1], &scale, &shift];
        inputs.extend(terms.get(2));
        graph.microsoft(
            "SkipLayerNormalization",
            &inputs,
            name,
            vec![real("epsilon", norm.epsilon)],
        )
    }

    fn activate(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        activation: Activation,
        (linear, product): (&Linear<'_>, &str),
    ) -> String {
        let bias = Stream::Narrow.bias(graph, product, linear);
        let terms = [product, &bias];
        match activation {
            Activation::Gelu => graph.microsoft("BiasGelu", &terms, name, Vec::new()),
            Activation::GeluTanh => graph.microsoft("FastGelu", &terms, name, Vec::new()),
            Activation::Relu => {
                let sum = graph.node("Add", &terms, &format!("{name}.sum"));
                graph.node("Relu", &[&sum], name)
            }
        }
    }

    fn gelu(&self, graph: &mut GraphWriter, name: &str, x: &str) -> String {
        graph.microsoft("Gelu", &[x], name, Vec::new())
    }

    fn length(&self, graph: &mut GraphWriter, pooled: &str) -> String {
        let keep = vec![integer("keepdims", 1)];
        graph.node_with("ReduceL2", &[pooled, "one"], "length", keep)
    }
}
