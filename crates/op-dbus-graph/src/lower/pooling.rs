//! Token vectors to one vector per row, inside the graph.

use super::operators::Operators;
use super::packed::Packing;
use crate::Pooling;
use crate::onnx::writer::{GraphWriter, integer, real};
use crate::onnx::{Attribute, FLOAT};

/// A vector shorter than this is divided by this instead of by its length.
const LENGTH_MIN: f32 = 1e-12;

/// Reduces `hidden` (`[batch, sequence, hidden]`) to `[batch, hidden]`; all but the first token's
/// pooling need [`mask`].
pub(super) fn pool(graph: &mut GraphWriter, pooling: Pooling, hidden: &str) -> String {
    match pooling {
        Pooling::Cls => {
            graph.int64s("first", &[0]);
            let first = graph.node("Slice", &[hidden, "first", "one", "one"], "pooled.token");
            graph.node("Squeeze", &[&first, "one"], "pooled")
        }
        Pooling::Mean => {
            let shares = shares(graph);
            mean(graph, &shares, hidden)
        }
        Pooling::Max => {
            graph.float("lowest", f32::MIN);
            graph.int64s("last", &[2]);
            let mask = graph.node("Unsqueeze", &["mask", "last"], "mask.column");
            let own = graph.node("Where", &[&mask, hidden, "lowest"], "own");
            let drop = vec![integer("keepdims", 0)];
            graph.node_with("ReduceMax", &[&own, "one"], "pooled", drop)
        }
    }
}

/// As [`pool`], of the tokens of all rows one behind the other (`[tokens, hidden]`, operands), which the graph's
/// input `places` tells the places of.
pub(super) fn pool_tokens(
    graph: &mut GraphWriter,
    pooling: Pooling,
    tokens: &str,
    packing: Packing,
) -> String {
    if pooling == Pooling::Cls {
        // Nothing else is moved.
        graph.int64s("first", &[0]);
        let column = graph.node("Slice", &["places", "first", "one", "one"], "places.column");
        let first = graph.node("Squeeze", &[&column, "one"], "places.first");
        let pooled = graph.node("Gather", &[tokens, &first], "pooled");
        return graph.widen(&pooled);
    }
    let rows = graph.node("Gather", &[tokens, "places"], "rows");
    if packing.narrow_mean && pooling == Pooling::Mean {
        let shares = shares(graph);
        let shares = graph.narrow(&shares);
        let pooled = mean(graph, &shares, &rows);
        return graph.widen(&pooled);
    }
    let rows = graph.widen(&rows);
    pool(graph, pooling, &rows)
}

/// What each token counts in the mean of its row, `[batch, sequence]`; padding counts nothing.
fn shares(graph: &mut GraphWriter) -> String {
    let own = graph.node_with("Cast", &["mask"], "mask.float", to_float());
    graph.node("Div", &[&own, "counts"], "shares")
}

fn mean(graph: &mut GraphWriter, shares: &str, hidden: &str) -> String {
    let shares = graph.node("Unsqueeze", &[shares, "one"], "shares.row");
    let sum = graph.node("MatMul", &[&shares, hidden], "pooled.row");
    graph.node("Squeeze", &[&sum, "one"], "pooled")
}

/// Writes `mask`, `[batch, sequence]`: whether a token is the row's own; and `counts`, `[batch, 1]`: its
/// tokens as floats.
pub(super) fn mask(graph: &mut GraphWriter) {
    let inputs = ["indices", "zero", "sequence", "zero"];
    let indices = graph.node("Slice", &inputs, "indices.batch");
    let lengths = graph.node("Unsqueeze", &["lengths", "one"], "lengths.column");
    let counts = graph.node_with("Cast", &[&lengths], "counts", to_float());
    graph.node("Less", &[&indices, &counts], "mask");
}

pub(super) fn to_float() -> Vec<Attribute> {
    vec![integer("to", i64::from(FLOAT))]
}

/// Writes the graph's output: `pooled`, divided by its length if there are operators for it.
pub(super) fn finish(graph: &mut GraphWriter, normalize: Option<&dyn Operators>, pooled: &str) {
    if let Some(operators) = normalize {
        graph.float("length.min", LENGTH_MIN);
        let length = operators.length(graph, pooled);
        let length = graph.node("Max", &[&length, "length.min"], "length.divisor");
        graph.node("Div", &[pooled, &length], "embedding");
    } else {
        // Something that is computed, and leaves the bits as they are: a provider that replays a batch
        // lacks what is copied alone.
        let negated = graph.node("Neg", &[pooled], "pooled.negated");
        graph.node("Neg", &[&negated], "embedding");
    }
}

/// As [`finish`] with a division by the length, as one operator; `pooled` has `dimensions` numbers, at least 2.
pub(super) fn normalize(graph: &mut GraphWriter, dimensions: usize, pooled: &str) {
    // It divides by the root of the squares' mean, and ours is that of their sum.
    let scale = 1.0 / (dimensions as f32).sqrt();
    graph.floats("length.scale", &[dimensions], scale.to_le_bytes().repeat(dimensions));
    // Added to the mean: what is much shorter than the least length is divided by that.
    let epsilon = LENGTH_MIN * LENGTH_MIN / dimensions as f32;
    let attributes = vec![integer("axis", -1), real("epsilon", epsilon)];
    // Of ONNX Runtime's own making, and yet in ONNX's domain.
    let inputs = [pooled, "length.scale"];
    graph.node_with("SimplifiedLayerNormalization", &inputs, "embedding", attributes);
}
