//! Attention over one text.

use std::f32::consts::LOG2_E;
use std::f64::consts::LN_2;

use crate::data::{Guarded, Random, assert_near};
use crate::kernels::attention::{Attention, scratch_floats};
use crate::operand::{LANES_MAX, to_bf16};
use crate::precision::Precision;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("attention_of_every_length", every_length),
    ("attention_of_head_sizes", head_sizes),
    ("attention_with_relative_bias", relative_bias),
    ("attention_of_the_families_heads", families_heads),
    ("attention_of_random_shapes", random_shapes),
    ("attention_of_512_tokens", longest),
    ("attention_of_scores_of_any_size", any_scores),
    ("attention_of_extreme_rows", extreme_rows),
    ("attention_of_a_score_beyond_all_numbers", beyond_all_numbers),
    ("attention_with_anything_behind_the_text", anything_behind),
    ("attention_of_several_heads", several_heads),
];

/// Queries that are compared with the reference in one text; all of them in short ones.
const QUERIES: usize = 6;

/// What lies around the columns of a result, and must stay there.
const UNTOUCHED: f32 = 1.25e30;

/// What is in the scratch memory, in which other texts were computed before: nothing that would go unnoticed.
const LEFT_OVER: f32 = 3e38;

pub struct Text {
    /// `[token][3 · size]`: query, key, value; a vector more behind the last.
    rows: Guarded<f32>,
    bias: Option<Guarded<f32>>,
    length: usize,
    size: usize,
    scale: f32,
    /// Whether the kernel rounds queries, keys, values and weights to bfloat16.
    rounded: bool,
}

impl Text {
    pub fn new(
        subject: &Subject,
        length: usize,
        size: usize,
        biased: bool,
        random: &mut Random,
    ) -> Self {
        let rows = Guarded::from_fn(length * 3 * size + LANES_MAX, |_| random.value() * 0.7);
        let size_of_bias = 2 * length - 1 + LANES_MAX;
        let bias = biased.then(|| Guarded::from_fn(size_of_bias, |_| random.value() * 0.5));
        let rounded = subject.isa.has_bf16() && subject.precision != Precision::F32;
        Self { rows, bias, length, size, scale: 1.0 / (size as f32).sqrt(), rounded }
    }

    /// The result, `[token][size]`, from between the columns of other heads.
    pub fn run(&self, subject: &Subject) -> Vec<f32> {
        let (before, stride) = (3, self.size + 8);
        let end = self.length * stride;
        let mut found = Guarded::from_fn(end, |_| UNTOUCHED);
        let floats = scratch_floats(self.length, self.size);
        let mut scratch = Guarded::from_fn(floats, |_| LEFT_OVER);
        let queries = self.rows.as_ptr();
        let job = Attention {
            heads: 1,
            queries,
            keys: queries.wrapping_add(self.size),
            values: queries.wrapping_add(2 * self.size),
            stride: 3 * self.size,
            length: self.length,
            size: self.size,
            scale: self.scale,
            bias: self.bias.as_ref().map_or(std::ptr::null(), |bias| bias.as_ptr()),
            bias_stride: 0,
            to: found[before..].as_mut_ptr(),
            to_stride: stride,
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.attend)(&job) };
        let mut result = Vec::new();
        for row in found.chunks(stride) {
            let (own, others) = (&row[before..before + self.size], |at| row[at] == UNTOUCHED);
            result.extend(own);
            assert!((0..before).chain(before + self.size..stride).all(others), "other columns");
        }
        result
    }

    /// One token's query, key or value, as the kernel multiplies it: a query is scaled before that, so
    /// that scores are binary logarithms.
    fn row(&self, token: usize, part: usize) -> impl Iterator<Item = f64> {
        let row = &self.rows[(3 * token + part) * self.size..][..self.size];
        let rounded = self.rounded;
        let (scale, unit) = if part == 0 { (self.scale * LOG2_E, LN_2) } else { (1.0, 1.0) };
        let scaled = row.iter().map(move |&value| value * scale);
        let read = move |value| f64::from(if rounded { to_bf16(value) } else { value }) * unit;
        scaled.map(read)
    }

    /// One query's result, and how far from it each column may be.
    pub fn reference(&self, query: usize) -> Vec<(f64, f64)> {
        let query_row: Vec<f64> = self.row(query, 0).collect();
        // Sums of 32-bit floats are off by a few units in the last place of their largest terms,
        // which the exponential makes relative errors of the weights.
        let mut score_error = 0.0_f64;
        let mut score = |key: usize| {
            let (mut sum, mut size) = (0.0, 0.0);
            for (a, b) in query_row.iter().zip(self.row(key, 1)) {
                sum += a * b;
                size += (a * b).abs();
            }
            let last = self.length - 1;
            let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[last - query + key]));
            score_error = score_error.max(size + bias.abs());
            sum + bias
        };
        let scores: Vec<f64> = (0..self.length).map(&mut score).collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut result = vec![(0.0, 0.0); self.size];
        for (key, weight) in weights.iter().enumerate() {
            for (to, value) in result.iter_mut().zip(self.row(key, 2)) {
                to.0 += weight / total * value;
                to.1 += weight / total * value.abs();
            }
        }
        let of_weights = if self.rounded { 1.0 / 256.0 } else { 0.0 };
        let epsilon = f64::from(f32::EPSILON);
        let relative = of_weights + epsilon * (8.0 * score_error + self.length as f64 + 24.0);
        result.into_iter().map(|(value, size)| (value, size * relative + 1e-30)).collect()
    }
}

