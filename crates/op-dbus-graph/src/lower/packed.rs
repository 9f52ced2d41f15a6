//! The attention of batches without padding: tokens one behind the other, `[tokens, hidden]`.

use super::operators::Attention;
use crate::encoder::{Encoder, Layer};
use crate::onnx::writer::{GraphWriter, integer};

/// Writes what all blocks share.
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
