//! The attention of batches without padding: tokens one behind the other, `[tokens, hidden]`.

use super::block::{Stream, product, weight};
use super::operators::Attention;
use crate::encoder::{Encoder, Layer};
use crate::onnx::writer::{GraphWriter, integer};

/// What graphs without padding differ in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Query, key and value are three products, and not one.
    pub apart: bool,
    /// The graph has one more input, int32 `places`, `[batch, sequence]`: the token at each place of the padded
    /// batch, where padding has any token of its row. Rows are gathered by it, and the division by a vector's
    /// length is one operator.
    pub gathers: bool,
    /// Gathered rows are averaged as operands.
    pub narrow_mean: bool,
}

/// Writes what all blocks share, unless query, key and value are apart.
pub(super) fn begin(graph: &mut GraphWriter, encoder: &Encoder<'_>) {
    let (heads, size) = (encoder.heads as i64, (encoder.hidden / encoder.heads) as i64);
    graph.int64s("heads.apart", &[0, heads, 3, size]);
}

/// Query, key and value are one product here: ONNX Runtime's kernels for that are those with the least to move.
pub(super) fn attention(
    graph: &mut GraphWriter,
    attention: &Attention<'_, '_>,
    input: &str,
) -> String {
    let Attention { encoder, layer, name, bias } = *attention;
    let (all, weight) = (format!("{name}.product"), format!("{name}.weight"));
    let dims = [encoder.hidden, 3 * encoder.hidden];
    graph.operand(&weight, &dims, by_head(layer, encoder.heads));
    let all = graph.node("MatMul", &[input, &weight], &all);
    let apart = graph.node("Reshape", &[&all, "heads.apart"], &format!("{name}.heads"));
    let biases = [&layer.query, &layer.key, &layer.value].map(|linear| linear.bias.bytes());
    let own = format!("{name}.bias");
    graph.operand(&own, &[3 * encoder.hidden], biases.concat());
    let mut inputs = vec![&*apart, "", "", &own, "token_offset", "cumulative_lengths"];
    if !bias.is_empty() {
        inputs.push(bias);
    }
    let heads = vec![integer("num_heads", encoder.heads as i64)];
    graph.microsoft("PackedMultiHeadAttention", &inputs, name, heads)
}

/// Query, key and value are three products here, `[tokens, hidden]`, and none has a bias that is still to be added: so
/// ONNX Runtime's memory-efficient kernel reads them where they are, and moves nothing before it begins.
///
/// A bias of the key would add the same to all scores of a query, which its softmax takes away again, so there is
/// none. That of the value is in the [`output_bias`].
pub(super) fn attention_apart(
    graph: &mut GraphWriter,
    attention: &Attention<'_, '_>,
    [query, key, value]: &[String; 3],
    input: &str,
) -> String {
    let Attention { encoder, layer, name, bias } = *attention;
    let own = Stream::Narrow.bias(graph, query, &layer.query);
    let by = weight(graph, query, &layer.query);
    let query = graph.node("Gemm", &[input, &by, &own], query);
    let key = product(graph, key, &layer.key, input);
    let value = product(graph, value, &layer.value, input);
    let mut inputs = vec![&*query, &key, &value, "", "token_offset", "cumulative_lengths"];
    if !bias.is_empty() {
        inputs.push(bias);
    }
    let heads = vec![integer("num_heads", encoder.heads as i64)];
    graph.microsoft("PackedMultiHeadAttention", &inputs, name, heads)
}

/// The bias of the output projection, and what the projection makes of the value's: the shares of a softmax are 1
/// together, so each token has the whole of that.
pub(super) fn output_bias(layer: &Layer<'_>) -> Vec<u8> {
    let Layer { value, output, .. } = layer;
    let projected = |row| {
        let terms = output.weight.row(row).zip(value.bias.values());
        terms.map(|(weight, bias)| f64::from(weight) * f64::from(bias)).sum::<f64>()
    };
    let biases = output.bias.values().enumerate();
    let sums = biases.map(|(row, bias)| (f64::from(bias) + projected(row)) as f32);
    sums.flat_map(f32::to_le_bytes).collect()
}

/// The weights of query, key and value, `[hidden, heads, 3, size of a head]`.
fn by_head(layer: &Layer<'_>, heads: usize) -> Vec<u8> {
    let parts = [&layer.query, &layer.key, &layer.value].map(|part| part.weight.transposed());
    let row = layer.query.weight.rows() * 4;
    let head = row / heads;
    let mut all = Vec::with_capacity(3 * parts[0].len());
    for start in (0..parts[0].len()).step_by(head) {
        all.extend(parts.iter().flat_map(|part| &part[start..start + head]));
    }
    all
}
