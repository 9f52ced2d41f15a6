//! What becomes of the sums of products with weights.
//!
//! Tiles store sums and nothing else. What vectors have to do to them afterwards, row by row, is left for
//! the time in which the tiles are busy with the next ones.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::ops::Range;

use super::product::{HEIGHT, TOGETHER};
use super::{PANEL, Sums, add_bf16, add_int8, pass_bf16, pass_int8};
use crate::kernels::activation::{Activate, Identity};
use crate::kernels::avx512::Avx512;
use crate::kernels::avx512_dot::{Bf16, Int8};
use crate::kernels::product::{Finish, GROUP, Product, Tile, Tiles, Values};
use crate::kernels::simd::{Simd, each};
use crate::kernels::step::FloatStep;
use crate::kernels::tiles::{BlockScales, IntTiles, before};

/// What is left to do of a tile's sums.
///
/// # Safety
/// As [`crate::kernels::product::multiply`].
pub(super) trait Left {
    /// Whether sums leave the tiles after each block of
    /// [`GROUP`](crate::kernels::product::GROUP) inputs, to be scaled; else they are those of all inputs.
    const BY_BLOCKS: bool;
    /// Whether they may leave the tiles for where they belong, and nothing is left to do.
    const AS_THEY_ARE: bool;

    /// Adds the products of one tile of inputs, whose rows are `stride` bytes apart, with a panel: with
    /// `PASS`, the inputs pass by the first level cache.
    unsafe fn add<const PASS: bool>(sums: Sums, input: *const u8, stride: usize, panel: *const u8);
    /// What the sums of the panel at `column` begin with.
    unsafe fn begin(product: &Product, column: usize, sums: Sums);
    /// What is left to do of the `sums` of a tile.
    unsafe fn new(product: &Product, tile: Tile, sums: *const u32) -> Self;
    /// Does it for some rows.
    unsafe fn finish(&self, product: &Product, rows: Range<usize>);
    /// Makes the finished values of a group of columns, which begin at `from`, a part of the next product's
    /// left operand, if they are not that yet.
    #[inline(always)]
    unsafe fn round(_: &Product, _from: *const f32, _columns: Range<usize>) {}
}

/// [`Left::add`] and [`Left::begin`] of floats, which begin with the bias.
macro_rules! floats {
    () => {
        const BY_BLOCKS: bool = false;

        #[inline(always)]
        unsafe fn add<const PASS: bool>(
            sums: Sums,
            input: *const u8,
            stride: usize,
            panel: *const u8,
        ) {
            match PASS {
                true => pass_bf16(sums, input, stride, panel),
                false => add_bf16(sums, input, stride, panel),
            }
        }

        #[inline(always)]
        unsafe fn begin(product: &Product, column: usize, sums: Sums) {
            sums.load(product.weights.bias.add(column).cast(), 0);
        }
    };
}

/// Floats that are stored.
pub(super) struct Stored;

impl Left for Stored {
    const AS_THEY_ARE: bool = true;
    floats!();

    #[inline(always)]
    unsafe fn new(_: &Product, _: Tile, _: *const u32) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn finish(&self, _: &Product, _: Range<usize>) {}
}

/// Floats that are stored on top of others.
pub(super) struct Added {
    sums: *const f32,
    residual: *const f32,
    to: *mut f32,
    stride: usize,
}

impl Left for Added {
    const AS_THEY_ARE: bool = false;
    floats!();

    #[inline(always)]
    unsafe fn new(product: &Product, tile: Tile, sums: *const u32) -> Self {
        let (residual, stride) = match product.finish {
            Finish::Add { residual, stride, .. } => (residual, stride),
            _ => unreachable!("others have nothing to be stored on top of"),
        };
        let residual = residual.add(tile.row * stride + tile.column);
        Self { sums: sums.cast(), residual, to: tile.to, stride }
    }

    #[inline(always)]
    unsafe fn finish(&self, _: &Product, rows: Range<usize>) {
        for row in rows {
            let (sums, at) = (self.sums.add(row * PANEL), row * self.stride);
            let (residual, to) = (self.residual.add(at), self.to.add(at));
            each!(Avx512, lane in PANEL, {
                let sum = Avx512::add(Avx512::load(sums.add(lane)), Avx512::load(residual.add(lane)));
                Avx512::store(to.add(lane), sum);
            });
        }
    }
}

/// Floats that are activated and become inputs.
pub(super) struct Activated<A> {
    sums: *const f32,
    smooth: *const f32,
    to: *mut u16,
    stride: usize,
    activation: PhantomData<A>,
}

