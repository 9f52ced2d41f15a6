//! Every instruction set against plain Rust, on the same inputs, and in all columns.

use crate::attention::Text;
use crate::data::{Guarded, Random, assert_near};
use crate::isa::Isa;
use crate::kernels::kernels;
use crate::kernels::product::{Activation, Finish, GROUP};
use crate::norm::Case;
use crate::operand::{Left, Right};
use crate::precision::Precision;
use crate::product::{Inputs, allowed, multiply, store};
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("operands_are_those_of_plain_rust", operands),
    ("products_are_those_of_plain_rust", products),
    ("activated_products_are_those_of_plain_rust", activated),
    ("attention_is_that_of_plain_rust", attention),
    ("norms_are_those_of_plain_rust", norms),
];

/// Rows, inputs and columns; of these no panel has them without a rest.
const PRODUCTS: [[usize; 3]; 4] = [[1, 384, 203], [13, 130, 90], [33, 257, 70], [97, 64, 300]];

/// The same precision in plain Rust; nothing if that is what is tested.
fn in_plain_rust(subject: &Subject) -> Option<Subject> {
    let isa = Isa::Portable;
    let kernels = kernels(isa, subject.precision);
    (subject.isa != isa).then_some(Subject { isa, kernels, ..*subject })
}

/// To the bit: numbers are rounded one by one, and the least and the largest are what they are.
fn operands(subject: &Subject) {
    let Some(plain) = in_plain_rust(subject) else { return };
    for columns in [1, 31, 128, 130, 384] {
        let inputs = Inputs::new(3, columns, &mut Random::new(80));
        let (left, expected) = (inputs.prepare(subject), inputs.prepare(&plain));
        for (row, column) in (0..inputs.rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            let of = |left: &Left| {
                let is_shifted = subject.precision == Precision::Int8;
                let shift = if is_shifted { left.shift } else { 0.0 };
                (left.stored(row, column) + shift, left.scale(row, column / GROUP).0)
            };
            assert_eq!(of(&left), of(&expected), "{columns} columns, row {row}, column {column}");
        }
    }
}

/// The operands of a product, the same numbers for all instruction sets.
fn factors(subject: &Subject, [rows, inputs, columns]: [usize; 3]) -> (Left, Right) {
    let mut random = Random::new(81);
    let left = Inputs::new(rows, inputs, &mut random).prepare(subject);
    (left, Right::new(subject, inputs, columns, &mut random))
}

fn products(subject: &Subject) {
    let Some(plain) = in_plain_rust(subject) else { return };
    for shape @ [rows, inputs, columns] in PRODUCTS {
        let [(found, left, right), (expected, _, plain_right)] = [subject, &plain].map(|subject| {
            let (mut left, right) = factors(subject, shape);
            let mut found = Guarded::<f32>::new(rows * right.padded);
            store(subject, &mut left, &right, &mut found);
            (found, left, right)
        });
        for row in 0..rows {
            for (column, _, size) in right.sums(&left, row, 0..columns) {
                let expected = f64::from(expected[row * plain_right.padded + column]);
                let allowed = 2.0 * allowed(inputs, size);
                assert_near(found[row * right.padded + column], expected, allowed, || {
                    format!("{shape:?}, row {row}, column {column}")
                });
            }
        }
    }
}

fn activated(subject: &Subject) {
    let Some(plain) = in_plain_rust(subject) else { return };
    for shape @ [rows, inputs, columns] in PRODUCTS {
        let [(found, left, right), (expected, ..)] = [subject, &plain].map(|subject| {
            let (mut left, right) = factors(subject, shape);
            let mut next = Left::new(subject, rows, right.padded);
            let finish = Finish::Activate {
                activation: Activation::Gelu,
                to: next.operand(),
                smooth: std::ptr::null(),
            };
            multiply(subject, &mut left, &right, 0..right.padded, finish);
            (next, left, right)
        });
        for row in 0..rows {
            for (column, sum, size) in right.sums(&left, row, 0..columns) {
                let (value, block) = (expected.meant(row, column), column / GROUP);
                // A sum's error is a little magnified; the polynomial's own arithmetic comes with the sum.
                let before = 2.4 * allowed(inputs, size) + 2e-6 * (1.0 + sum.abs());
                // Both are rounded.
                let rounding = match subject.precision {
                    Precision::F32 => 0.0,
                    Precision::Bf16 => value.abs() / 128.0,
                    Precision::Int8 => {
                        let scale = |next: &Left| f64::from(next.scale(row, block).0);
                        0.501 * (scale(&found) + scale(&expected))
                    }
                };
                assert_near(found.meant(row, column) as f32, value, before + rounding, || {
                    format!("{shape:?}, row {row}, column {column}")
                });
            }
        }
    }
}

fn attention(subject: &Subject) {
    let Some(plain) = in_plain_rust(subject) else { return };
    for (length, size, biased) in [(1, 32, false), (33, 64, true), (70, 25, false), (129, 32, true)]
    {
        let [(text, found), (plain_text, expected)] = [subject, &plain].map(|subject| {
            let text = Text::new(subject, length, size, biased, &mut Random::new(82));
            let found = text.run(subject);
            (text, found)
        });
        for query in 0..length {
            let references = text.reference(query).into_iter().zip(plain_text.reference(query));
            for (column, (own, of_plain)) in references.enumerate() {
                // What queries, keys and values are rounded by, where plain Rust does not.
                let rounding = (own.0 - of_plain.0).abs();
                let at = query * size + column;
                let allowed = own.1 + of_plain.1 + rounding;
                assert_near(found[at], f64::from(expected[at]), allowed, || {
                    format!("{length} tokens of {size} columns, query {query}, column {column}")
                });
            }
        }
    }
}

fn norms(subject: &Subject) {
    let Some(plain) = in_plain_rust(subject) else { return };
    for columns in [17, 312, 384, 768] {
        let case = Case::new(3, columns, &mut Random::new(83));
        let [found, expected] = [subject, &plain].map(|subject| {
            let mut found = Guarded::<f32>::new(case.rows * case.stride);
            case.run(subject, case.values.as_ptr(), found.as_mut_ptr());
            found
        });
        for row in 0..case.rows {
            for (column, (_, allowed)) in case.reference(row).enumerate() {
                let at = row * case.stride + column;
                assert_near(found[at], f64::from(expected[at]), 2.0 * allowed, || {
                    format!("{columns} columns, row {row}, column {column}")
                });
            }
        }
    }
}
