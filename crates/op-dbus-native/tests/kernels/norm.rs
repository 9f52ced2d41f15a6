//! Layer normalisation.

use crate::data::{Guarded, Random, assert_near};
use crate::kernels::norm::Norm;
use crate::operand::LANES_MAX;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[("norm_of_rows", rows), ("norm_in_place", in_place)];

const EPSILON: f32 = 1e-12;

struct Case {
    values: Guarded<f32>,
    scale: Guarded<f32>,
    shift: Guarded<f32>,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl Case {
    fn new(rows: usize, columns: usize, random: &mut Random) -> Self {
        let stride = columns.next_multiple_of(LANES_MAX);
        let mut padded = |i: usize| if i % stride < columns { random.value() } else { 0.0 };
        let values = Guarded::from_fn(rows * stride, |i| {
            padded(i) + if i % stride < columns { 0.7 } else { 0.0 }
        });
        let scale = Guarded::from_fn(stride, &mut padded);
        let shift = Guarded::from_fn(stride, &mut padded);
        Self { values, scale, shift, rows, columns, stride }
    }

    fn run(&self, subject: &Subject, from: *const f32, to: *mut f32) {
        let job = Norm {
            from,
            to,
            stride: self.stride,
            rows: self.rows,
            columns: self.columns,
            epsilon: EPSILON,
            scale: self.scale.as_ptr(),
            shift: self.shift.as_ptr(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.normalize)(&job) };
    }

    fn check(&self, found: &[f32]) {
        for row in 0..self.rows {
            let values = &self.values[row * self.stride..][..self.columns];
            let count = self.columns as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let squares = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>();
            let inverse = 1.0 / (squares / count + f64::from(EPSILON)).sqrt();
            for column in 0..self.columns {
                let apart = (f64::from(values[column]) - mean) * inverse;
                let (scale, shift) = (self.scale[column], self.shift[column]);
                let expected = apart * f64::from(scale) + f64::from(shift);
                let size = f64::from(scale.abs()) * (apart.abs() + 1.0) + f64::from(shift.abs());
                assert_near(found[row * self.stride + column], expected, 1e-5 * size, || {
                    format!("{} columns, row {row}, column {column}", self.columns)
                });
            }
        }
    }
}

fn rows(subject: &Subject) {
    let mut random = Random::new(20);
    for (rows, columns) in
        [(1, 384), (3, 768), (2, 1024), (5, 32), (4, 312), (2, 2), (3, 17), (2, 47)]
    {
        let case = Case::new(rows, columns, &mut random);
        let mut found = Guarded::new(rows * case.stride);
        case.run(subject, case.values.as_ptr(), found.as_mut_ptr());
        case.check(&found);
    }
}

fn in_place(subject: &Subject) {
    let case = Case::new(4, 384, &mut Random::new(21));
    let mut found = Guarded::from_fn(case.values.len(), |i| case.values[i]);
    let place = found.as_mut_ptr();
    case.run(subject, place, place);
    case.check(&found);
}
