//! Tiles: a few rows against one panel, their sums in registers.

use std::mem::MaybeUninit;

use super::Element;
use super::activation::Activate;
use super::product::{GROUP, Operand, Product, Tile, Tiles, Values, start};
use super::simd::{Simd, each};
use super::step::{FloatStep, IntStep};

/// Evaluates an expression that is generic over the rows of a tile, of which there are at most 8:
/// unrolled, the compiler does not keep the sums of more rows in 32 registers.
macro_rules! by_rows {
    ($rows:literal, $m:ident => $call:expr) => {{
        const $m: usize = $rows;
        $call
    }};
    ($rows:expr, $most:expr, $m:ident => $call:expr) => {
        match $rows {
            1 => by_rows!(1, $m => $call),
            2 => by_rows!(2, $m => $call),
            3 => by_rows!(3, $m => $call),
            4 => by_rows!(4, $m => $call),
            5 => by_rows!(5, $m => $call),
            6 => by_rows!(6, $m => $call),
            7 if $most > 6 => by_rows!(7, $m => $call),
            8 if $most > 6 => by_rows!(8, $m => $call),
            _ => unreachable!("no tile has so many rows"),
        }
    };
}
pub(crate) use by_rows;

/// Tiles of float steps.
pub(crate) struct FloatTiles<P, const ROWS: usize>(std::marker::PhantomData<P>);

impl<P: FloatStep, const ROWS: usize> FloatTiles<P, ROWS> {
    /// A tile of `M` rows.
    #[inline(always)]
    unsafe fn rows<const M: usize>(product: &Product, tile: Tile) {
        let Product { input, weights, .. } = product;
        let lanes = P::S::LANES;
        let first = tile.block * GROUP / P::K;
        let steps = (tile.blocks * GROUP / P::K).min(weights.steps - first);
        let values = input.values.cast::<P::Input>();
        let values = values.add(tile.row * input.stride + first * P::K);
        let panel = weights.panels.cast::<P::Weight>();
        let panel = panel.add((tile.column * weights.steps + first * Self::PANEL) * P::K);
        let mut sums = [[P::S::splat(0.0); 2]; M];
        for (row, sums) in sums.iter_mut().enumerate() {
            *sums = before::<P::S>(product, tile, row, tile.block);
        }
        let sums = match tile.far {
            true => P::sums::<M, true>(values, input.stride, panel, steps, sums),
            false => P::sums::<M, false>(values, input.stride, panel, steps, sums),
        };
        for (row, sums) in sums.into_iter().enumerate() {
            let to = tile.to.add(row * tile.stride);
            P::S::store(to, sums[0]);
            P::S::store(to.add(lanes), sums[1]);
        }
    }
}

impl<P: FloatStep, const ROWS: usize> Tiles for FloatTiles<P, ROWS> {
    type S = P::S;
    const ROWS: usize = ROWS;
    const WEIGHT: Element = match size_of::<P::Weight>() {
        4 => Element::F32,
        _ => Element::Bf16,
    };
    const STEP: usize = P::K;
    const INPUT_BYTES: usize = size_of::<P::Input>();

    #[inline(always)]
    unsafe fn tile(product: &Product, tile: Tile) {
        by_rows!(tile.rows, ROWS, M => Self::rows::<M>(product, tile))
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        let mut memory = std::hint::black_box([0_u64; 64]);
        let inputs = P::input((&raw mut memory).cast());
        let weights = P::weights((&raw const memory).cast());
        // Chains that were known to be equal would be computed once.
        let mut sums = std::hint::black_box([[P::S::splat(0.0); 2]; ROWS]);
        for _ in 0..repeats {
            for row in &mut sums {
                row[0] = P::multiply_add(row[0], inputs, weights);
                row[1] = P::multiply_add(row[1], inputs, weights);
            }
        }
        let mut total = 0.0;
        for row in sums {
            total += P::S::sum(row[0]) + P::S::sum(row[1]);
        }
        total
    }

    #[inline(always)]
    unsafe fn store<A: Activate>(to: &Operand, row: usize, column: usize, values: &Values<A>) {
        let to = to.values.cast::<P::Input>().add(row * to.stride + column);
        each!(P::S, at in values.length, { P::store(to.add(at), values.load::<P::S>(at)) });
    }
}

/// Tiles of integer steps: whole blocks are summed as integers, then scaled and added up as floats.
pub(crate) struct IntTiles<P, const ROWS: usize>(std::marker::PhantomData<P>);

impl<P: IntStep, const ROWS: usize> IntTiles<P, ROWS> {
    /// A tile of `M` rows.
    #[inline(always)]
    unsafe fn rows<const M: usize>(product: &Product, tile: Tile) {
        let Product { input, weights, .. } = product;
        let values = input.values.cast::<P::Input>().add(tile.row * input.stride);
        let panel = weights.panels.cast::<i8>().add(tile.column * weights.steps * P::K);
        let steps_per_block = GROUP / P::K;
        for block in tile.block..tile.block + tile.blocks {
            let first = block * steps_per_block;
            let steps = steps_per_block.min(weights.steps - first);
            let values = values.add(block * GROUP);
            let panel = panel.add(first * Self::PANEL * P::K);
            let sums = match tile.far {
                true => P::sums::<M, true>(values, input.stride, panel, steps),
                false => P::sums::<M, false>(values, input.stride, panel, steps),
            };
            let scales = BlockScales::<P::S>::of(product, tile, block);
            for (row, sums) in sums.into_iter().enumerate() {
                let sums = [P::S::from_i32(sums[0]), P::S::from_i32(sums[1])];
                let total = before::<P::S>(product, tile, row, block);
                let total = scales.add(product, [tile.row + row, block], sums, total);
                let to = tile.to.add(row * tile.stride);
                P::S::store(to, total[0]);
                P::S::store(to.add(P::S::LANES), total[1]);
            }
        }
    }
}

