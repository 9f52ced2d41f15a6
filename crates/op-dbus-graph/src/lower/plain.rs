//! The operators that every provider has: ONNX's own, and of these the plainest.

use super::block::{Stream, product};
use super::operators::{Attention, Norm, Operators};
use super::pooling::to_float;
use crate::encoder::{Activation, DenseActivation, Encoder, Linear};
use crate::onnx::writer::{GraphWriter, integer, integers, real};

/// Added to the scores of padding: far below every score, and finite, so that no provider makes a
/// quotient of infinities of it.
const MASKED: f32 = -1e9;

/// The dialect of ONNX.
pub(super) struct Plain;

impl Operators for Plain {
    fn needs_mask(&self) -> bool {
        true
    }

    /// `attention.mask`, `[batch, 1, 1, sequence]`: 0 for a row's own tokens, else [`MASKED`].
    fn begin(&self, graph: &mut GraphWriter, encoder: &Encoder<'_>) {
        let (heads, size) = (encoder.heads as i64, (encoder.hidden / encoder.heads) as i64);
        graph.int64s("heads.apart", &[0, 0, heads, size]);
        graph.int64s("heads.together", &[0, 0, heads * size]);
        let scale = 1.0 / (size as f32).sqrt();
        graph.operand("score.scale", &[], scale.to_le_bytes().to_vec());
        graph.float("masked", MASKED);
        graph.float("number.one", 1.0);
        activation_numbers(graph, encoder);
        graph.int64s("mask.axes", &[1, 2]);
        let own = graph.node_with("Cast", &["mask"], "mask.own", to_float());
        let other = graph.node("Sub", &["number.one", &own], "mask.other");
        let scores = graph.node("Mul", &[&other, "masked"], "mask.scores");
        graph.node("Unsqueeze", &[&scores, "mask.axes"], "attention.mask");
    }

    fn attention_bias(&self, graph: &mut GraphWriter, operand: &str) -> String {
        graph.widen(operand)
    }

    fn attention(
        &self,
        graph: &mut GraphWriter,
        attention: &Attention<'_, '_>,
        parts: &[String; 3],
        input: &str,
    ) -> String {
        let Attention { layer, name, bias: attention_bias, .. } = *attention;
        // Keys are turned for the product with the queries.
        let orders = [[0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]];
        let linears = [&layer.query, &layer.key, &layer.value];
        let mut heads = Vec::new();
        for ((part, linear), order) in parts.iter().zip(linears).zip(orders) {
            let bias = Stream::Narrow.bias(graph, part, linear);
            let made = product(graph, part, linear, input);
            let sum = graph.node("Add", &[&made, &bias], &format!("{part}.sum"));
            let apart = graph.node("Reshape", &[&sum, "heads.apart"], &format!("{part}.apart"));
            let turn = vec![integers("perm", &order)];
            heads.push(graph.node_with("Transpose", &[&apart], &format!("{part}.heads"), turn));
        }
        let of = |step: &str| format!("{name}.{step}");
        let query = graph.node("Mul", &[&heads[0], "score.scale"], &of("query"));
        let scores = graph.node("MatMul", &[&query, &heads[1]], &of("scores"));
        let mut scores = graph.widen(&scores);
        if !attention_bias.is_empty() {
            scores = graph.node("Add", &[&scores, attention_bias], &of("biased"));
        }
        let masked = graph.node("Add", &[&scores, "attention.mask"], &of("masked"));
        let last = vec![integer("axis", -1)];
        let weights = graph.node_with("Softmax", &[&masked], &of("weights"), last);
        let weights = graph.narrow(&weights);
        let context = graph.node("MatMul", &[&weights, &heads[2]], &of("context"));
        let turn = vec![integers("perm", &[0, 2, 1, 3])];
        let turned = graph.node_with("Transpose", &[&context], &of("turned"), turn);
        graph.node("Reshape", &[&turned, "heads.together"], name)
    }

