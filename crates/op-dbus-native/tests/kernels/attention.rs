//! Attention of one head over one text.

use crate::data::{Guarded, Random};
use crate::kernels::attention::{Attention, scratch_floats};
use crate::operand::{LANES_MAX, to_bf16};
use crate::precision::Precision;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("attention_of_every_length", every_length),
    ("attention_of_head_sizes", head_sizes),
    ("attention_with_relative_bias", relative_bias),
    ("attention_of_512_tokens", longest),
];

/// Queries that are compared with the reference in one text; all of them in short ones.
const QUERIES: usize = 6;

struct Text {
    /// `[token][3 · size]`: query, key, value; a vector more behind the last.
    rows: Guarded<f32>,
    bias: Option<Guarded<f32>>,
    length: usize,
    size: usize,
    scale: f32,
}

impl Text {
    fn new(length: usize, size: usize, biased: bool, random: &mut Random) -> Self {
        let rows = Guarded::from_fn(length * 3 * size + LANES_MAX, |_| random.value() * 0.7);
        let bias =
            biased.then(|| Guarded::from_fn(2 * length - 1 + LANES_MAX, |_| random.value() * 0.5));
        Self { rows, bias, length, size, scale: 1.0 / (size as f32).sqrt() }
    }

    fn run(&self, subject: &Subject) -> Guarded<f32> {
        let mut found = Guarded::new(self.length * self.size);
        let mut scratch = Guarded::new(scratch_floats(self.length, self.size));
        let queries = self.rows.as_ptr();
        let job = Attention {
            queries,
            keys: queries.wrapping_add(self.size),
            values: queries.wrapping_add(2 * self.size),
            stride: 3 * self.size,
            length: self.length,
            size: self.size,
            scale: self.scale,
            bias: self.bias.as_ref().map_or(std::ptr::null(), |bias| bias.as_ptr()),
            to: found.as_mut_ptr(),
            to_stride: self.size,
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.attend)(&job) };
        found
    }

    fn row(&self, token: usize, part: usize) -> &[f32] {
        &self.rows[(3 * token + part) * self.size..][..self.size]
    }

    /// One query's result, with inputs as `round` makes them, and the largest magnitude of a value.
    fn reference(&self, query: usize, round: fn(f32) -> f32) -> (Vec<f64>, f64) {
        let dot = |key: usize| -> f64 {
            let pairs = self.row(query, 0).iter().zip(self.row(key, 1));
            let products = pairs.map(|(&a, &b)| f64::from(round(a)) * f64::from(round(b)));
            products.sum::<f64>() * f64::from(self.scale)
        };
        let bias = |key: usize| {
            self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[self.length - 1 - query + key]))
        };
        let scores: Vec<f64> = (0..self.length).map(|key| dot(key) + bias(key)).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut result = vec![0.0; self.size];
        let mut size = 0.0_f64;
        for (key, weight) in weights.iter().enumerate() {
            for (to, &value) in result.iter_mut().zip(self.row(key, 2)) {
                *to += weight / total * f64::from(round(value));
                size = size.max(f64::from(value.abs()));
            }
        }
        (result, size)
    }
}

/// What a precision makes of an operand.
type Rounding = fn(f32) -> f32;

fn check(subject: &Subject, length: usize, size: usize, biased: bool, random: &mut Random) {
    let text = Text::new(length, size, biased, random);
    let found = text.run(subject);
    // Scores of 32-bit floats are off by a few units in the last place, which the exponential makes
    // relative errors. In other precisions an instruction set is free to have queries, keys, values
    // and weights in bfloat16, where that is faster.
    let (roundings, relative): (&[Rounding], f64) = match subject.precision {
        Precision::F32 => (&[|value| value], 2e-5),
        Precision::Bf16 | Precision::Int8 => (&[|value| value, to_bf16], 5e-3),
    };
    let last = length - 1;
    for query in (0..length).step_by(length.div_ceil(QUERIES)).chain([last]) {
        let found = &found[query * size..][..size];
        let apart = roundings.iter().map(|round| {
            let (expected, largest) = text.reference(query, *round);
            let apart = found.iter().zip(&expected).map(|(&found, e)| (f64::from(found) - e).abs());
            apart.fold(0.0, f64::max) / largest
        });
        let apart = apart.fold(f64::MAX, f64::min);
        assert!(
            apart <= relative,
            "{length} tokens of {size} columns, query {query}: {apart:e} apart, {relative:e} allowed"
        );
    }
}

fn every_length(subject: &Subject) {
    let mut random = Random::new(30);
    for length in (1..=34).chain([47, 63, 64, 65, 96, 127, 129]) {
        check(subject, length, 32, false, &mut random);
    }
}

fn head_sizes(subject: &Subject) {
    let mut random = Random::new(31);
    for size in [2, 8, 16, 24, 26, 32, 40, 48, 64, 80, 96, 128] {
        check(subject, 9, size, false, &mut random);
    }
}

fn relative_bias(subject: &Subject) {
    let mut random = Random::new(32);
    for length in [1, 2, 7, 16, 33, 100] {
        check(subject, length, 64, true, &mut random);
    }
}

fn longest(subject: &Subject) {
    check(subject, 512, 32, false, &mut Random::new(33));
}