impl<A: Activate> Left for Activated<A> {
    const AS_THEY_ARE: bool = false;
    floats!();

    #[inline(always)]
    unsafe fn new(product: &Product, tile: Tile, sums: *const u32) -> Self {
        let (to, smooth) = match product.finish {
            Finish::Activate { to, smooth, .. } => (to, smooth),
            _ => unreachable!("others are not activated"),
        };
        let smooth = if smooth.is_null() { smooth } else { smooth.add(tile.column) };
        let values = to.values.cast::<u16>().add(tile.row * to.stride + tile.column);
        Self { sums: sums.cast(), smooth, to: values, stride: to.stride, activation: PhantomData }
    }

    #[inline(always)]
    unsafe fn finish(&self, _: &Product, rows: Range<usize>) {
        for row in rows {
            let values = Values::<A>::new(self.sums.add(row * PANEL), PANEL, self.smooth);
            let to = self.to.add(row * self.stride);
            each!(Avx512, lane in PANEL, {
                Bf16::store(to.add(lane), values.load::<Avx512>(lane));
            });
        }
    }
}

/// Integers over one to four blocks of inputs, which are scaled and added to the floats of those before
/// them, and, where these are to be an operand, activated when they are complete.
pub(super) struct Scaled<A> {
    tile: Tile,
    /// Those of one block behind those of the other.
    sums: *const u32,
    activation: PhantomData<A>,
}

impl<A: Activate> Scaled<A> {
    /// [`Left::finish`] of `N` blocks.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
    unsafe fn blocks<const N: usize>(&self, product: &Product, rows: Range<usize>) {
        let tile = self.tile;
        let mut scales = [BlockScales::<Avx512>::of(product, tile, tile.block); N];
        for (next, scales) in scales.iter_mut().enumerate().skip(1) {
            *scales = BlockScales::of(product, tile, tile.block + next);
        }
        let smooth = match product.finish {
            Finish::Activate { smooth, .. } if tile.block + N == product.input.blocks => {
                Some(if smooth.is_null() { smooth } else { smooth.add(tile.column) })
            }
            _ => None,
        };
        for row in rows {
            let mut total = before::<Avx512>(product, tile, row, tile.block);
            for (next, scales) in scales.iter().enumerate() {
                let sums = self.sums.add(next * HEIGHT * PANEL + row * PANEL).cast::<__m512i>();
                let sums = [Avx512::from_i32(*sums), Avx512::from_i32(*sums.add(1))];
                total = scales.add(product, [tile.row + row, tile.block + next], sums, total);
            }
            if let Some(smooth) = smooth {
                let [low, high] = total;
                total[0] = Values::<A>::of::<Avx512>(low, smooth, 0);
                total[1] = Values::<A>::of::<Avx512>(high, smooth, Avx512::LANES);
            }
            let to = tile.to.add(row * tile.stride);
            Avx512::store(to, total[0]);
            Avx512::store(to.add(Avx512::LANES), total[1]);
        }
    }
}

impl<A: Activate> Left for Scaled<A> {
    const BY_BLOCKS: bool = true;
    const AS_THEY_ARE: bool = false;

    #[inline(always)]
    unsafe fn add<const PASS: bool>(sums: Sums, input: *const u8, stride: usize, panel: *const u8) {
        match PASS {
            true => pass_int8(sums, input, stride, panel),
            false => add_int8(sums, input, stride, panel),
        }
    }

    #[inline(always)]
    unsafe fn begin(_: &Product, _: usize, sums: Sums) {
        sums.clear();
    }

    #[inline(always)]
    unsafe fn new(_: &Product, tile: Tile, sums: *const u32) -> Self {
        Self { tile, sums, activation: PhantomData }
    }

    #[inline(always)]
    unsafe fn finish(&self, product: &Product, rows: Range<usize>) {
        match self.tile.blocks {
            1 => self.blocks::<1>(product, rows),
            2 => self.blocks::<2>(product, rows),
            3 => self.blocks::<3>(product, rows),
            _ => self.blocks::<TOGETHER>(product, rows),
        }
    }

    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
    unsafe fn round(product: &Product, from: *const f32, columns: Range<usize>) {
        let Finish::Activate { to, .. } = product.finish else { return };
        for row in 0..product.rows {
            let from = from.add(row * GROUP);
            let values = Values::<Identity>::new(from, columns.len(), std::ptr::null());
            IntTiles::<Int8, 8>::store(&to, row, columns.start, &values);
        }
    }
}
