//! Token vectors to one vector per row, inside the graph.

use super::operators::Operators;
use crate::Pooling;
use crate::onnx::writer::{GraphWriter, integer};
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
            let shares = graph.node_with("Cast", &["mask"], "mask.float", to_float());
            let shares = graph.node("Div", &[&shares, "counts"], "shares");
            let shares = graph.node("Unsqueeze", &[&shares, "one"], "shares.row");
            let sum = graph.node("MatMul", &[&shares, hidden], "pooled.row");
            graph.node("Squeeze", &[&sum, "one"], "pooled")
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
