//! Nothing but products of large matrices: what a device can do at most.

use super::{assemble, pooling};
use crate::onnx::FLOAT;
use crate::onnx::writer::{GraphWriter, port};
use crate::{Error, Pooling, Precision};

/// Words that there are vectors of.
const WORDS: usize = 64;

/// Compiles a graph with the ports of an encoder's that multiplies what it is given with a matrix of
/// `side` × `side`, `count` times. A batch of `side` tokens makes that products of square matrices. Ids
/// are below 64, and a vector is what became of the first token of its row.
///
/// # Errors
/// A graph that is too large.
pub fn products(side: usize, count: usize, precision: Precision) -> Result<Vec<u8>, Error> {
    let mut graph = GraphWriter::with_capacity(4 * side * (side + WORDS), precision);
    let mut state = 20_261_124_u32;
    let mut random = |count: usize, most: f32| -> Vec<u8> {
        let mut next = || {
            // Numerical Recipes' generator; devices draw more power for such numbers than for zeros.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state as f32 / u32::MAX as f32 * 2.0 - 1.0) * most
        };
        (0..count).flat_map(|_| next().to_le_bytes()).collect()
    };
    graph.operand("words", &[WORDS, side], random(WORDS * side, 1.0));
    // So that products stay about as large as what is multiplied.
    let most = (3.0 / side as f32).sqrt();
    graph.operand("weight", &[side, side], random(side * side, most));
    graph.int64s("one", &[1]);
    let mut hidden = graph.node("Gather", &["words", "input_ids"], "product.0");
    for number in 1..=count {
        hidden = graph.node("MatMul", &[&hidden, "weight"], &format!("product.{number}"));
    }
    let pooled = pooling::pool(&mut graph, Pooling::Cls, &hidden);
    let pooled = graph.widen(&pooled);
    pooling::finish(&mut graph, None, &pooled);
    let dimensions = side.to_string();
    let outputs = vec![port("embedding", FLOAT, &["batch", &dimensions])];
    graph.finish(assemble::inputs(false), outputs)
}
