//! NEON with matrix products: two rows times two columns in one instruction, at twice the speed of
//! its dot products. `std::arch` has no stable functions for them.
//!
//! The contract is that of [`super::neon`], with the named features on top. The weights of a step are
//! 8 bytes of each column, so that a register holds two columns, and one of inputs two rows.

use std::arch::aarch64::*;
use std::arch::asm;

use super::neon::Neon;
use super::neon_dot::to_bf16;
use super::simd::Simd;
use super::step::{FloatStep, IntStep};

/// Pairs of columns in a panel of two vectors.
const PAIRS: usize = 4;

/// 8-bit integers, eight to a step, by `i8mm`.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Neon;
    type Input = u8;
    /// Two columns or two rows.
    type A = uint64x2_t;
    const K: usize = 8;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> uint64x2_t {
        vreinterpretq_u64_s8(vld1q_s8(from))
    }

    #[inline(always)]
    unsafe fn input(from: *const u8) -> uint64x2_t {
        two_rows(from, from)
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: int32x4_t, input: uint64x2_t, weights: uint64x2_t) -> int32x4_t {
        let mut sum = sum;
        asm!(
            "usmmla {sum:v}.4s, {input:v}.16b, {weights:v}.16b",
            sum = inout(vreg) sum,
            input = in(vreg) input,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags)
        );
        sum
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, value: float32x4_t) {
        Neon::store_u8(to, value)
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const FAR: bool>(
        input: *const u8,
        stride: usize,
        panel: *const i8,
        steps: usize,
    ) -> [[int32x4_t; 2]; M] {
        let mut sums = [[Neon::zero_i32(); PAIRS]; M];
        for step in 0..steps {
            let columns = columns(panel.add(step * PAIRS * 16).cast());
            let input = input.add(step * Self::K);
            let mut row = 0;
            while row < M {
                let second = if row + 1 < M { row + 1 } else { row };
                let rows = two_rows(input.add(row * stride), input.add(second * stride));
                for pair in 0..PAIRS {
                    sums[row][pair] = Self::multiply_add(sums[row][pair], rows, columns[pair]);
                }
                row += 2;
            }
        }
        let mut apart = [[Neon::zero_i32(); 2]; M];
        let mut row = 0;
        while row < M {
            for half in 0..2 {
                let first = vreinterpretq_s64_s32(sums[row][2 * half]);
                let second = vreinterpretq_s64_s32(sums[row][2 * half + 1]);
                apart[row][half] = vreinterpretq_s32_s64(vzip1q_s64(first, second));
                if row + 1 < M {
                    apart[row + 1][half] = vreinterpretq_s32_s64(vzip2q_s64(first, second));
                }
            }
            row += 2;
        }
        apart
    }
}

/// bfloat16, four to a step, by `bf16`. The CPU takes denormal numbers for 0.
pub(crate) struct Bf16;

impl FloatStep for Bf16 {
    type S = Neon;
    type Input = u16;
    type Weight = u16;
    /// Two columns or two rows.
    type A = uint64x2_t;
    const K: usize = 4;

    #[inline(always)]
    unsafe fn weights(from: *const u16) -> uint64x2_t {
        vreinterpretq_u64_u16(vld1q_u16(from))
    }

    #[inline(always)]
    unsafe fn input(from: *const u16) -> uint64x2_t {
        two_rows(from.cast(), from.cast())
    }

    #[inline(always)]
    unsafe fn multiply_add(
        sum: float32x4_t,
        input: uint64x2_t,
        weights: uint64x2_t,
    ) -> float32x4_t {
        let mut sum = sum;
        asm!(
            "bfmmla {sum:v}.4s, {input:v}.8h, {weights:v}.8h",
            sum = inout(vreg) sum,
            input = in(vreg) input,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags)
        );
        sum
    }

    #[inline(always)]
    unsafe fn store(to: *mut u16, value: float32x4_t) {
        vst1_u16(to, to_bf16(value))
    }

    #[inline(always)]
    unsafe fn sums<const M: usize, const FAR: bool>(
        input: *const u16,
        stride: usize,
        panel: *const u16,
        steps: usize,
        apart: [[float32x4_t; 2]; M],
    ) -> [[float32x4_t; 2]; M] {
        let mut sums = [[vdupq_n_f32(0.0); PAIRS]; M];
        let mut row = 0;
        while row < M {
            let second = if row + 1 < M { row + 1 } else { row };
            for half in 0..2 {
                let (above, below) = (in_pairs(apart[row][half]), in_pairs(apart[second][half]));
                sums[row][2 * half] = vreinterpretq_f32_f64(vzip1q_f64(above, below));
                sums[row][2 * half + 1] = vreinterpretq_f32_f64(vzip2q_f64(above, below));
            }
            row += 2;
        }
        for step in 0..steps {
            let columns = columns(panel.add(step * PAIRS * 8).cast());
            let input = input.add(step * Self::K);
            let mut row = 0;
            while row < M {
                let second = if row + 1 < M { row + 1 } else { row };
                let first = input.add(row * stride).cast();
                let rows = two_rows(first, input.add(second * stride).cast());
                for pair in 0..PAIRS {
                    sums[row][pair] = Self::multiply_add(sums[row][pair], rows, columns[pair]);
                }
                row += 2;
            }
        }
        let mut apart = apart;
        let mut row = 0;
        while row < M {
            for half in 0..2 {
                let left = in_pairs(sums[row][2 * half]);
                let right = in_pairs(sums[row][2 * half + 1]);
                apart[row][half] = vreinterpretq_f32_f64(vzip1q_f64(left, right));
                if row + 1 < M {
                    apart[row + 1][half] = vreinterpretq_f32_f64(vzip2q_f64(left, right));
                }
            }
            row += 2;
        }
        apart
    }
}

/// Sums as pairs that stay together.
#[inline(always)]
unsafe fn in_pairs(sums: float32x4_t) -> float64x2_t {
    vreinterpretq_f64_f32(sums)
}

/// The weights of one step: 8 bytes of each of the panel's columns.
#[inline(always)]
unsafe fn columns(from: *const u64) -> [uint64x2_t; PAIRS] {
    [vld1q_u64(from), vld1q_u64(from.add(2)), vld1q_u64(from.add(4)), vld1q_u64(from.add(6))]
}

/// 8 bytes of each of two rows.
#[inline(always)]
unsafe fn two_rows(first: *const u8, second: *const u8) -> uint64x2_t {
    let first = vcreate_u64(first.cast::<u64>().read_unaligned());
    vcombine_u64(first, vcreate_u64(second.cast::<u64>().read_unaligned()))
}