fn check(subject: &Subject, length: usize, size: usize, biased: bool, random: &mut Random) {
    compare(subject, &Text::new(subject, length, size, biased, random));
}

fn compare(subject: &Subject, text: &Text) {
    let Text { length, size, .. } = *text;
    let found = text.run(subject);
    let queries = (0..length).rev().step_by(length.div_ceil(QUERIES) | 1);
    for query in queries.chain([0]) {
        for (column, (expected, allowed)) in text.reference(query).into_iter().enumerate() {
            assert_near(found[query * size + column], expected, allowed, || {
                format!("{length} tokens of {size} columns, query {query}, column {column}")
            });
        }
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
    for size in [1, 3, 5, 7, 15, 17, 31, 33, 63, 65, 127] {
        check(subject, 10, size, false, &mut random);
    }
}

/// Of the small models, and of the others.
fn families_heads(subject: &Subject) {
    let mut random = Random::new(36);
    for (length, biased) in [(31, false), (65, true), (130, false), (257, true)] {
        check(subject, length, 32, biased, &mut random);
        check(subject, length, 64, biased, &mut random);
    }
}

fn random_shapes(subject: &Subject) {
    let mut random = Random::new(37);
    for turn in 0..20 {
        let (length, size) = (random.between(1, 150), random.between(1, 80));
        check(subject, length, size, turn % 2 == 0, &mut random);
    }
}

fn relative_bias(subject: &Subject) {
    let mut random = Random::new(32);
    for (length, size) in [(1, 64), (2, 32), (7, 26), (15, 64), (16, 32), (33, 26), (100, 64)] {
        check(subject, length, size, true, &mut random);
    }
}

fn longest(subject: &Subject) {
    let mut random = Random::new(33);
    check(subject, 512, 32, false, &mut random);
    check(subject, 512, 64, true, &mut random);
}

/// Scores whose powers are too large or too small for a 32-bit float, all of a query's or some.
fn any_scores(subject: &Subject) {
    let mut random = Random::new(34);
    for (offset, spread) in [(-400.0, 3.0), (-54.0, 3.0), (54.0, 3.0), (400.0, 3.0), (0.0, 300.0)] {
        for length in [1, 7, 16, 33, 70] {
            let mut text = Text::new(subject, length, 32, false, &mut random);
            let bias = |_| offset + spread * random.value();
            text.bias = Some(Guarded::from_fn(2 * length - 1 + LANES_MAX, bias));
            compare(subject, &text);
        }
    }
}

/// Scores that are all equal, of queries and keys that are hardly there or of a bias, or so far apart that the largest
/// has it all; and values of other magnitudes.
fn extreme_rows(subject: &Subject) {
    let mut random = Random::new(38);
    // What queries and keys are multiplied by, what values are, and what is added to all scores.
    let cases = [
        (0.0, 1.0, 0.0),
        (0.0, 1.0, 400.0),
        (0.0, 1.0, -400.0),
        (1e-42, 1.0, 0.0),
        (1e-20, 1.0, 0.0),
        (5.0, 1.0, 0.0),
        (30.0, 1.0, 0.0),
        (1.0, 1e12, 0.0),
        (1.0, 1e-20, 0.0),
    ];
    for (of_scores, of_values, added) in cases {
        for length in [1, 16, 33, 70] {
            let mut text = Text::new(subject, length, 32, true, &mut random);
            for (at, value) in text.rows.iter_mut().enumerate() {
                *value *= if at / 32 % 3 == 2 { of_values } else { of_scores };
            }
            text.bias = text.bias.map(|bias| Guarded::from_fn(bias.len(), |_| added));
            compare(subject, &text);
        }
    }
}

/// Its text has no vector; that the other keys weigh the same would be one that looks like any other.
fn beyond_all_numbers(subject: &Subject) {
    let mut random = Random::new(40);
    for length in [1, 7, 16, 33, 70] {
        let mut text = Text::new(subject, length, 32, true, &mut random);
        let key = length / 2;
        text.rows[..32].fill(1e25);
        text.rows[(3 * key + 1) * 32..][..32].fill(1e25);
        let found = text.run(subject);
        assert!(found[..32].iter().all(|value| !value.is_finite()), "{length} tokens: {found:?}");
    }
}

/// Vectors are read beyond the last column of the last token, where the next text is.
fn anything_behind(subject: &Subject) {
    let mut random = Random::new(39);
    for (length, size) in [(1, 32), (7, 26), (33, 25), (64, 64)] {
        let mut text = Text::new(subject, length, size, true, &mut random);
        let mut run = |behind: f32| {
            text.rows[length * 3 * size..].fill(behind);
            text.run(subject).iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        let expected = run(0.0);
        assert!(run(LEFT_OVER) == expected, "{length} tokens of {size} columns");
    }
}

/// Heads side by side are what each is alone.
fn several_heads(subject: &Subject) {
    const HEADS: usize = 3;
    let mut random = Random::new(35);
    for (length, size) in [(5, 32), (33, 26), (70, 64)] {
        let (columns, bias_stride) = (HEADS * size, 2 * length + LANES_MAX);
        let rows = Guarded::from_fn(length * 3 * columns + LANES_MAX, |_| random.value() * 0.7);
        let bias = Guarded::from_fn(HEADS * bias_stride, |_| random.value() * 0.5);
        let mut scratch = Guarded::new(scratch_floats(length, size));
        let mut run = |bias: *const f32, each: usize| {
            let mut found = Guarded::<f32>::new(length * columns);
            for head in (0..HEADS).step_by(each) {
                let queries = rows.as_ptr().wrapping_add(head * size);
                let bias_of_head = bias.wrapping_add(head * bias_stride);
                let job = Attention {
                    heads: each,
                    queries,
                    keys: queries.wrapping_add(columns),
                    values: queries.wrapping_add(2 * columns),
                    stride: 3 * columns,
                    length,
                    size,
                    scale: 1.0 / (size as f32).sqrt(),
                    bias: if bias.is_null() { bias } else { bias_of_head },
                    bias_stride,
                    to: found[head * size..].as_mut_ptr(),
                    to_stride: columns,
                    scratch: scratch.as_mut_ptr(),
                };
                // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
                unsafe { (subject.kernels.attend)(&job) };
            }
            found.iter().map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        for bias in [bias.as_ptr(), std::ptr::null()] {
            assert!(run(bias, HEADS) == run(bias, 1), "{length} tokens, heads of {size}");
        }
    }
}
