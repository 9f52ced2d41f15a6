//! What becomes of the sums of products with weights.
//!
//! Tiles store sums and nothing else. What vectors have to do to them afterwards, row by row, is left for
//! the time in which the tiles are busy with the next ones.

#![allow(unsafe_op_in_unsafe_fn, reason = "nothing here but instructions under one contract")]

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::{PANEL, Sums, add_bf16, add_int8, pass_bf16, pass_int8};
use crate::kernels::activation::Activate;
use crate::kernels::avx512::Avx512;
use crate::kernels::avx512_dot::{Bf16, Int8};
use crate::kernels::product::{Finish, Product, Tile, Values};
use crate::kernels::simd::{Simd, each};
use crate::kernels::step::{FloatStep, IntStep};
use crate::kernels::tiles::BlockScales;

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
    /// Does it for a row.
    unsafe fn finish(&self, product: &Product, row: usize);
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
    unsafe fn finish(&self, _: &Product, _: usize) {}
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
    unsafe fn finish(&self, _: &Product, row: usize) {
        let (sums, at) = (self.sums.add(row * PANEL), row * self.stride);
        let (residual, to) = (self.residual.add(at), self.to.add(at));
        each!(Avx512, lane in PANEL, {
            let sum = Avx512::add(Avx512::load(sums.add(lane)), Avx512::load(residual.add(lane)));
            Avx512::store(to.add(lane), sum);
        });
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
    unsafe fn finish(&self, _: &Product, row: usize) {
        let values = Values::<A>::new(self.sums.add(row * PANEL), PANEL, self.smooth);
        let to = self.to.add(row * self.stride);
        each!(Avx512, lane in PANEL, {
            Bf16::store(to.add(lane), values.load::<Avx512>(lane));
        });
    }
}

/// Integers over one block of inputs, which are scaled and added to the floats of those before it.
pub(super) struct Scaled {
    tile: Tile,
    sums: *const __m512i,
    scales: BlockScales<Avx512>,
}

impl Left for Scaled {
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
    unsafe fn new(product: &Product, tile: Tile, sums: *const u32) -> Self {
        let scales = BlockScales::of(product, tile, tile.block);
        Self { tile, sums: sums.cast(), scales }
    }

    #[inline(always)]
    unsafe fn finish(&self, product: &Product, row: usize) {
        let sums = self.sums.add(2 * row);
        let sums = [Int8::to_float(*sums), Int8::to_float(*sums.add(1))];
        self.scales.add(product, self.tile, [row, self.tile.block], sums);
    }
}
