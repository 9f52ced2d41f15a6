//! Attention over one text, head by head: scores, softmax, and the weighted mean of the values.
//!
//! Keys and values are packed into panels like weights, then a few rows of queries at a time go
//! through all of it, so that nothing grows with the square of the length.

use std::f32::consts::LOG2_E;

use super::simd::{Simd, coarse_exp2, each, exp2};
use super::step::PairStep;
use super::tiles::by_rows;

/// Some heads of one text, side by side.
#[derive(Clone, Copy)]
pub(crate) struct Attention {
    /// How many heads.
    pub heads: usize,
    /// Query, key and value of the text's first token at the first head's first column.
    pub queries: *const f32,
    /// See `queries`.
    pub keys: *const f32,
    /// See `queries`.
    pub values: *const f32,
    /// Floats from one token to the next, in all three.
    pub stride: usize,
    /// Tokens.
    pub length: usize,
    /// Columns of a head.
    pub size: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Null, or where the first head's bias of the text's last query and first key lies: the bias of key
    /// `j` for query `i` is `bias[length - 1 - i + j]`.
    pub bias: *const f32,
    /// Floats from one head's bias to the next.
    pub bias_stride: usize,
    /// The first token's result at the first head's first column.
    pub to: *mut f32,
    /// Floats from one token's result to the next.
    pub to_stride: usize,
    /// Memory of this thread alone, [`scratch_floats`] long.
    pub scratch: *mut f32,
}

impl Attention {
    /// One head by itself.
    #[inline(always)]
    pub fn head(&self, head: usize) -> Self {
        let column = head * self.size;
        let bias = self.bias.wrapping_add(head * self.bias_stride);
        Self {
            heads: 1,
            queries: self.queries.wrapping_add(column),
            keys: self.keys.wrapping_add(column),
            values: self.values.wrapping_add(column),
            bias: if self.bias.is_null() { self.bias } else { bias },
            to: self.to.wrapping_add(column),
            ..*self
        }
    }
}

/// Rows and columns are rounded up to this many.
const PADDING: usize = 64;

/// Most rows of queries at a time.
pub(super) const ROWS_MAX: usize = 32;

/// Lanes of the widest vector.
pub(super) const LANES_MAX: usize = 16;

/// Sums of weights with which none that matters was too small or too large for a 32-bit float, and
/// sums of values with these weights neither: 2^±80. Only scores of ±50 and more are out of it.
pub(super) const PLAIN: std::ops::RangeInclusive<f32> = 8.271_806e-25..=1.208_925_8e24;

/// A vector of these from place `LANES_MAX - n` on is 1 in its first `n` lanes and 0 in the others.
pub(super) const COUNTED: [f32; 2 * LANES_MAX] = {
    let mut lanes = [1.0; 2 * LANES_MAX];
    let mut lane = LANES_MAX;
    while lane < lanes.len() {
        lanes[lane] = 0.0;
        lane += 1;
    }
    lanes
};

/// 32-bit floats of scratch memory for texts of `length` tokens and heads of `size` columns.
pub(crate) fn scratch_floats(length: usize, size: usize) -> usize {
    let (length, size) = (padded(length), padded(size));
    // Packed keys and values, queries, scores, probabilities, a block of results.
    2 * length * size + ROWS_MAX * (2 * size + 2 * apart(length))
}

/// From one row of scores or weights to the next: lines of the cache more, so that the rows of a tile do
/// not all fall into the same sets of it.
fn apart(length: usize) -> usize {
    padded(length) + PADDING / 2
}

fn padded(count: usize) -> usize {
    count.next_multiple_of(PADDING)
}

/// Where the parts of the scratch memory begin.
pub(super) struct Parts<P: PairStep> {
    /// Packed, [`pack_keys`].
    pub keys: *mut P::Weight,
    /// Packed, [`pack_values`].
    pub values: *mut P::Weight,
    /// `[ROWS_MAX][size]`
    pub queries: *mut P::Input,
    /// `[ROWS_MAX][apart]`
    pub scores: *mut f32,
    /// `[ROWS_MAX][apart]`
    pub weights: *mut P::Input,
    /// `[ROWS_MAX][size]`
    pub results: *mut f32,
    /// Columns of the head, padded.
    pub size: usize,
    /// Elements from one row to the next in `scores` and `weights`.
    pub apart: usize,
}

impl<P: PairStep> Parts<P> {
    /// Those of the scratch memory of `job`.
    #[inline(always)]
    pub unsafe fn of(job: &Attention) -> Self {
        let (size, length, apart) = (padded(job.size), padded(job.length), apart(job.length));
        let scratch = job.scratch;
        Self {
            keys: scratch.cast(),
            values: scratch.add(length * size).cast(),
            queries: scratch.add(2 * length * size).cast(),
            results: scratch.add(2 * length * size + ROWS_MAX * size),
            scores: scratch.add(2 * length * size + 2 * ROWS_MAX * size),
            weights: scratch.add(2 * length * size + ROWS_MAX * (2 * size + apart)).cast(),
            size,
            apart,
        }
    }
}

