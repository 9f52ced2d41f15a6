//! NEON, which every 64-bit Arm CPU has: 4 lanes, 32 registers.
//!
//! Every function is inlined into a kernel that is compiled for these features and runs only where
//! the CPU has them; that, and pointers that are valid for a vector's elements, is what each asks.

use std::arch::aarch64::*;
use std::arch::asm;

use super::simd::Simd;
use super::step::{self, IntStep};

/// 128-bit vectors.
pub(crate) struct Neon;

impl Simd for Neon {
    type F = float32x4_t;
    type I = int32x4_t;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> float32x4_t {
        vdupq_n_f32(value)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        vld1q_f32(from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: float32x4_t) {
        vst1q_f32(to, value)
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vaddq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vsubq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmulq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vdivq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        vfmaq_f32(c, a, b)
    }

    /// In the first lane alone.
    #[inline(always)]
    unsafe fn operand(from: *const f32) -> float32x4_t {
        let bits = vsetq_lane_s32::<0>(from.cast::<i32>().read_unaligned(), vdupq_n_s32(0));
        vreinterpretq_f32_s32(bits)
    }

    /// With the first lane of `input`. Left to itself, the compiler would load that value into all
    /// lanes, which on most CPUs takes the place of a multiplication.
    #[inline(always)]
    unsafe fn add_product(
        mut sum: float32x4_t,
        input: float32x4_t,
        weights: float32x4_t,
    ) -> float32x4_t {
        asm!(
            "fmla {sum:v}.4s, {weights:v}.4s, {input:v}.s[0]",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            input = in(vreg) input,
            options(pure, nomem, nostack, preserves_flags)
        );
        sum
    }

    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vminq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        vmaxq_f32(a, b)
    }

    #[inline(always)]
    unsafe fn round(value: float32x4_t) -> float32x4_t {
        vrndnq_f32(value)
    }

    #[inline(always)]
    unsafe fn power_of_two(n: float32x4_t) -> float32x4_t {
        let biased = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
        vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
    }

    #[inline(always)]
    unsafe fn sum(value: float32x4_t) -> f32 {
        vaddvq_f32(value)
    }

    #[inline(always)]
    unsafe fn least(value: float32x4_t) -> f32 {
        vminvq_f32(value)
    }

    #[inline(always)]
    unsafe fn greatest(value: float32x4_t) -> f32 {
        vmaxvq_f32(value)
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> float32x4_t {
        vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from)))
    }

    #[inline(always)]
    unsafe fn rounded_to_bf16(value: float32x4_t) -> float32x4_t {
        let bits = vreinterpretq_u32_f32(value);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let near = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7FFF)));
        vreinterpretq_f32_u32(vandq_u32(near, vdupq_n_u32(0xFFFF_0000)))
    }

    #[inline(always)]
    unsafe fn zero_i32() -> int32x4_t {
        vdupq_n_s32(0)
    }

    #[inline(always)]
    unsafe fn from_i32(value: int32x4_t) -> float32x4_t {
        vcvtq_f32_s32(value)
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, value: float32x4_t) {
        store_bytes(to, vreinterpretq_s32_u32(vcvtq_u32_f32(value)))
    }

    #[inline(always)]
    unsafe fn store_i16(to: *mut i16, value: float32x4_t) {
        vst1_s16(to, vmovn_s32(vcvtq_s32_f32(value)))
    }
}

/// The lowest byte of each lane.
#[inline(always)]
pub(crate) unsafe fn store_bytes(to: *mut u8, value: int32x4_t) {
    let words = vmovn_s32(value);
    let bytes = vreinterpret_u32_s8(vmovn_s16(vcombine_s16(words, words)));
    to.cast::<u32>().write_unaligned(vget_lane_u32::<0>(bytes))
}

/// 32-bit floats.
pub(crate) type F32 = step::F32<Neon>;

/// bfloat16 operands, widened to 32-bit floats.
pub(crate) type Bf16 = step::Bf16<Neon>;

/// 8-bit integers, widened to 16 bits: exact, at no more than the speed of 32-bit floats.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Neon;
    type Input = i16;
    type A = int16x4_t;
    const K: usize = 1;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> int16x4_t {
        let four = vld1_lane_s32::<0>(from.cast(), vdup_n_s32(0));
        vget_low_s16(vmovl_s8(vreinterpret_s8_s32(four)))
    }

    #[inline(always)]
    unsafe fn input(from: *const i16) -> int16x4_t {
        vdup_n_s16(*from)
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: int32x4_t, input: int16x4_t, weights: int16x4_t) -> int32x4_t {
        vmlal_s16(sum, weights, input)
    }

    #[inline(always)]
    unsafe fn opaque(mut inputs: int16x4_t) -> int16x4_t {
        asm!("/* {0:v} */", inout(vreg) inputs, options(nomem, nostack, preserves_flags));
        inputs
    }

    #[inline(always)]
    unsafe fn store(to: *mut i16, value: float32x4_t) {
        Neon::store_i16(to, value)
    }
}
