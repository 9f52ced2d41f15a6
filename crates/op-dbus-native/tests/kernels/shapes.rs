//! Products of all shapes that the families of models have, and of odd ones, each stored between
//! values that must stay as they are.

use crate::data::{Guarded, Random, assert_near};
use crate::kernels::product::{Activation, Finish, GROUP, STRIP_MAX};
use crate::operand::{Left, Right};
use crate::product::{Inputs, allowed, multiply};
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("every_shape_is_stored_in_its_place", every_shape),
    ("a_strip_of_rows", strip),
    ("inputs_of_the_families", inputs_of_the_families),
    ("random_shapes", random_shapes),
    ("operands_are_stored_in_their_place", operands),
    ("parts_of_the_columns", parts),
    ("the_loop_that_measures_the_peak", spin),
];

const INPUTS: [usize; 7] = [26, 32, 64, 128, 130, 312, 384];

/// What lies around a result, and must stay there.
const UNTOUCHED: f32 = 1.25e30;

/// Columns that are compared with the reference in one row, and the most values of a product of which all are.
const COLUMNS: usize = 7;
const SMALL: usize = 400;

/// Stores a product between other values, and compares a few columns of each row.
fn check(subject: &Subject, rows: usize, inputs: usize, columns: usize, seed: u64) {
    let mut random = Random::new(seed);
    let mut left = Inputs::new(rows, inputs, &mut random).prepare(subject);
    let right = Right::new(subject, inputs, columns, &mut random);
    let (before, stride) = (5, right.padded + 9);
    let mut found = Guarded::from_fn(rows * stride, |_| UNTOUCHED);
    let finish = Finish::Store { to: found[before..].as_mut_ptr(), stride };
    multiply(subject, &mut left, &right, 0..right.padded, finish);
    let place = || format!("{rows} × {inputs} × {columns}, seed {seed}");
    for (row, values) in found.chunks(stride).enumerate() {
        let mut around = values[..before].iter().chain(&values[before + right.padded..]);
        assert!(around.all(|&value| value == UNTOUCHED), "{}: values around", place());
        // Every row begins elsewhere, so that all columns come up.
        let step = if rows * columns <= SMALL { 1 } else { (columns / COLUMNS) | 1 };
        let some = (0..columns).rev().skip(row % step).step_by(step);
        for (column, sum, size) in right.sums(&left, row, some) {
            assert_near(values[before + column], sum, allowed(inputs, size), || {
                format!("{}, row {row}, column {column}", place())
            });
        }
    }
}

fn every_shape(subject: &Subject) {
    let panel = subject.kernels.layout.panel;
    let mut rows = 0;
    for (index, inputs) in INPUTS.into_iter().enumerate() {
        for columns in [panel, 3 * panel, 5 * panel, 3 * panel - 1, panel + 1] {
            rows = rows % 13 + 1;
            check(subject, rows, inputs, columns, 1000 + 10 * index as u64 + rows as u64);
        }
    }
    // No tile has more than 16 rows.
    for rows in 1..=33 {
        check(subject, rows, 72, 3 * panel - 1, rows as u64);
    }
    for (inputs, columns) in
        [(1, 1), (2, 3), (3, 16), (31, 33), (63, 65), (127, 31), (129, 129), (257, 7)]
    {
        check(subject, 5, inputs, columns, 2000 + inputs as u64);
    }
}

fn strip(subject: &Subject) {
    check(subject, 96, 130, 3 * subject.kernels.layout.panel, 41);
    check(subject, 95, 64, 130, 42);
    // Rows that don't go into tiles, inputs that are not multiplied all at once.
    check(subject, 97, 1100, 2 * subject.kernels.layout.panel, 43);
}

/// For one token, for a few, and for as many as one product has: longer texts come in strips. A column knows nothing of
/// others, so few of them do.
fn inputs_of_the_families(subject: &Subject) {
    let mut random = Random::new(47);
    let panel = subject.kernels.layout.panel;
    for (seed, inputs) in (50..).zip([384, 768, 1024, 1536, 3072]) {
        check(subject, 1, inputs, panel + random.between(1, panel), seed);
        check(subject, random.between(2, 40), inputs, random.between(1, panel), seed);
    }
    check(subject, STRIP_MAX, 3072, panel - 1, 48);
    check(subject, STRIP_MAX - 1, 384, GROUP + 1, 49);
}

fn random_shapes(subject: &Subject) {
    let mut random = Random::new(60);
    for seed in 61..81 {
        let (rows, inputs) = (random.between(1, 70), random.between(1, 500));
        check(subject, rows, inputs, random.between(1, 160), seed);
    }
}

/// Activated outputs touch no more of the operand than they fill: the rest of a row belongs to
/// whoever computes the other columns.
fn operands(subject: &Subject) {
    let mut random = Random::new(43);
    let (rows, inputs, columns) = (13, 64, 384);
    let mut left = Inputs::new(rows, inputs, &mut random).prepare(subject);
    let right = Right::new(subject, inputs, columns, &mut random);
    let mut whole = Left::new(subject, rows, columns);
    let mut pieces = Left::new(subject, rows, columns);
    let mut run = |to: &mut Left, columns| {
        let finish = Finish::Activate {
            activation: Activation::Relu,
            to: to.operand(),
            smooth: std::ptr::null(),
        };
        multiply(subject, &mut left, &right, columns, finish);
    };
    run(&mut whole, 0..columns);
    // Out of order, so that what one piece writes too much is not written over by the next.
    run(&mut pieces, 2 * GROUP..columns);
    run(&mut pieces, 0..GROUP);
    run(&mut pieces, GROUP..2 * GROUP);
    for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
        let (a, b) = (whole.meant(row, column), pieces.meant(row, column));
        assert!(
            a.to_bits() == b.to_bits(),
            "row {row}, column {column}: {a} as a whole, {b} apart"
        );
    }
}

/// A range of panels is computed and nothing beside it touched.
fn parts(subject: &Subject) {
    let unit = subject.kernels.layout.panel;
    let mut random = Random::new(44);
    let (rows, inputs, columns) = (5, 100, 3 * GROUP);
    let mut left = Inputs::new(rows, inputs, &mut random).prepare(subject);
    let right = Right::new(subject, inputs, columns, &mut random);
    for (first, end) in [(0, unit), (unit, 2 * unit), (unit, columns), (columns - unit, columns)] {
        let mut found = Guarded::from_fn(rows * columns, |_| UNTOUCHED);
        let finish = Finish::Store { to: found.as_mut_ptr(), stride: columns };
        multiply(subject, &mut left, &right, first..end, finish);
        for row in 0..rows {
            let values = &found[row * columns..][..columns];
            let mut beside = values[..first].iter().chain(&values[end..]);
            assert!(beside.all(|&value| value == UNTOUCHED), "{first} to {end}: beside");
            for (column, sum, size) in right.sums(&left, row, (first..end).rev().step_by(11)) {
                assert_near(values[column], sum, allowed(inputs, size), || {
                    format!("{first} to {end}, row {row}, column {column}")
                });
            }
        }
    }
}

/// Its numbers are zeros; what it is for is time.
fn spin(subject: &Subject) {
    // SAFETY: the CPU has the instruction set.
    let sum = unsafe { (subject.kernels.spin)(256) };
    assert_eq!(sum, 0.0);
}