/// Computes heads with `ROWS` rows of queries at a time.
///
/// # Safety
/// The CPU has the instruction set; the pointers are valid for what the sizes say, a vector beyond
/// included; inputs are finite; no other thread touches the columns of the result.
#[inline(always)]
pub(crate) unsafe fn attend<P: PairStep, const ROWS: usize>(job: &Attention) {
    for head in 0..job.heads {
        let job = &job.head(head);
        let parts = Parts::<P>::of(job);
        pack_keys(job, &parts, job.size.div_ceil(P::K));
        pack_values(job, &parts, job.length.div_ceil(P::K));
        let mut first = 0;
        while first < job.length {
            let rows = ROWS.min(job.length - first);
            by_rows!(rows, ROWS, M => block::<P, M>(job, &parts, first));
            first += rows;
        }
    }
}

/// Keys as the columns of panels of `steps` steps, of which those behind the head's columns are zeros:
/// `[panel][step][column][K]`. The last vector of columns ends with zeros; behind it they hold
/// anything, since their scores are never looked at.
#[inline(always)]
pub(super) unsafe fn pack_keys<P: PairStep>(job: &Attention, parts: &Parts<P>, steps: usize) {
    // One input of a product and one step of a column's weights are both 4 bytes: a 32-bit float or
    // two bfloat16.
    const { assert!(size_of::<P::Input>() * P::K == 4 && size_of::<P::Weight>() * P::K == 4) };
    const { assert!(P::S::LANES <= LANES_MAX) };
    let lanes = P::S::LANES;
    let panel = 2 * lanes;
    let (rows, stride) = (parts.queries.cast::<u32>(), parts.size / P::K);
    let mut key = 0;
    while key < job.length {
        let keys = lanes.min(job.length - key);
        for row in 0..keys {
            let from = job.keys.add((key + row) * job.stride);
            to_inputs::<P>(
                from,
                1.0,
                [job.size, steps * P::K],
                parts.queries.add(row * parts.size),
            );
        }
        parts.queries.add(keys * parts.size).write_bytes(0, (lanes - keys) * parts.size);
        let to = parts.keys.cast::<u32>().add(key / panel * panel * steps + key % panel);
        let mut step = 0;
        while step < steps {
            // A block is whole: the panel after this one is packed later, and behind the last one is
            // as much room as heads of whole blocks would take.
            P::S::transpose(rows.add(step), stride, to.add(step * panel), panel);
            step += lanes;
        }
        key += lanes;
    }
}

/// Converts `size` floats times `scale`, and clears what is left up to `end`.
#[inline(always)]
pub(super) unsafe fn to_inputs<P: PairStep>(
    from: *const f32,
    scale: f32,
    [size, end]: [usize; 2],
    to: *mut P::Input,
) {
    let scale = P::S::splat(scale);
    let mut at = 0;
    while at < size {
        P::store(to.add(at), P::S::mul(P::S::load(from.add(at)), scale));
        at += P::S::LANES;
    }
    if size < end {
        to.add(size).write_bytes(0, end - size);
    }
}

/// Values as the rows of panels of `steps` steps, of which those behind the text are zeros:
/// `[panel][step][column][K]`.
#[inline(always)]
pub(super) unsafe fn pack_values<P: PairStep>(job: &Attention, parts: &Parts<P>, steps: usize) {
    let lanes = P::S::LANES;
    let counted = job.length.div_ceil(P::K);
    for panel in 0..job.size.div_ceil(2 * lanes) {
        let behind = (panel * steps + counted) * 2 * lanes * P::K;
        parts.values.add(behind).write_bytes(0, (steps - counted) * 2 * lanes * P::K);
    }
    for step in 0..counted {
        let first = job.values.add(step * P::K * job.stride);
        let paired = step * P::K + 1 < job.length;
        let mut column = 0;
        while column < job.size {
            let panel = column / (2 * lanes) * 2 * lanes;
            let offset = (panel * steps + step * 2 * lanes + column - panel) * P::K;
            let second =
                if paired { P::S::load(first.add(job.stride + column)) } else { P::S::splat(0.0) };
            P::pack(parts.values.add(offset), P::S::load(first.add(column)), second);
            column += lanes;
        }
    }
}

/// `M` queries from `first` on: by the quick way where the scores allow it.
#[inline(always)]
unsafe fn block<P: PairStep, const M: usize>(job: &Attention, parts: &Parts<P>, first: usize) {
    for row in 0..M {
        let query = job.queries.add((first + row) * job.stride);
        // Scores are binary logarithms of what the keys' weights are in proportion to.
        let scale = job.scale * LOG2_E;
        let size = [job.size, job.size.next_multiple_of(P::K)];
        to_inputs::<P>(query, scale, size, parts.queries.add(row * parts.size));
    }
    let totals = match weigh_at_once::<P, M>(job, parts, first) {
        totals if totals.iter().all(|total| PLAIN.contains(total)) => totals,
        _ => weigh_below_largest::<P, M>(job, parts, first),
    };
    let lanes = P::S::LANES;
    let panel = 2 * lanes;
    let steps = job.length.div_ceil(P::K);
    let mut column = 0;
    while column < job.size {
        let values = parts.values.add(column * steps * P::K);
        let zero = [[P::S::splat(0.0); 2]; M];
        let sums = P::sums::<M, false>(parts.weights, parts.apart, values, steps, zero);
        let columns = panel.min(job.size - column);
        for (row, sums) in sums.into_iter().enumerate() {
            let share = P::S::splat(1.0 / totals[row]);
            let to = job.to.add((first + row) * job.to_stride + column);
            let whole = columns == panel;
            let at = if whole { to } else { parts.results };
            P::S::store(at, P::S::mul(sums[0], share));
            P::S::store(at.add(lanes), P::S::mul(sums[1], share));
            if !whole {
                to.copy_from_nonoverlapping(at, columns);
            }
        }
        column += panel;
    }
}

