//! Models of random weights, small and of sizes that no vector divides.

use op_dbus_graph::Pooling;
use op_dbus_graph::encoder::Activation::{self, Gelu, GeluTanh, Relu};
use op_dbus_graph::encoder::{
    Dense, DenseActivation, Encoder, Layer, Linear, Norm, Padding, RelativeBias, Tensor,
};

use crate::kernels::kernels;
use crate::maxima::{Input, Recorder};
use crate::packed::Packed;
use crate::{Isa, NativeBackend, Options, Precision};

/// Sizes of a made-up model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub hidden: usize,
    pub heads: usize,
    pub inner: usize,
    pub activation: Activation,
    pub reach: Option<usize>,
    pub dense: Option<usize>,
    pub positions: usize,
}

pub const VOCABULARY: usize = 50;

const fn sizes(hidden: usize, heads: usize, inner: usize, activation: Activation) -> Sizes {
    Sizes { hidden, heads, inner, activation, reach: None, dense: None, positions: 40 }
}

/// Positions and reach of the families' largest models, heads of an odd size, and a block of inputs with a rest.
pub const LONG: Sizes = Sizes { reach: Some(128), positions: 512, ..sizes(50, 2, 131, Gelu) };

/// Sizes with tails everywhere; one panel or less; more than a block of inputs; with bias, a padding token
/// and a module. Of each activation one at least.
#[cfg(not(miri))]
pub const SIZES: [Sizes; 4] = [
    sizes(42, 3, 70, Relu),
    sizes(8, 2, 12, GeluTanh),
    sizes(200, 4, 420, Gelu),
    Sizes { reach: Some(7), dense: Some(23), ..sizes(64, 2, 130, Gelu) },
];

/// The same as far as an interpreter, which takes some ten thousand times as long, gets through them.
#[cfg(miri)]
pub const SIZES: [Sizes; 4] = [
    sizes(15, 3, 21, Relu),
    sizes(8, 2, 12, GeluTanh),
    sizes(20, 4, 34, Gelu),
    Sizes { reach: Some(3), dense: Some(5), ..sizes(18, 2, 20, Gelu) },
];

/// Numbers of -1 to 1 that look random and are always the same.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, end: usize) -> usize {
        ((self.next() + 1.0) / 2.0 * end as f32) as usize % end
    }

    fn bytes(&mut self, count: usize, scale: f32, middle: f32) -> Vec<u8> {
        (0..count).flat_map(|_| (middle + scale * self.next()).to_le_bytes()).collect()
    }
}

/// The bytes that an encoder borrows, in the order in which [`encoder`] takes them.
pub struct Weights {
    sizes: Sizes,
    tensors: Vec<(usize, Vec<u8>)>,
    bias: Option<RelativeBias>,
}

const LAYERS: usize = 2;

impl Weights {
    pub fn new(sizes: Sizes, seed: u64) -> Self {
        let mut random = Random(seed);
        let Sizes { hidden, heads, inner, reach, dense, positions, .. } = sizes;
        let mut tensors = Vec::new();
        let mut table = |rows: usize, columns: usize, scale: f32, middle: f32| {
            tensors.push((columns, random.bytes(rows * columns, scale, middle)));
        };
        table(VOCABULARY, hidden, 1.0, 0.0);
        table(positions + 1, hidden, 0.3, 0.0);
        table(2, hidden, 0.3, 0.0);
        table(1, hidden, 0.2, 1.0);
        table(1, hidden, 0.2, 0.0);
        for _ in 0..LAYERS {
            let products = [(hidden, hidden); 4].into_iter();
            for (outputs, inputs) in products.chain([(inner, hidden), (hidden, inner)]) {
                table(outputs, inputs, (3.0 / inputs as f32).sqrt(), 0.0);
                table(1, outputs, 0.1, 0.0);
            }
            for _ in 0..2 {
                table(1, hidden, 0.2, 1.0);
                table(1, hidden, 0.2, 0.0);
            }
        }
        if let Some(outputs) = dense {
            table(outputs, hidden, 0.3, 0.0);
            table(1, outputs, 0.1, 0.0);
        }
        let bias = reach.map(|reach| RelativeBias {
            reach,
            values: (0..heads).map(|_| (0..=2 * reach).map(|_| random.next()).collect()).collect(),
        });
        Self { sizes, tensors, bias }
    }

