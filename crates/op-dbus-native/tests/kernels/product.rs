//! Products with packed weights, and what is done to them while they are hot.

use std::ops::Range;

use crate::data::{Guarded, Random, assert_near, normal_integral};
use crate::kernels::product::{Activation, Finish, GROUP, Product, Rows};
use crate::operand::{LANES_MAX, Left, Right, to_bf16};
use crate::precision::Precision;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("operands_are_rounded_to_the_nearest", operands),
    ("rows_and_columns_apart_are_the_same_bits", apart),
    ("residual_is_added", residual),
    ("activations", activations),
];

/// Columns that are compared with the reference in one row, and rows in one product; all of them in
/// small ones. Both are odd, so that every place in a panel and in a tile comes up.
const COLUMNS: usize = 23;
const ROWS: usize = 9;

/// Rows of random inputs, with what lies behind them in the last vector zero.
pub struct Inputs {
    values: Guarded<f32>,
    stride: usize,
    pub rows: usize,
    columns: usize,
}

impl Inputs {
    pub fn new(rows: usize, columns: usize, random: &mut Random) -> Self {
        Self::from_fn(rows, columns, |_| random.value())
    }

    /// Each value from its column.
    pub fn from_fn(rows: usize, columns: usize, mut value: impl FnMut(usize) -> f32) -> Self {
        let stride = columns.next_multiple_of(LANES_MAX);
        let at = |i: usize| if i % stride < columns { value(i % stride) } else { 0.0 };
        Self { values: Guarded::from_fn(rows * stride, at), stride, rows, columns }
    }

    pub fn value(&self, row: usize, column: usize) -> f32 {
        self.values[row * self.stride + column]
    }

    /// The left operand, by the kernel's own conversion.
    pub fn prepare(&self, subject: &Subject) -> Left {
        self.prepare_smoothed(subject, std::ptr::null())
    }

    /// As above, with a factor for each column, or null.
    fn prepare_smoothed(&self, subject: &Subject, smooth: *const f32) -> Left {
        let mut left = Left::new(subject, self.rows, self.columns);
        let job = Rows {
            from: self.values.as_ptr(),
            stride: self.stride,
            rows: self.rows,
            columns: self.columns.next_multiple_of(LANES_MAX),
            smooth,
            to: left.operand(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.prepare)(&job) };
        left
    }
}

/// Factors for the columns of a row, padded like it.
fn factors(columns: usize, random: &mut Random) -> Guarded<f32> {
    Guarded::from_fn(columns, |_| 0.3 + random.value().abs())
}

/// Some columns of a product, of all rows. What `finish` points to has room for them.
pub fn multiply(
    subject: &Subject,
    left: &mut Left,
    right: &Right,
    columns: Range<usize>,
    finish: Finish,
) {
    let job = Product {
        rows: left.rows,
        input: left.operand(),
        weights: right.weights(),
        first: columns.start,
        end: columns.end,
        finish,
    };
    // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
    unsafe { (subject.kernels.multiply)(&job) };
}

/// All columns of a product, stored.
pub fn store(subject: &Subject, left: &mut Left, right: &Right, to: &mut [f32]) {
    let finish = Finish::Store { to: to.as_mut_ptr(), stride: right.padded };
    multiply(subject, left, right, 0..right.padded, finish);
}

/// Relative error of a sum of `count` terms in 32-bit floats, with some air.
pub fn allowed(count: usize, size: f64) -> f64 {
    (count as f64 + 16.0) * f64::from(f32::EPSILON) * size + 1e-30
}

/// All of `0..count` up to twice `most` numbers, else some of them, the last among them.
fn some(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let step = if count <= 2 * most { 1 } else { (count / most) | 1 };
    (0..count).rev().step_by(step)
}

fn operands(subject: &Subject) {
    let mut random = Random::new(1);
    for columns in [1, 5, 16, 48, 192, 195, 384] {
        let rows = Inputs::new(3, columns, &mut random);
        let smooth = factors(rows.stride, &mut random);
        let left = rows.prepare(subject);
        check_operand(subject, &rows, &left, |_| 1.0);
        if subject.precision == Precision::Int8 {
            all_steps_are_used(&left, columns);
        }
        let left = rows.prepare_smoothed(subject, smooth.as_ptr());
        check_operand(subject, &rows, &left, |column| smooth[column]);
    }
    halfway(subject);
}