/// The scores of `M` queries for the keys of each panel, a vector of a row at a time, to
/// `(row, key, scores)`.
macro_rules! scores {
    ($p:ident, $m:ident, $job:ident, $parts:ident, $first:ident, |$row:ident, $key:ident, $scores:ident| $body:block) => {{
        let lanes = $p::S::LANES;
        let steps = $job.size.div_ceil($p::K);
        let mut panel = 0;
        while panel < $job.length {
            let keys = $parts.keys.add(panel * steps * $p::K);
            let zero = [[$p::S::splat(0.0); 2]; $m];
            let sums = $p::sums::<$m, false>($parts.queries, $parts.size, keys, steps, zero);
            for ($row, sums) in sums.into_iter().enumerate() {
                for half in 0..2 {
                    let $key = panel + half * lanes;
                    if $key < $job.length {
                        let mut $scores = sums[half];
                        if !$job.bias.is_null() {
                            let bias = $job.bias.add($job.length - 1 - ($first + $row) + $key);
                            let bias = $p::S::load(bias);
                            let unit = $p::S::splat(LOG2_E);
                            $scores = $p::S::fma(bias, unit, $scores);
                        }
                        $body
                    }
                }
            }
            panel += 2 * lanes;
        }
    }};
}

/// Weights that are powers of two of the scores themselves, as inputs; returns their sums, by which
/// somebody has to tell whether that was possible.
#[inline(always)]
unsafe fn weigh_at_once<P: PairStep, const M: usize>(
    job: &Attention,
    parts: &Parts<P>,
    first: usize,
) -> [f32; M] {
    let lanes = P::S::LANES;
    let mut totals = [P::S::splat(0.0); M];
    scores!(P, M, job, parts, first, |row, key, scores| {
        let mut weights = power::<P>(scores);
        if key + lanes > job.length {
            // Behind the last key.
            weights =
                P::S::mul(weights, P::S::load(COUNTED.as_ptr().add(LANES_MAX + key - job.length)));
        }
        totals[row] = P::S::add(totals[row], weights);
        P::store(parts.weights.add(row * parts.apart + key), weights);
    });
    let mut sums = [0.0; M];
    for (sum, total) in sums.iter_mut().zip(totals) {
        *sum = P::S::sum(total);
    }
    sums
}

/// The same with the scores less the largest of their row, whatever they are.
#[inline(always)]
unsafe fn weigh_below_largest<P: PairStep, const M: usize>(
    job: &Attention,
    parts: &Parts<P>,
    first: usize,
) -> [f32; M] {
    let lanes = P::S::LANES;
    let mut most = [P::S::splat(f32::MIN); M];
    scores!(P, M, job, parts, first, |row, key, scores| {
        let to = parts.scores.add(row * parts.apart + key);
        P::S::store(to, scores);
        if key + lanes > job.length {
            // Behind the last key: as good as never looked at.
            (job.length - key..lanes).for_each(|lane| to.add(lane).write(f32::MIN));
        }
        most[row] = P::S::max(most[row], P::S::load(to));
    });
    let mut sums = [0.0; M];
    for (row, sum) in sums.iter_mut().enumerate() {
        *sum = weigh_row(job, parts, row, P::S::greatest(most[row]));
    }
    sums
}

/// Weights of a row that are powers of two of its scores less `most`, up to the vector of the last
/// key; returns their sum.
#[inline(always)]
pub(super) unsafe fn weigh_row<P: PairStep>(
    job: &Attention,
    parts: &Parts<P>,
    row: usize,
    most: f32,
) -> f32 {
    let scores = parts.scores.add(row * parts.apart);
    let weights = parts.weights.add(row * parts.apart);
    let (most, mut total) = (P::S::splat(most), P::S::splat(0.0));
    each!(P::S, at in job.length, {
        let weight = power::<P>(P::S::sub(P::S::load(scores.add(at)), most));
        total = P::S::add(total, weight);
        P::store(weights.add(at), weight);
    });
    P::S::sum(total)
}

/// `2^x`, as finely as the weights are kept.
#[inline(always)]
pub(super) unsafe fn power<P: PairStep>(x: <P::S as Simd>::F) -> <P::S as Simd>::F {
    if P::K == 1 { exp2::<P::S>(x) } else { coarse_exp2::<P::S>(x) }
}