/// What a row's sums are before a block of inputs.
#[inline(always)]
pub(crate) unsafe fn before<S: Simd>(
    product: &Product,
    tile: Tile,
    row: usize,
    block: usize,
) -> [S::F; 2] {
    if block == 0 {
        return start::<S>(product, tile.row + row, tile.column);
    }
    let to = tile.to.add(row * tile.stride);
    [S::load(to), S::load(to.add(S::LANES))]
}

/// What the weights of one block and panel are scaled by. Read once for all rows: the compiler has to
/// take it that a row's sums are stored on top of it.
#[derive(Clone, Copy)]
pub(crate) struct BlockScales<S: Simd> {
    scales: [S::F; 2],
    /// Scale times the sum of the weights.
    sums: [S::F; 2],
}

impl<S: Simd> BlockScales<S> {
    /// Those of a tile's panel.
    #[inline(always)]
    pub unsafe fn of(product: &Product, tile: Tile, block: usize) -> Self {
        let panel = 2 * S::LANES;
        let at = 2 * (tile.column * product.input.blocks + block * panel);
        let at = product.weights.scales.add(at);
        let pair = |at: *const f32| [S::load(at), S::load(at.add(S::LANES))];
        Self { scales: pair(at), sums: pair(at.add(panel)) }
    }

    /// Adds what one block of inputs contributes to one row, summed as integers, to the row's total.
    #[inline(always)]
    pub unsafe fn add(
        &self,
        product: &Product,
        [row, block]: [usize; 2],
        sums: [S::F; 2],
        mut total: [S::F; 2],
    ) -> [S::F; 2] {
        let Product { input, .. } = product;
        let of_row = input.scales.add(2 * (row * input.blocks + block));
        let (scale, least) = (S::splat(*of_row), S::splat(*of_row.add(1)));
        for half in 0..2 {
            let scaled = S::mul(sums[half], self.scales[half]);
            let sum = S::fma(least, self.sums[half], total[half]);
            total[half] = S::fma(scale, scaled, sum);
        }
        total
    }
}

impl<P: IntStep, const ROWS: usize> Tiles for IntTiles<P, ROWS> {
    type S = P::S;
    const ROWS: usize = ROWS;
    const WEIGHT: Element = Element::I8;
    const STEP: usize = P::K;
    const INPUT_BYTES: usize = size_of::<P::Input>();

    #[inline(always)]
    unsafe fn tile(product: &Product, tile: Tile) {
        by_rows!(tile.rows, ROWS, M => Self::rows::<M>(product, tile))
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        let mut memory = std::hint::black_box([0_u64; 64]);
        let mut inputs = P::input((&raw mut memory).cast());
        let weights = P::weights((&raw const memory).cast());
        // As for floats: equal chains would be computed once. Where an instruction does not add as
        // well, its product would be computed once, too, if the inputs were known to be the same.
        let mut sums = std::hint::black_box([[P::S::zero_i32(); 2]; ROWS]);
        for _ in 0..repeats {
            for sum in sums.as_flattened_mut() {
                inputs = P::opaque(inputs);
                *sum = P::multiply_add(*sum, inputs, weights);
            }
        }
        let mut total = 0.0;
        for row in sums {
            total += P::S::sum(P::S::from_i32(row[0])) + P::S::sum(P::S::from_i32(row[1]));
        }
        total
    }

    #[inline(always)]
    unsafe fn store<A: Activate>(to: &Operand, row: usize, column: usize, values: &Values<A>) {
        let mut ready = MaybeUninit::<[f32; GROUP]>::uninit();
        let ready = ready.as_mut_ptr().cast::<f32>();
        let as_they_are = values.as_they_are();
        let (mut least, mut most) = (P::S::splat(f32::MAX), P::S::splat(f32::MIN));
        // 0 of numbers; nothing of what is none, which the smallest and the largest forget with the next vector.
        let mut none = P::S::splat(0.0);
        each!(P::S, at in values.length, {
            let value = values.load::<P::S>(at);
            if as_they_are.is_none() {
                P::S::store(ready.add(at), value);
            }
            least = P::S::min(least, value);
            most = P::S::max(most, value);
            none = P::S::fma(value, P::S::splat(0.0), none);
        });
        let ready = as_they_are.unwrap_or(ready);
        let (least, most) = (P::S::least(least), P::S::greatest(most));
        let scale = (most - least) / 255.0 + P::S::sum(none);
        // A block of equal values has no steps; one of nearly equal ones must not overflow.
        let inverse = if scale > 1e-30 { 1.0 / scale } else { 0.0 };
        let of_row = to.scales.add(2 * (row * to.blocks + column / GROUP));
        *of_row = scale;
        *of_row.add(1) = if P::SHIFT == 0.0 { least } else { scale.mul_add(P::SHIFT, least) };
        let to = to.values.cast::<P::Input>().add(row * to.stride + column);
        each!(P::S, at in values.length, {
            let above = P::S::sub(P::S::load(ready.add(at)), P::S::splat(least));
            let mut steps = P::S::mul(above, P::S::splat(inverse));
            if !P::ROUNDS {
                steps = P::S::min(P::S::round(steps), P::S::splat(255.0));
            }
            P::store(to.add(at), P::S::sub(steps, P::S::splat(P::SHIFT)));
        });
    }
}
