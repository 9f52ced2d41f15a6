//! Where everything lies in a model's packed weights: a pure function of the model's shape and of
//! the layout that the kernels ask for.

use std::ops::Range;

use op_dbus_graph::encoder::{Activation, DenseActivation, Encoder};
use serde::{Deserialize, Serialize};

use crate::kernels::product::GROUP;
use crate::kernels::{Element, Layout};

/// Parts begin on a cache line.
const ALIGNMENT: usize = 64;

/// Vectors are padded with zeros to this many values: a multiple of every panel.
const PADDING: usize = 64;

/// Sizes of a model. It comes from a file, so nothing may be derived from it unchecked but by
/// [`Plan::new`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub hidden: usize,
    pub heads: usize,
    pub inner: usize,
    pub layers: usize,
    pub vocabulary: usize,
    pub positions: usize,
    /// The token that has a position of its own, behind all others; none if each has that of its place.
    pub padding: Option<usize>,
    pub epsilon: f32,
    pub activation: Activation,
    /// Distances beyond ± this share a bias; none without a relative position bias.
    pub reach: Option<usize>,
    pub dense: Vec<DenseShape>,
}

/// Sizes of one module behind the pooling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DenseShape {
    pub inputs: usize,
    pub outputs: usize,
    pub activation: DenseActivation,
}

impl Shape {
    /// The sizes of an encoder.
    pub fn of(encoder: &Encoder<'_>) -> Self {
        let dense = encoder.dense.iter().map(|dense| DenseShape {
            inputs: dense.linear.columns(),
            outputs: dense.linear.rows(),
            activation: dense.activation,
        });
        Self {
            hidden: encoder.hidden,
            heads: encoder.heads,
            inner: encoder.layers.first().map_or(0, |layer| layer.up.weight.rows()),
            layers: encoder.layers.len(),
            vocabulary: encoder.words.rows(),
            positions: encoder.positions.rows(),
            padding: encoder.padding.map(|padding| padding.id),
            epsilon: encoder.epsilon,
            activation: encoder.activation,
            reach: encoder.relative_bias.as_ref().map(|bias| bias.reach),
            dense: dense.collect(),
        }
    }

    /// Columns of one attention head.
    pub fn head(&self) -> usize {
        self.hidden / self.heads
    }

    /// Of each token of a text, which row of the table of words and which of that of positions it takes.
    pub fn rows(&self, ids: &[i32]) -> impl Iterator<Item = (usize, usize)> {
        let mut counted = 0;
        ids.iter().map(move |&id| {
            let word = usize::try_from(id).unwrap_or(0);
            if self.padding == Some(word) {
                return (word, self.positions);
            }
            counted += 1;
            (word, counted - 1)
        })
    }

    /// Length of a vector.
    pub fn dimensions(&self) -> usize {
        self.dense.last().map_or(self.hidden, |dense| dense.outputs)
    }
}

/// One linear layer.
#[derive(Clone, Debug)]
pub(crate) struct LinearPlan {
    pub inputs: usize,
    /// Outputs, padded to whole panels.
    pub columns: usize,
    /// Steps per panel.
    pub steps: usize,
    /// Blocks of inputs that share a scale.
    pub blocks: usize,
    /// `[panels][steps][panel][step]`.
    pub panels: Range<usize>,
    /// `[columns]`, f32.
    pub bias: Range<usize>,
    /// `[panels][blocks][2][panel]`, f32; empty where weights are floats.
    pub scales: Range<usize>,
    /// Factor of each input, `[inputs]` padded, f32; empty where weights are floats.
    pub smooth: Range<usize>,
}

/// Scale and shift of a norm, each `[hidden]`, f32.
#[derive(Clone, Debug)]
pub(crate) struct NormPlan {
    pub scale: Range<usize>,
    pub shift: Range<usize>,
}

/// One block of the encoder.
#[derive(Clone, Debug)]
pub(crate) struct LayerPlan {
    /// Query, key and value: `[3 · hidden, hidden]`.
    pub attention: LinearPlan,
    pub output: LinearPlan,
    pub attention_norm: NormPlan,
    pub up: LinearPlan,
    pub down: LinearPlan,
    pub output_norm: NormPlan,
}

/// One module behind the pooling, f32: weights `[inputs][outputs]`, bias `[outputs]`.
#[derive(Clone, Debug)]
pub(crate) struct DensePlan {
    pub weights: Range<usize>,
    pub bias: Range<usize>,
}