    /// The same with this number all over the vector of a word.
    pub fn with_word(mut self, id: usize, value: f32) -> Self {
        let (columns, words) = &mut self.tensors[0];
        let row = &mut words[4 * *columns * id..][..4 * *columns];
        row.as_chunks_mut().0.iter_mut().for_each(|place| *place = value.to_le_bytes());
        self
    }

    /// The encoder of these weights.
    pub fn encoder(&self) -> Encoder<'_> {
        let mut tensors = self.tensors.iter().map(|(columns, bytes)| Tensor::new(*columns, bytes));
        let mut next = || tensors.next().unwrap();
        let (words, positions, token_type) = (next(), next(), Some(next()));
        let embedding_norm = Norm { scale: next(), shift: next() };
        let mut layers = Vec::new();
        for _ in 0..LAYERS {
            let mut linear = || Linear { weight: next(), bias: next() };
            let (query, key, value, output) = (linear(), linear(), linear(), linear());
            let (up, down) = (linear(), linear());
            let mut norm = || Norm { scale: next(), shift: next() };
            let (attention_norm, output_norm) = (norm(), norm());
            layers.push(Layer { query, key, value, output, attention_norm, up, down, output_norm });
        }
        let dense = self.sizes.dense.map(|_| Dense {
            linear: next(),
            bias: Some(next()),
            activation: DenseActivation::Tanh,
        });
        Encoder {
            hidden: self.sizes.hidden,
            heads: self.sizes.heads,
            epsilon: 1e-5,
            activation: self.sizes.activation,
            words,
            positions: positions.skip_rows(1),
            padding: self.sizes.reach.map(|_| Padding { id: 1, position: positions.only_row(0) }),
            token_type,
            embedding_norm,
            layers,
            relative_bias: self.bias.clone(),
            dense: dense.into_iter().collect(),
        }
    }
}

/// A backend of these weights, packed in memory.
pub fn backend(weights: &Weights, isa: Isa, precision: Precision, threads: usize) -> NativeBackend {
    let encoder = weights.encoder();
    let Sizes { hidden, inner, .. } = weights.sizes;
    // Inputs that get larger than others, so that smoothing has something to do.
    let (recorder, mut random) = (Recorder::new(LAYERS, hidden, inner), Random(9));
    for layer in 0..LAYERS {
        for input in [Input::Attention, Input::Output, Input::Up, Input::Down] {
            let columns = if matches!(input, Input::Down) { inner } else { hidden };
            let row: Vec<f32> = (0..columns).map(|_| (2.0 * random.next()).exp()).collect();
            recorder.see(layer, input, &row);
        }
    }
    let layout = kernels(isa, precision).layout;
    let packed = Packed::build(&encoder, layout, Some(&recorder.maxima())).unwrap();
    NativeBackend::assemble(packed, &options(&encoder, isa, precision, threads)).unwrap()
}

/// Options for an encoder, with a cache folder that is not there.
pub fn options(encoder: &Encoder<'_>, isa: Isa, precision: Precision, threads: usize) -> Options {
    Options {
        cache_dir: "/nonexistent".into(),
        key: "made up".to_owned(),
        isa,
        precision,
        threads,
        cpus: Vec::new(),
        length_max: encoder.positions.rows(),
        pooling: Pooling::Mean,
        normalize: true,
        dimensions: encoder.dimensions(),
        calibrate: false,
    }
}

/// Texts of `lengths` tokens.
pub fn texts(lengths: &[usize], seed: u64) -> Vec<Vec<i32>> {
    let mut random = Random(seed);
    let mut text = |length: usize| -> Vec<i32> {
        (0..length).map(|_| i32::try_from(random.below(VOCABULARY)).unwrap()).collect()
    };
    lengths.iter().map(|&length| text(length)).collect()
}