    fn sum_norm(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        terms: &[&str],
        norm: &Norm<'_>,
    ) -> String {
        let mut sum = terms[0].to_owned();
        for (index, term) in terms.iter().enumerate().skip(1).rev() {
            sum = graph.node("Add", &[&sum, term], &format!("{name}.sum.{index}"));
        }
        let (scale, shift) = (format!("{}.scale", norm.name), format!("{}.shift", norm.name));
        let attributes = vec![integer("axis", -1), real("epsilon", norm.epsilon)];
        graph.node_with("LayerNormalization", &[&sum, &scale, &shift], name, attributes)
    }

    fn activate(
        &self,
        graph: &mut GraphWriter,
        name: &str,
        activation: Activation,
        (linear, product): (&Linear<'_>, &str),
    ) -> String {
        let of = |step: &str| format!("{name}.{step}");
        let bias = Stream::Wide.bias(graph, product, linear);
        // In 32-bit floats: a cube does not fit into 16 bits, nor does the small tail of the curve.
        let product = graph.widen(product);
        let x = graph.node("Add", &[&product, &bias], &of("sum"));
        let active = match activation {
            Activation::Relu => graph.node("Relu", &[&x], name),
            Activation::Gelu => self.gelu(graph, name, &x),
            Activation::GeluTanh => {
                let square = graph.node("Mul", &[&x, &x], &of("square"));
                let cube = graph.node("Mul", &[&square, &x], &of("cube"));
                let cubic = graph.node("Mul", &[&cube, "tanh.cubic"], &of("cubic"));
                let bent = graph.node("Add", &[&x, &cubic], &of("bent"));
                let scaled = graph.node("Mul", &[&bent, "tanh.scale"], &of("scaled"));
                let curve = graph.node("Tanh", &[&scaled], &of("curve"));
                half_raised(graph, name, &x, &curve)
            }
        };
        graph.narrow(&active)
    }

    fn gelu(&self, graph: &mut GraphWriter, name: &str, x: &str) -> String {
        let scaled = graph.node("Mul", &[x, "root.half"], &format!("{name}.scaled"));
        let curve = graph.node("Erf", &[&scaled], &format!("{name}.curve"));
        half_raised(graph, name, x, &curve)
    }

    fn length(&self, graph: &mut GraphWriter, pooled: &str) -> String {
        let squares = graph.node("Mul", &[pooled, pooled], "squares");
        let keep = vec![integer("keepdims", 1)];
        let sum = graph.node_with("ReduceSum", &[&squares, "one"], "length.square", keep);
        graph.node("Sqrt", &[&sum], "length")
    }
}

/// `x` times half of what `curve`, between -1 and 1, is raised to by 1.
fn half_raised(graph: &mut GraphWriter, name: &str, x: &str, curve: &str) -> String {
    let raised = graph.node("Add", &[curve, "number.one"], &format!("{name}.raised"));
    let product = graph.node("Mul", &[x, &raised], &format!("{name}.product"));
    graph.node("Mul", &[&product, "half"], name)
}

/// The numbers that the activations are made of, also those of Dense modules.
fn activation_numbers(graph: &mut GraphWriter, encoder: &Encoder<'_>) {
    let mut in_dense = encoder.dense.iter().map(|dense| dense.activation);
    let has_erf = encoder.activation == Activation::Gelu
        || in_dense.any(|activation| activation == DenseActivation::Gelu);
    let has_tanh = encoder.activation == Activation::GeluTanh;
    if has_erf {
        graph.float("root.half", std::f32::consts::FRAC_1_SQRT_2);
    }
    if has_tanh {
        graph.float("tanh.scale", (2.0 / std::f32::consts::PI).sqrt());
        graph.float("tanh.cubic", 0.044_715);
    }
    if has_erf || has_tanh {
        graph.float("half", 0.5);
    }
}
