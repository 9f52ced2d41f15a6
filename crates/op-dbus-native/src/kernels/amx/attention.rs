//! Attention over one text, its products by tiles.
//!
//! As [`crate::kernels::attention`] has it, but scores go through memory: the CPU can't compute with
//! tiles. Those of one panel of keys become weights while the tiles are busy with the next.

use std::arch::x86_64::*;
use std::f32::consts::LOG2_E;
use std::mem::MaybeUninit;

use super::{PANEL, ROWS, STEPS, Sums, add_bf16, configure, release};
use crate::kernels::attention::{
    Attention, COUNTED, LANES_MAX, PLAIN, Parts, pack_keys, pack_values, power, to_inputs,
    weigh_row,
};
use crate::kernels::avx512::Avx512;
use crate::kernels::avx512_dot::Bf16;
use crate::kernels::simd::{Simd, each};
use crate::kernels::step::FloatStep;

/// Queries at a time.
const QUERIES: usize = 2 * ROWS;

/// Inputs of a tile.
const INPUTS: usize = STEPS * Bf16::K;

/// The sums of a panel.
#[repr(C, align(64))]
struct Block(MaybeUninit<[[f32; PANEL]; QUERIES]>);

/// Computes heads.
///
/// # Safety
/// As [`attend`](crate::kernels::attention::attend) of the others.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn attend(job: &Attention) {
    // Whole tiles: of the head's columns, and of the text's tokens.
    let (columns, length) =
        (job.size.next_multiple_of(INPUTS), job.length.next_multiple_of(INPUTS));
    // Telling the tiles costs as much as a fifth of a short text's head.
    let mut ready = 0;
    for head in 0..job.heads {
        let job = &job.head(head);
        let head = Head { job, parts: Parts::of(job), columns, length };
        pack_keys(job, &head.parts, columns / Bf16::K);
        pack_values(job, &head.parts, length / Bf16::K);
        let mut first = 0;
        while first < job.length {
            let rows = QUERIES.min(job.length - first);
            if rows != ready {
                configure(rows);
                ready = rows;
            }
            head.queries(first, Sums { rows });
            first += rows;
        }
    }
    release();
}

/// Adds the products of rows that are `apart` inputs apart with a panel, over so many tiles of inputs.
#[inline(always)]
unsafe fn add(sums: Sums, input: *const u16, apart: usize, panel: *const u16, tiles: usize) {
    for tile in 0..tiles {
        let (input, panel) = (input.add(tile * INPUTS), panel.add(tile * INPUTS * PANEL));
        add_bf16(sums, input.cast(), 2 * apart, panel.cast());
    }
}

/// One head of one text, its keys and values packed. The methods have the contract of [`attend`].
struct Head<'a> {
    job: &'a Attention,
    parts: Parts<Bf16>,
    /// Columns, padded to whole tiles with zeros.
    columns: usize,
    /// Tokens, likewise.
    length: usize,
}