fn check_operand(subject: &Subject, rows: &Inputs, left: &Left, factor: impl Fn(usize) -> f32) {
    let columns = rows.columns;
    for (row, column) in
        (0..rows.rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
    {
        let value = rows.values[row * rows.stride + column] * factor(column);
        let (expected, allowed) = match subject.precision {
            Precision::F32 => (value, 0.0),
            Precision::Bf16 => (to_bf16(value), 0.0),
            // Half a step, and a little for the steps' own rounding.
            Precision::Int8 => (value, 0.501 * left.scale(row, column / GROUP).0),
        };
        let allowed = f64::from(allowed) + f64::from(expected.abs()) * 1e-6;
        assert_near(left.meant(row, column) as f32, f64::from(expected), allowed, || {
            format!("{columns} columns, row {row}, column {column}")
        });
        let stored = left.stored(row, column) + left.shift;
        assert!((0.0..=255.0).contains(&stored) || subject.precision != Precision::Int8);
    }
}

/// The least and the largest input of a block are its first and its last step.
fn all_steps_are_used(left: &Left, columns: usize) {
    for block in 0..columns.div_ceil(GROUP) {
        let end = columns.next_multiple_of(LANES_MAX).min((block + 1) * GROUP);
        let stored: Vec<f32> =
            (block * GROUP..end).map(|column| left.stored(0, column) + left.shift).collect();
        let least = stored.iter().copied().fold(f32::MAX, f32::min);
        let most = stored.iter().copied().fold(f32::MIN, f32::max);
        assert_eq!((least, most), (0.0, 255.0), "{columns} columns, block {block}");
    }
}

/// Values that lie halfway between two bfloat16 go to the even one, on both sides of 0.
fn halfway(subject: &Subject) {
    if subject.precision != Precision::Bf16 {
        return;
    }
    let columns = 64;
    let at = |i: usize| {
        let (sign, upper, around) = ((i & 1) << 31, 0x3F80 + i / 6, i / 2 % 3);
        f32::from_bits((sign | upper << 16 | (0x7FFF + around)) as u32)
    };
    let rows = Inputs { values: Guarded::from_fn(columns, at), stride: columns, rows: 1, columns };
    let left = rows.prepare(subject);
    for column in 0..columns {
        let (found, value) = (left.stored(0, column), rows.values[column]);
        assert_eq!(found, to_bf16(value), "{value:e} in column {column}");
    }
}

/// What else is in the batch, and how the columns are shared out, must not change a bit.
fn apart(subject: &Subject) {
    let mut random = Random::new(5);
    // More rows than a tile has, and more inputs than are multiplied at a time.
    let (rows, inputs, columns) = (47, 1100, 160);
    let all = Inputs::new(rows, inputs, &mut random);
    let right = Right::new(subject, inputs, columns, &mut random);
    let padded = right.padded;
    let mut left = all.prepare(subject);
    let mut whole = Guarded::new(rows * padded);
    store(subject, &mut left, &right, &mut whole);
    let mut pieces = Guarded::new(rows * padded);
    for first in (0..padded).step_by(GROUP) {
        let finish = Finish::Store { to: pieces.as_mut_ptr(), stride: padded };
        let end = padded.min(first + GROUP);
        multiply(subject, &mut left, &right, first..end, finish);
    }
    assert!(same(&whole, &pieces), "columns apart");
    for row in 0..rows {
        let stride = all.stride;
        let values = &all.values[row * stride..];
        let alone = Inputs {
            values: Guarded::from_fn(stride, |i| values[i]),
            stride,
            rows: 1,
            columns: inputs,
        };
        let mut found = Guarded::new(padded);
        store(subject, &mut alone.prepare(subject), &right, &mut found);
        assert!(same(&found, &whole[row * padded..][..padded]), "row {row} alone");
    }
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

fn residual(subject: &Subject) {
    let mut random = Random::new(6);
    for (rows, inputs, columns) in [(1, 64, 64), (13, 100, 384), (4, 33, 50), (67, 1100, 64)] {
        let mut left = Inputs::new(rows, inputs, &mut random).prepare(subject);
        let right = Right::new(subject, inputs, columns, &mut random);
        let before = Guarded::from_fn(rows * right.padded, |_| random.value());
        let mut found = Guarded::new(rows * right.padded);
        let finish =
            Finish::Add { to: found.as_mut_ptr(), residual: before.as_ptr(), stride: right.padded };
        multiply(subject, &mut left, &right, 0..right.padded, finish);
        for row in some(rows, ROWS) {
            for (column, sum, size) in right.sums(&left, row, some(columns, COLUMNS)) {
                let at = row * right.padded + column;
                let before = f64::from(before[at]);
                let allowed = allowed(inputs, size + before.abs());
                assert_near(found[at], sum + before, allowed, || {
                    format!("row {row}, column {column}")
                });
            }
        }
    }
}

/// The activated product as the operand of the next one.
fn activations(subject: &Subject) {
    let mut random = Random::new(7);
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        for (rows, inputs, columns) in [
            (1, 40, 192),
            (14, 96, 300),
            (3, 200, 384),
            (40, 1100, 128),
            // Several groups of columns, and strips that overlap.
            (67, 384, 384),
            (97, 520, 300),
        ] {
            let mut left = Inputs::new(rows, inputs, &mut random).prepare(subject);
            let right = Right::new(subject, inputs, columns, &mut random);
            let mut next = Left::new(subject, rows, right.padded);
            // Every other case has factors.
            let smooth = factors(right.padded, &mut random);
            let smoothed = rows % 2 == 0;
            let finish = Finish::Activate {
                activation,
                to: next.operand(),
                smooth: if smoothed { smooth.as_ptr() } else { std::ptr::null() },
            };
            multiply(subject, &mut left, &right, 0..right.padded, finish);
            for row in some(rows, ROWS) {
                for (column, sum, size) in right.sums(&left, row, some(columns, COLUMNS)) {
                    let factor = if smoothed { f64::from(smooth[column]) } else { 1.0 };
                    let expected = activated(activation, sum);
                    // A sum's own error is at most a little magnified; the polynomials have 1.5e-6,
                    // or 1.9e-4 where results are rounded.
                    let coarse = activation == Activation::Gelu;
                    let coarse = coarse && subject.precision != Precision::F32;
                    let fit = if coarse { 2e-4 } else { 2e-6 * (1.0 + expected.abs()) };
                    let allowed = 1.2 * allowed(inputs, size) + fit;
                    let (expected, allowed) = (expected * factor, allowed * factor);
                    let rounding = match subject.precision {
                        Precision::F32 => 0.0,
                        Precision::Bf16 => expected.abs() / 256.0,
                        Precision::Int8 => 0.501 * f64::from(next.scale(row, column / GROUP).0),
                    };
                    assert_near(
                        next.meant(row, column) as f32,
                        expected,
                        allowed + rounding,
                        || {
                            format!(
                                "{activation:?}, {inputs} inputs, row {row}, column {column}, sum {sum}"
                            )
                        },
                    );
                }
            }
        }
    }
}

pub fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu => x * normal_integral(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x * 0.5 * (1.0 + inner.tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}
