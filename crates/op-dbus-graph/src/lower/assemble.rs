//! The encoder as a graph: embeddings, blocks, pooling.

use super::block::{Block, Stream};
use super::operators::{Norm, Operators};
use super::{dense, pooling};
use crate::encoder::{Encoder, Layer, Linear, RelativeBias};
use crate::onnx::writer::{GraphWriter, integer, port};
use crate::onnx::{FLOAT, INT32, ValueInfo};
use crate::{Error, PADDING_ID, Pooling, Recipe};

/// Largest table of relative position biases, which grows with the square of the row length.
const BIAS_BYTES_MAX: usize = 256 << 20;

/// Writes the graph with `operators`.
///
/// # Errors
/// A graph that is too large.
pub(super) fn lower(
    encoder: &Encoder<'_>,
    recipe: &Recipe,
    operators: &dyn Operators,
) -> Result<Vec<u8>, Error> {
    let mut graph = GraphWriter::with_capacity(weights_bytes(encoder), recipe.target.precision);
    constants(&mut graph, recipe.max_input_tokens, operators.packs());
    if operators.needs_mask() || recipe.pooling != Pooling::Cls {
        pooling::mask(&mut graph);
    }
    operators.begin(&mut graph, encoder);
    let mut hidden = embeddings(&mut graph, encoder, recipe.max_input_tokens, operators);
    let bias = match &encoder.relative_bias {
        Some(bias) => {
            let bias = relative_bias(&mut graph, bias, recipe.max_input_tokens)?;
            operators.attention_bias(&mut graph, &bias)
        }
        None => String::new(),
    };
    for (index, layer) in encoder.layers.iter().enumerate() {
        let block = Block { encoder, layer, index, operators };
        hidden = block.write(&mut graph, &hidden, &bias);
    }
    if operators.packs() {
        hidden = graph.microsoft("RestorePadding", &[&hidden, "token_offset"], "rows", Vec::new());
    }
    let hidden = Stream::of(operators).wide(&mut graph, &hidden);
    let pooled = pooling::pool(&mut graph, recipe.pooling, &hidden);
    let pooled = dense::apply(&mut graph, operators, &encoder.dense, &pooled);
    pooling::finish(&mut graph, recipe.normalize.then_some(operators), &pooled);

    let dimensions = encoder.dimensions().to_string();
    let outputs = vec![port("embedding", FLOAT, &["batch", &dimensions])];
    graph.finish(inputs(operators.packs()), outputs)
}

pub(super) fn inputs(packed: bool) -> Vec<ValueInfo> {
    let input = |(name, dims): &(&str, &[&str])| port(name, INT32, dims);
    let padded: &[(&str, &[&str])] =
        &[("input_ids", &["batch", "sequence"]), ("lengths", &["batch"])];
    let without: &[(&str, &[&str])] = &[
        ("input_ids", &["tokens"]),
        ("lengths", &["batch"]),
        ("position_ids", &["tokens"]),
        ("token_offset", &["batch", "sequence"]),
        // One more than the batch has rows.
        ("cumulative_lengths", &["bounds"]),
    ];
    (if packed { without } else { padded }).iter().map(input).collect()
}

fn weights_bytes(encoder: &Encoder<'_>) -> usize {
    let linear = |linear: &Linear<'_>| linear.weight.bytes().len() + linear.bias.bytes().len();
    let layer = |layer: &Layer<'_>| {
        let Layer { query, key, value, output, up, down, .. } = layer;
        [query, key, value, output, up, down].into_iter().map(linear).sum::<usize>()
    };
    let tables = encoder.words.bytes().len() + encoder.positions.bytes().len();
    let dense = encoder.dense.iter().map(|dense| dense.linear.bytes().len()).sum::<usize>();
    tables + dense + encoder.layers.iter().map(layer).sum::<usize>()
}

/// Numbers that several parts of the graph use, and the length of this batch's rows.
fn constants(graph: &mut GraphWriter, tokens_max: usize, packed: bool) {
    graph.int64s("zero", &[0]);
    graph.int64s("one", &[1]);
    // As floats, which are exact so far: WebGPU cuts no integers, and one operator on the CPU would be
    // enough to forbid recording the others.
    let indices = (0..tokens_max).flat_map(|index| (index as f32).to_le_bytes());
    graph.floats("indices", &[tokens_max], indices.collect());
    let only_columns = vec![integer("start", 1), integer("end", 2)];
    let rows = if packed { "token_offset" } else { "input_ids" };
    graph.node_with("Shape", &[rows], "sequence", only_columns);
}

