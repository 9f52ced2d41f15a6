//! Padded batches in 32-bit floats, with the fused operators of ONNX Runtime.

use super::{dense, pooling};
use crate::encoder::{Activation, Encoder, Layer, Linear, Norm, RelativeBias};
use crate::onnx::writer::{GraphWriter, integer, port, real};
use crate::onnx::{FLOAT, INT32};
use crate::{Error, Recipe};

/// Largest table of relative position biases, which grows with the square of the row length.
const BIAS_BYTES_MAX: usize = 256 << 20;

/// Writes the graph.
///
/// # Errors
/// A graph that is too large.
pub(super) fn lower(encoder: &Encoder<'_>, recipe: &Recipe) -> Result<Vec<u8>, Error> {
    let mut graph = GraphWriter::with_capacity(weights_bytes(encoder));
    constants(&mut graph, recipe.max_input_tokens);
    let mut hidden = embeddings(&mut graph, encoder, recipe.max_input_tokens);
    let bias = match &encoder.relative_bias {
        Some(bias) => relative_bias(&mut graph, bias, recipe.max_input_tokens)?,
        None => String::new(),
    };
    for (index, layer) in encoder.layers.iter().enumerate() {
        hidden = Block { encoder, layer, index }.write(&mut graph, &hidden, &bias);
    }
    let pooled = pooling::pool(&mut graph, recipe.pooling, &hidden);
    let pooled = dense::apply(&mut graph, &encoder.dense, &pooled);
    pooling::finish(&mut graph, recipe.normalize, &pooled);

    let dimensions = encoder.dimensions().to_string();
    let inputs =
        vec![port("input_ids", INT32, &["batch", "sequence"]), port("lengths", INT32, &["batch"])];
    graph.finish(inputs, vec![port("embedding", FLOAT, &["batch", &dimensions])])
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
fn constants(graph: &mut GraphWriter, tokens_max: usize) {
    graph.int64s("zero", &[0]);
    graph.int64s("one", &[1]);
    let indices: Vec<i32> = (0..).take(tokens_max).collect();
    graph.int32s("indices", &[tokens_max], &indices);
    let only_columns = vec![integer("start", 1), integer("end", 2)];
    graph.node_with("Shape", &["input_ids"], "sequence", only_columns);
}

/// Words plus positions, normalised. The token type is the same for every token, so its row is
/// added to the position table here and now.
fn embeddings(graph: &mut GraphWriter, encoder: &Encoder<'_>, tokens_max: usize) -> String {
    let hidden = encoder.hidden;
    graph.floats("words", &[encoder.words.rows(), hidden], encoder.words.bytes().to_vec());
    let shared: Vec<f32> = match &encoder.token_type {
        Some(types) => types.row(0).collect(),
        None => vec![0.0; hidden],
    };
    let positions = encoder.positions.values().take(tokens_max * hidden);
    let folded = positions.zip(shared.iter().cycle()).map(|(position, shared)| position + shared);
    let bytes = folded.flat_map(f32::to_le_bytes).collect();
    graph.floats("positions", &[tokens_max, hidden], bytes);

    let word = graph.node("Gather", &["words", "input_ids"], "embeddings.word");
    let position =
        graph.node("Slice", &["positions", "zero", "sequence", "zero"], "embeddings.position");
    norm(graph, "embeddings.norm", &encoder.embedding_norm);
    let inputs = [&*word, &position, "embeddings.norm.scale", "embeddings.norm.shift"];
    let epsilon = vec![real("epsilon", encoder.epsilon)];
    graph.microsoft("SkipLayerNormalization", &inputs, "embeddings", epsilon)
}

/// The bias for the longest row, from which a batch takes its upper left corner.
fn relative_bias(
    graph: &mut GraphWriter,
    bias: &RelativeBias,
    tokens_max: usize,
) -> Result<String, Error> {
    let heads = bias.values.len();
    let bytes_needed = tokens_max
        .checked_mul(tokens_max)
        .and_then(|square| square.checked_mul(heads * 4))
        .filter(|&bytes| bytes <= BIAS_BYTES_MAX);
    let Some(bytes_needed) = bytes_needed else {
        return Err(Error::Unsupported {
            what: "max_input_tokens",
            found: format!("{tokens_max} with {heads} heads and a relative position bias"),
            supported: format!("a table of at most {BIAS_BYTES_MAX} bytes"),
        });
    };
    let mut bytes = Vec::with_capacity(bytes_needed);
    for head in 0..heads {
        for query in 0..tokens_max {
            for key in 0..tokens_max {
                let distance = key.cast_signed() - query.cast_signed();
                bytes.extend_from_slice(&bias.at(head, distance).to_le_bytes());
            }
        }
    }
    graph.floats("relative_bias", &[1, heads, tokens_max, tokens_max], bytes);
    graph.int64s("corner", &[0, 0]);
    graph.int64s("corner.axes", &[2, 3]);
    let last = [integer("axis", 0)].to_vec();
    graph.node_with("Concat", &["sequence", "sequence"], "corner.end", last);
    let inputs = ["relative_bias", "corner", "corner.end", "corner.axes"];
    Ok(graph.node("Slice", &inputs, "attention_bias"))
}

/// One block of the encoder on its way into the graph.
struct Block<'b, 'a> {
    encoder: &'b Encoder<'a>,
    layer: &'b Layer<'a>,
    index: usize,
}

impl Block<'_, '_> {
    /// Writes the block; `bias` is empty or the name of the attention bias.
    fn write(&self, graph: &mut GraphWriter, input: &str, bias: &str) -> String {
        let attended = self.attention(graph, input, bias);
        let output = self.product(graph, "output", &self.layer.output, &attended);
        let middle = self.sum_norm(graph, "attention_norm", [&output, input]);
        let up = self.product(graph, "up", &self.layer.up, &middle);
        let active = self.activation(graph, &up);
        let down = self.product(graph, "down", &self.layer.down, &active);
        self.sum_norm(graph, "output_norm", [&down, &middle])
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
        let dims = [linear.weight.columns(), linear.weight.rows()];
        graph.floats(&format!("{name}.weight"), &dims, linear.weight.transposed());
        let bias = linear.bias.bytes().to_vec();
        graph.floats(&format!("{name}.bias"), &[linear.weight.rows()], bias);
        graph.node("MatMul", &[input, &format!("{name}.weight")], &name)
    }

    fn attention(&self, graph: &mut GraphWriter, input: &str, attention_bias: &str) -> String {
        let Layer { query, key, value, .. } = self.layer;
        let mut products = Vec::new();
        let mut biases = Vec::new();
        for (part, linear) in [("query", query), ("key", key), ("value", value)] {
            let name = self.name(part);
            let dims = [linear.weight.columns(), linear.weight.rows()];
            graph.floats(&format!("{name}.weight"), &dims, linear.weight.transposed());
            products.push(graph.node("MatMul", &[input, &format!("{name}.weight")], &name));
            biases.extend_from_slice(linear.bias.bytes());
        }
        let bias = self.name("attention.bias");
        graph.floats(&bias, &[3 * self.encoder.hidden], biases);
        let mut inputs = vec![&*products[0], &products[1], &products[2], &bias, "lengths"];
        if !attention_bias.is_empty() {
            inputs.push(attention_bias);
        }
        let heads = vec![integer("num_heads", self.encoder.heads as i64)];
        graph.microsoft("MultiHeadAttention", &inputs, &self.name("attention"), heads)
    }

    /// The norm of a product, its bias and the block's input taken together.
    fn sum_norm(&self, graph: &mut GraphWriter, part: &str, [product, skip]: [&str; 2]) -> String {
        let name = self.name(part);
        let weights = match part {
            "attention_norm" => &self.layer.attention_norm,
            _ => &self.layer.output_norm,
        };
        norm(graph, &name, weights);
        let (scale, shift) = (format!("{name}.scale"), format!("{name}.shift"));
        let bias = format!("{product}.bias");
        let inputs = [product, skip, &scale, &shift, &bias];
        let epsilon = vec![real("epsilon", self.encoder.epsilon)];
        graph.microsoft("SkipLayerNormalization", &inputs, &name, epsilon)
    }

    fn activation(&self, graph: &mut GraphWriter, product: &str) -> String {
        let (name, bias) = (self.name("activation"), format!("{product}.bias"));
        let inputs = [product, &*bias];
        match self.encoder.activation {
            Activation::Gelu => graph.microsoft("BiasGelu", &inputs, &name, Vec::new()),
            Activation::GeluTanh => graph.microsoft("FastGelu", &inputs, &name, Vec::new()),
            Activation::Relu => {
                let sum = graph.node("Add", &inputs, &format!("{name}.sum"));
                graph.node("Relu", &[&sum], &name)
            }
        }
    }
}

fn norm(graph: &mut GraphWriter, name: &str, norm: &Norm<'_>) {
    let length = [norm.scale.columns()];
    graph.floats(&format!("{name}.scale"), &length, norm.scale.bytes().to_vec());
    graph.floats(&format!("{name}.shift"), &length, norm.shift.bytes().to_vec());
}