impl Head<'_> {
    /// The queries from `first` on, as many as there are rows of sums.
    #[inline(always)]
    unsafe fn queries(&self, first: usize, sums: Sums) {
        let Self { job, parts, columns, length } = self;
        for row in 0..sums.rows {
            let query = job.queries.add((first + row) * job.stride);
            let to = parts.queries.add(row * parts.size);
            to_inputs::<Bf16>(query, job.scale * LOG2_E, [job.size, *columns], to);
        }
        let mut totals = self.weigh_at_once(first, sums);
        if !totals[..sums.rows].iter().all(|total| PLAIN.contains(total)) {
            totals = self.weigh_below_largest(first, sums);
        }
        let mut results = Block(MaybeUninit::uninit());
        let results = results.0.as_mut_ptr().cast::<f32>();
        let mut column = 0;
        while column < job.size {
            let values = parts.values.add(column * length);
            sums.clear();
            add(sums, parts.weights, parts.apart, values, length / INPUTS);
            sums.store(results.cast(), 4 * PANEL);
            let columns = PANEL.min(job.size - column);
            for (row, total) in totals.iter().enumerate().take(sums.rows) {
                let share = Avx512::splat(1.0 / total);
                let from = results.add(row * PANEL);
                let to = job.to.add((first + row) * job.to_stride + column);
                let at = if columns == PANEL { to } else { from };
                each!(Avx512, lane in PANEL, {
                    Avx512::store(at.add(lane), Avx512::mul(Avx512::load(from.add(lane)), share));
                });
                if columns < PANEL {
                    to.copy_from_nonoverlapping(at, columns);
                }
            }
            column += PANEL;
        }
    }

    /// The scores of the queries for the panel of keys from `key` on, but for the bias.
    #[inline(always)]
    unsafe fn scores(&self, key: usize, sums: Sums, to: *mut f32, apart: usize) {
        let Self { parts, columns, .. } = self;
        let keys = parts.keys.add(key * columns);
        sums.clear();
        add(sums, parts.queries, parts.size, keys, columns / INPUTS);
        sums.store(to.cast(), 4 * apart);
    }

    /// As [`crate::kernels::attention`] has it.
    #[inline(always)]
    unsafe fn weigh_at_once(&self, first: usize, sums: Sums) -> [f32; QUERIES] {
        let mut blocks = [const { Block(MaybeUninit::uninit()) }; 2];
        let mut blocks = blocks.each_mut().map(|block| block.0.as_mut_ptr().cast::<f32>());
        let mut totals = [Avx512::splat(0.0); QUERIES];
        self.scores(0, sums, blocks[0], PANEL);
        let mut key = 0;
        while key + PANEL < self.length {
            self.scores(key + PANEL, sums, blocks[1], PANEL);
            self.weigh_panel::<false>([first, key], sums.rows, blocks[0], &mut totals);
            blocks.swap(0, 1);
            key += PANEL;
        }
        self.weigh_panel::<true>([first, key], sums.rows, blocks[0], &mut totals);
        let mut each = [0.0; QUERIES];
        for (each, total) in each.iter_mut().zip(&totals[..sums.rows]) {
            *each = Avx512::sum(*total);
        }
        each
    }

    /// Makes the scores of a panel of keys weights, those behind the last key zeros, and adds them up.
    #[inline(always)]
    unsafe fn weigh_panel<const LAST: bool>(
        &self,
        [first, key]: [usize; 2],
        rows: usize,
        scores: *const f32,
        totals: &mut [__m512; QUERIES],
    ) {
        let Self { job, parts, .. } = self;
        for (row, total) in totals.iter_mut().enumerate().take(rows) {
            each!(Avx512, lane in PANEL, {
                let key = key + lane;
                let to = parts.weights.add(row * parts.apart + key);
                if LAST && key >= job.length {
                    to.write_bytes(0, Avx512::LANES);
                } else {
                    let mut score = Avx512::load(scores.add(row * PANEL + lane));
                    if !job.bias.is_null() {
                        let bias = Avx512::load(job.bias.add(job.length - 1 - (first + row) + key));
                        score = Avx512::fma(bias, Avx512::splat(LOG2_E), score);
                    }
                    let mut weight = power::<Bf16>(score);
                    if LAST && key + Avx512::LANES > job.length {
                        let counted = COUNTED.as_ptr().add(LANES_MAX + key - job.length);
                        weight = Avx512::mul(weight, Avx512::load(counted));
                    }
                    *total = Avx512::add(*total, weight);
                    Bf16::store(to, weight);
                }
            });
        }
    }

    /// The same with the scores less the largest of their row, whatever they are.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
    unsafe fn weigh_below_largest(&self, first: usize, sums: Sums) -> [f32; QUERIES] {
        let Self { job, parts, length, .. } = self;
        let mut key = 0;
        while key < job.length {
            self.scores(key, sums, parts.scores.add(key), parts.apart);
            key += PANEL;
        }
        let mut totals = [0.0; QUERIES];
        for (row, total) in totals.iter_mut().enumerate().take(sums.rows) {
            let scores = parts.scores.add(row * parts.apart);
            if !job.bias.is_null() {
                let bias = job.bias.add(job.length - 1 - (first + row));
                each!(Avx512, key in job.length, {
                    let bias = Avx512::load(bias.add(key));
                    let sum = Avx512::fma(bias, Avx512::splat(LOG2_E), Avx512::load(scores.add(key)));
                    Avx512::store(scores.add(key), sum);
                });
            }
            // Behind the last key: as good as never looked at.
            (job.length..*length).for_each(|key| scores.add(key).write(f32::MIN));
            let mut most = Avx512::splat(f32::MIN);
            each!(Avx512, key in job.length, {
                most = Avx512::max(most, Avx512::load(scores.add(key)));
            });
            *total = weigh_row(job, parts, row, Avx512::greatest(most));
        }
        totals
    }
}
