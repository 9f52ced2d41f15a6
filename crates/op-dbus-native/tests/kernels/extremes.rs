//! Operands of rows that no model has every day: all equal, hardly there, as large as can be.

use crate::data::{Random, assert_near};
use crate::kernels::product::GROUP;
use crate::operand::LANES_MAX;
use crate::precision::Precision;
use crate::product::Inputs;
use crate::{Subject, Test};

pub const TESTS: &[Test] =
    &[("operands_of_extreme_rows", operands), ("no_number_among_numbers_is_told", no_number)];

/// Of a column and a random number of deviation 1, the value that stands there.
type Row = fn(usize, f32) -> f32;

const ROWS: [(&str, Row); 12] = [
    ("zeros", |_, _| 0.0),
    ("one number", |_, _| -3.7),
    ("one large number", |_, _| 1e38),
    ("one denormal number", |_, _| 1e-40),
    ("two neighbours", |column, _| if column.is_multiple_of(3) { 1.0 } else { 1.000_000_1 }),
    ("denormal numbers", |_, x| x * 1e-40),
    ("numbers without steps between them", |_, x| x * 1e-33),
    ("numbers with tiny steps between them", |_, x| x * 1e-26),
    ("large numbers", |_, x| x * 1e36),
    ("both ends", |column, _| if column.is_multiple_of(3) { 1.5e38 } else { -1.5e38 }),
    ("one large number among others", |column, x| if column == 5 { 1e9 } else { x }),
    ("large numbers close together", |_, x| 1e6 + x),
];

fn operands(subject: &Subject) {
    let mut random = Random::new(70);
    // Two blocks, which nothing fills up.
    let columns = GROUP + LANES_MAX;
    for (name, row_of) in ROWS {
        let rows = Inputs::from_fn(3, columns, |column| row_of(column, random.value()));
        let left = rows.prepare(subject);
        for (row, column) in (0..rows.rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
            let value = f64::from(rows.value(row, column));
            // Where numbers are rounded, denormal ones may become 0.
            let tiny = f64::from(f32::MIN_POSITIVE);
            let allowed = match subject.precision {
                Precision::F32 => 0.0,
                // Half of a last place of eight bits.
                Precision::Bf16 => value.abs() / 256.0 + tiny,
                // Half a step and a little for its own rounding, or all of them where they are too small for an
                // inverse; and what the block's least value and the sum with it are rounded by.
                Precision::Int8 => {
                    let scale = f64::from(left.scale(row, column / GROUP).0);
                    let steps = if scale > 1e-30 { 0.501 } else { 255.01 };
                    steps * scale + 2.0 * f64::from(f32::EPSILON) * value.abs() + tiny
                }
            };
            let place = || format!("{name}: row {row}, column {column}");
            assert_near(left.meant(row, column) as f32, value, allowed, place);
            let stored = left.stored(row, column) + left.shift;
            let is_step = (0.0..=255.0).contains(&stored);
            assert!(is_step || subject.precision != Precision::Int8, "{}: {stored}", place());
        }
    }
}

/// Integers have no value for what is no number: the block's scale is none.
fn no_number(subject: &Subject) {
    if subject.precision != Precision::Int8 {
        return;
    }
    for column in [0, LANES_MAX, GROUP - 1] {
        let value_of = |at| if at == column { f32::NAN } else { at as f32 };
        let left = Inputs::from_fn(1, GROUP + LANES_MAX, value_of).prepare(subject);
        assert!(left.scale(0, 0).0.is_nan(), "column {column}");
        assert!(left.scale(0, 1).0.is_finite(), "column {column}");
    }
}