/// Byte ranges of all parts.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `[vocabulary][hidden]`: f32, or bfloat16 unless the layout is of 32-bit floats.
    pub words: Range<usize>,
    /// `[positions][hidden]`, f32, the token type added, and a row more for the padding token.
    pub positions: Range<usize>,
    pub embedding_norm: NormPlan,
    pub layers: Vec<LayerPlan>,
    /// `[heads][2 · reach + 1]`, f32.
    pub bias: Range<usize>,
    pub dense: Vec<DensePlan>,
    /// Bytes in all.
    pub bytes: usize,
}

impl Plan {
    /// Lays a model out; nothing if its sizes make no sense or it takes more than `most` bytes. No more is
    /// allocated for the plan than such a model has parts.
    pub fn new(shape: &Shape, layout: Layout, most: usize) -> Option<Self> {
        let Shape { hidden, heads, inner, .. } = *shape;
        if [hidden, heads, inner, shape.vocabulary, shape.positions].contains(&0)
            || !hidden.is_multiple_of(heads)
        {
            return None;
        }
        let mut cursor = Cursor { at: 0, most, layout };
        let word = if layout.weight == Element::F32 { 4 } else { 2 };
        let words = cursor.take(shape.vocabulary.checked_mul(hidden)?, word)?;
        let rows = shape.positions.checked_add(usize::from(shape.padding.is_some()))?;
        let positions = cursor.take(rows.checked_mul(hidden)?, 4)?;
        let embedding_norm = cursor.norm(hidden)?;
        let mut layers = Vec::new();
        for _ in 0..shape.layers {
            layers.push(LayerPlan {
                attention: cursor.linear(hidden, hidden.checked_mul(3)?)?,
                output: cursor.linear(hidden, hidden)?,
                attention_norm: cursor.norm(hidden)?,
                up: cursor.linear(hidden, inner)?,
                down: cursor.linear(inner, hidden)?,
                output_norm: cursor.norm(hidden)?,
            });
        }
        let distances = match shape.reach {
            Some(reach) => reach.checked_mul(2)?.checked_add(1)?,
            None => 0,
        };
        let bias = cursor.take(heads.checked_mul(distances)?, 4)?;
        let mut dense = Vec::new();
        let mut width = hidden;
        for module in &shape.dense {
            if module.inputs != width || module.outputs == 0 {
                return None;
            }
            width = module.outputs;
            dense.push(DensePlan {
                weights: cursor.take(module.inputs.checked_mul(module.outputs)?, 4)?,
                bias: cursor.take(module.outputs, 4)?,
            });
        }
        let bytes = cursor.at;
        Some(Self { words, positions, embedding_norm, layers, bias, dense, bytes })
    }
}

struct Cursor {
    at: usize,
    most: usize,
    layout: Layout,
}

impl Cursor {
    fn take(&mut self, count: usize, bytes: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(count.checked_mul(bytes)?)?;
        let range = self.at..end;
        self.at = end.checked_next_multiple_of(ALIGNMENT)?;
        (self.at <= self.most).then_some(range)
    }

    /// A vector of 32-bit floats that whole vectors can be read from.
    fn vector(&mut self, length: usize) -> Option<Range<usize>> {
        self.take(length.checked_next_multiple_of(PADDING)?, 4)
    }

    fn norm(&mut self, hidden: usize) -> Option<NormPlan> {
        Some(NormPlan { scale: self.vector(hidden)?, shift: self.vector(hidden)? })
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Option<LinearPlan> {
        let Layout { weight, panel, step, .. } = self.layout;
        let columns = outputs.checked_next_multiple_of(panel)?;
        let steps = inputs.div_ceil(step);
        let blocks = inputs.div_ceil(GROUP);
        let (bytes, scales) = match weight {
            Element::F32 => (4, 0),
            Element::Bf16 => (2, 0),
            Element::I8 => (1, columns.checked_mul(blocks)?.checked_mul(2)?),
        };
        let weights = columns.checked_mul(steps)?.checked_mul(step)?;
        Some(LinearPlan {
            inputs,
            columns,
            steps,
            blocks,
            panels: self.take(weights, bytes)?,
            bias: self.vector(columns)?,
            scales: self.take(scales, 4)?,
            smooth: if weight == Element::I8 { self.vector(inputs)? } else { self.at..self.at },
        })
    }
}
