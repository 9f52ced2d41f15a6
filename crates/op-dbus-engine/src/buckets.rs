//! The few shapes that padded batches are rounded up to where a device prepares something for each:
//! buffers, memory, programs.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::batch::Batch;

/// Least distance of two sequence lengths.
pub(crate) const LENGTH_STEP_MIN: usize = 16;

/// The bounds of batches that are rounded up, which decide what shapes there are. Sequence lengths: four
/// to each power of two, and multiples of 16 in any case. Rows: powers of two, and as many as a full
/// batch of that length has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// Rows × sequence length; a single row is always accepted.
    pub tokens_max: usize,
    /// Rows × sequence length².
    pub attention_max: u64,
    /// Rows.
    pub rows_max: usize,
    /// Tokens of the longest row.
    pub length_max: usize,
    /// Whether padding is left out of what is computed, but for that in rows behind the batch's own.
    pub packed: bool,
}

impl Buckets {
    /// `[rows, sequence length]` of a batch of `rows`, the longest of which has `longest` tokens.
    pub fn shape(&self, rows: usize, longest: usize) -> [usize; 2] {
        let length = self.length(longest);
        let rounded = rows.checked_next_power_of_two().unwrap_or(rows);
        [rounded.min(self.full(length)).max(rows), length]
    }

    /// Tokens that are computed for a batch, padding included.
    pub(crate) fn tokens(&self, batch: &Batch<'_>) -> usize {
        let [rows, length] = self.shape(batch.rows(), batch.longest());
        if self.packed {
            return batch.tokens().saturating_add(rows - batch.rows());
        }
        rows.saturating_mul(length)
    }

    /// The sequence length that a row of `longest` tokens is padded to.
    pub(crate) fn length(&self, longest: usize) -> usize {
        let power = longest.checked_next_power_of_two().unwrap_or(longest);
        let step = (power / 8).max(LENGTH_STEP_MIN);
        let rounded = longest.checked_next_multiple_of(step).unwrap_or(longest);
        rounded.min(self.length_max).max(longest)
    }

    /// Rows of a full batch of this sequence length.
    pub(crate) fn full(&self, length: usize) -> usize {
        let length = length.max(1);
        let square = (length as u64).saturating_mul(length as u64);
        let attention = usize::try_from(self.attention_max / square).unwrap_or(usize::MAX);
        (self.tokens_max / length).min(attention).min(self.rows_max).max(1)
    }

    /// Every shape that there is, that with most tokens first.
    pub fn shapes(&self) -> Vec<[usize; 2]> {
        let mut shapes = Vec::new();
        let mut longest = 1;
        while longest <= self.length_max {
            let length = self.length(longest);
            let full = self.full(length);
            let powers = std::iter::successors(Some(1_usize), |rows| rows.checked_mul(2));
            shapes.extend(powers.take_while(|rows| *rows < full).map(|rows| [rows, length]));
            shapes.push([full, length]);
            longest = length + 1;
        }
        shapes.sort_unstable_by_key(|[rows, length]| Reverse((rows * length, *length)));
        shapes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(length_max: usize) -> Buckets {
        Buckets {
            tokens_max: 8192,
            attention_max: 4 << 20,
            rows_max: 512,
            length_max,
            packed: false,
        }
    }

    #[test]
    fn shapes_are_few_and_the_largest_comes_first() {
        let counts = [128, 256, 384, 512].map(|length_max| of(length_max).shapes().len());
        assert_eq!(counts, [67, 94, 106, 117]);
        let large =
            Buckets { tokens_max: 32_768, attention_max: 16 << 20, rows_max: 2048, ..of(384) };
        assert_eq!(large.shapes().len(), 134);
        let shapes = of(256).shapes();
        assert_eq!((shapes[0], shapes[93]), ([32, 256], [1, 16]));
        assert!(shapes.is_sorted_by_key(|[rows, length]| Reverse(rows * length)));
    }

    proptest! {
        #[test]
        fn every_batch_has_one_of_the_shapes_with_less_than_twice_its_rows(
            rows in 1usize..600,
            longest in 1usize..=500,
            tokens_max in 1usize..20_000,
        ) {
            let buckets = Buckets { tokens_max, length_max: 500, ..of(0) };
            let length = buckets.length(longest);
            prop_assert!((longest..=longest.next_multiple_of(16).max(longest * 5 / 4)).contains(&length));
            let rows = rows.min(buckets.full(length));
            let shape = buckets.shape(rows, longest);
            prop_assert!(buckets.shapes().contains(&shape), "{shape:?}");
            prop_assert!(shape[0] >= rows && shape[0] < 2 * rows);
            prop_assert!(shape[0] * length <= tokens_max.max(length));
        }
    }

    #[test]
    fn bounds_that_make_no_sense_leave_a_batch_as_it_is() {
        let none =
            Buckets { tokens_max: 0, attention_max: 0, rows_max: 0, length_max: 0, packed: false };
        assert_eq!(none.shape(3, 5), [3, 5]);
        assert_eq!(none.shape(usize::MAX, usize::MAX), [usize::MAX; 2]);
        assert!(none.shapes().is_empty());
    }
}