/// Words plus positions, normalised.
fn embeddings(
    graph: &mut GraphWriter,
    encoder: &Encoder<'_>,
    tokens_max: usize,
    operators: &dyn Operators,
) -> String {
    let hidden = encoder.hidden;
    graph.operand("words", &[encoder.words.rows(), hidden], encoder.words.bytes().to_vec());
    let word = graph.node("Gather", &["words", "input_ids"], "embeddings.word");
    let stream = Stream::of(operators);
    let word = stream.term(graph, &word);
    let position = positions(graph, encoder, tokens_max, operators);
    stream.norm(graph, "embeddings.norm", &encoder.embedding_norm);
    let terms = [&*word, &position];
    let numbers = Norm { name: "embeddings.norm", epsilon: encoder.epsilon };
    operators.sum_norm(graph, "embeddings", &terms, &numbers)
}

/// The positions of all tokens. The token type is the same for every token, so its row is added to the
/// position table here and now.
fn positions(
    graph: &mut GraphWriter,
    encoder: &Encoder<'_>,
    tokens_max: usize,
    operators: &dyn Operators,
) -> String {
    let hidden = encoder.hidden;
    let shared: Vec<f32> = match &encoder.token_type {
        Some(types) => types.row(0).collect(),
        None => vec![0.0; hidden],
    };
    let of_padding = encoder.padding.iter().flat_map(|padding| padding.position.values());
    let positions = of_padding.chain(encoder.positions.values().take(tokens_max * hidden));
    let folded = positions.zip(shared.iter().cycle()).map(|(position, shared)| position + shared);
    let bytes: Vec<u8> = folded.flat_map(f32::to_le_bytes).collect();
    let dims = [bytes.len() / (4 * hidden), hidden];
    Stream::of(operators).numbers(graph, "positions", &dims, bytes);

    let name = "embeddings.position";
    if operators.packs() {
        if let Some(padding) = &encoder.padding {
            graph.says(PADDING_ID, &padding.id.to_string());
        }
        return graph.node("Gather", &["positions", "position_ids"], name);
    }
    let Some(padding) = &encoder.padding else {
        return graph.node("Slice", &["positions", "zero", "sequence", "zero"], name);
    };
    // Row 0 is the padding token's; no other token counts it.
    graph.int32s("padding", &[], &[i32::try_from(padding.id).unwrap_or(-1)]);
    graph.int32s("along.row", &[], &[1]);
    let is_padding = graph.node("Equal", &["input_ids", "padding"], "is.padding");
    let is_text = graph.node("Not", &[&is_padding], "is.text");
    let to_int = vec![integer("to", i64::from(INT32))];
    let counts = graph.node_with("Cast", &[&is_text], "text.counts", to_int);
    let before = graph.node("CumSum", &[&counts, "along.row"], "text.before");
    let row = graph.node("Mul", &[&before, &counts], "position.row");
    graph.node("Gather", &["positions", &row], name)
}

/// The bias for the longest row, from which a batch takes its upper left corner.
fn relative_bias(
    graph: &mut GraphWriter,
    bias: &RelativeBias,
    tokens_max: usize,
) -> Result<String, Error> {
    let heads = bias.values.len();
    let most = (BIAS_BYTES_MAX / (4 * heads.max(1))).isqrt();
    if tokens_max > most {
        return Err(Error::TooLarge {
            what: "the table of relative position biases",
            found: format!("{tokens_max} tokens with {heads} heads"),
            supported: format!("up to {most} tokens (max_seq_length of the model)"),
        });
    }
    let mut bytes = Vec::with_capacity(4 * heads * tokens_max * tokens_max);
    for head in 0..heads {
        for query in 0..tokens_max {
            for key in 0..tokens_max {
                let distance = key.cast_signed() - query.cast_signed();
                bytes.extend_from_slice(&bias.at(head, distance).to_le_bytes());
            }
        }
    }
    graph.operand("relative_bias", &[1, heads, tokens_max, tokens_max], bytes);
    // One side after the other: their two ends in one would be numbers that WebGPU computes and the CPU
    // cuts by, with a copy in between.
    graph.int64s("queries", &[2]);
    graph.int64s("keys", &[3]);
    let rows = ["relative_bias", "zero", "sequence", "queries"];
    let rows = graph.node("Slice", &rows, "attention_bias.rows");
    Ok(graph.node("Slice", &[&rows, "zero", "sequence", "keys"], "attention_bias"))
}
