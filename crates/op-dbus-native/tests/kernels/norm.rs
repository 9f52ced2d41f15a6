//! Layer normalisation.

use crate::data::{Guarded, Random, assert_near};
use crate::kernels::norm::Norm;
use crate::kernels::product::STRIP_MAX;
use crate::operand::LANES_MAX;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("norm_of_rows", rows),
    ("norm_in_place", in_place),
    ("norm_of_random_shapes", random_shapes),
    ("norm_of_extreme_rows", extreme_rows),
];

/// What the families add to the variance.
const EPSILONS: [f32; 2] = [1e-12, 1e-5];

/// The fewest lanes of an instruction set: each adds up its share of a row.
const LANES_MIN: f64 = 4.0;

pub struct Case {
    pub values: Guarded<f32>,
    scale: Guarded<f32>,
    shift: Guarded<f32>,
    pub rows: usize,
    columns: usize,
    pub stride: usize,
    epsilon: f32,
}

impl Case {
    pub fn new(rows: usize, columns: usize, random: &mut Random) -> Self {
        Self::from_fn(rows, columns, random, |_, x| x + 0.7)
    }

    /// Each value from its column and a random number of deviation 1.
    fn from_fn(
        rows: usize,
        columns: usize,
        random: &mut Random,
        value: impl Fn(usize, f32) -> f32,
    ) -> Self {
        let stride = columns.next_multiple_of(LANES_MAX);
        let mut padded = |i: usize| if i % stride < columns { random.value() } else { 0.0 };
        let values = Guarded::from_fn(rows * stride, |i| {
            let (column, x) = (i % stride, padded(i));
            if column < columns { value(column, x) } else { 0.0 }
        });
        let scale = Guarded::from_fn(stride, &mut padded);
        let shift = Guarded::from_fn(stride, &mut padded);
        Self { values, scale, shift, rows, columns, stride, epsilon: EPSILONS[0] }
    }

    pub fn run(&self, subject: &Subject, from: *const f32, to: *mut f32) {
        let job = Norm {
            from,
            to,
            stride: self.stride,
            rows: self.rows,
            columns: self.columns,
            epsilon: self.epsilon,
            scale: self.scale.as_ptr(),
            shift: self.shift.as_ptr(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.normalize)(&job) };
    }

    /// One row's result, and how far from it each column may be.
    ///
    /// A sum of 32-bit floats is off by at most half a last place of all magnitudes together for each addition. What
    /// the mean is off by is divided by the deviation, which is hardly more than nothing where all numbers are equal;
    /// but the deviation is measured from that mean, so that it comes to one deviation at most.
    pub fn reference(&self, row: usize) -> impl Iterator<Item = (f64, f64)> {
        let values = &self.values[row * self.stride..][..self.columns];
        let count = self.columns as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let size = values.iter().map(|&v| f64::from(v).abs()).sum::<f64>() / count;
        let squares = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
        let inverse = 1.0 / (squares / count + f64::from(self.epsilon)).sqrt();
        let half = f64::from(f32::EPSILON) / 2.0;
        // And some operations more, among them the additions of the lanes and of what is left of a vector.
        let sums = half * (count / LANES_MIN + 24.0);
        let of_mean = sums * size * inverse;
        let of_variance = sums + (of_mean * of_mean / 2.0).min(1.0);
        values.iter().enumerate().map(move |(column, &value)| {
            let apart = (f64::from(value) - mean) * inverse;
            let (scale, shift) = (f64::from(self.scale[column]), f64::from(self.shift[column]));
            let allowed = scale.abs() * (of_mean.min(1.0 + sums) + apart.abs() * of_variance);
            (apart * scale + shift, allowed + 2.0 * half * shift.abs() + 1e-30)
        })
    }

    fn check(&self, found: &[f32], what: &str) {
        for row in 0..self.rows {
            for (column, (expected, allowed)) in self.reference(row).enumerate() {
                assert_near(found[row * self.stride + column], expected, allowed, || {
                    format!("{what}, {} columns, row {row}, column {column}", self.columns)
                });
            }
        }
    }
}

/// Normalises and compares with the reference.
fn check(subject: &Subject, case: &Case, what: &str) {
    let mut found = Guarded::new(case.rows * case.stride);
    case.run(subject, case.values.as_ptr(), found.as_mut_ptr());
    case.check(&found, what);
}

fn rows(subject: &Subject) {
    let mut random = Random::new(20);
    for (rows, columns) in
        [(1, 384), (3, 768), (2, 1024), (5, 32), (4, 312), (2, 2), (3, 17), (2, 47)]
    {
        check(subject, &Case::new(rows, columns, &mut random), "numbers");
    }
}

fn in_place(subject: &Subject) {
    let case = Case::new(4, 384, &mut Random::new(21));
    let mut found = Guarded::from_fn(case.values.len(), |i| case.values[i]);
    let place = found.as_mut_ptr();
    case.run(subject, place, place);
    case.check(&found, "numbers");
}

fn random_shapes(subject: &Subject) {
    let mut random = Random::new(22);
    for _ in 0..30 {
        let (rows, columns) = (random.between(1, 9), random.between(1, 600));
        check(subject, &Case::new(rows, columns, &mut random), "numbers");
    }
    check(subject, &Case::new(STRIP_MAX, 65, &mut random), "numbers");
}

/// A row's value from its column and a random number.
type Row = fn(usize, f32) -> f32;

const EXTREMES: [(&str, Row); 11] = [
    ("zeros", |_, _| 0.0),
    ("ones", |_, _| 1.0),
    ("equal numbers", |_, _| -3.7),
    ("large equal numbers", |_, _| 1e15),
    ("denormal numbers", |_, x| x * 1e-40),
    ("tiny numbers", |_, x| x * 1e-20),
    ("numbers that the variance hardly shows", |_, x| x * 1e-6),
    ("large numbers", |_, x| x * 1e15),
    ("numbers far from zero", |_, x| 1000.0 + x),
    ("both ends", |column, _| if column.is_multiple_of(2) { 1e15 } else { -1e15 }),
    ("one among zeros", |column, _| if column == 3 { 1e4 } else { 0.0 }),
];

fn extreme_rows(subject: &Subject) {
    let mut random = Random::new(23);
    for (what, value) in EXTREMES {
        for epsilon in EPSILONS {
            for columns in [1, 47, 384, 1024] {
                let case = Case::from_fn(2, columns, &mut random, value);
                check(subject, &Case { epsilon, ..case }, what);
            }
        }
    }
}
