//! AVX-512 with dot products: VNNI multiplies four 8-bit integers and BF16 two bfloat16 per lane.
//!
//! The contract is that of [`super::avx512`], with these features on top.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::simd::Simd;
use super::step::{FloatStep, IntStep, PairStep};

/// 8-bit integers, four to a lane: exact, at four times the speed of 32-bit floats.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Avx512;
    type Input = u8;
    type A = __m512i;
    const K: usize = 4;
    const ROUNDS: bool = true;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }

    #[inline(always)]
    unsafe fn input(from: *const u8) -> __m512i {
        _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: __m512i, input: __m512i, weights: __m512i) -> __m512i {
        _mm512_dpbusd_epi32(sum, input, weights)
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, value: __m512) {
        Avx512::store_u8(to, value)
    }
}

/// bfloat16, two to a lane: twice the speed of 32-bit floats. The CPU takes denormal numbers for 0.
pub(crate) struct Bf16;

impl FloatStep for Bf16 {
    type S = Avx512;
    type Input = u16;
    type Weight = u16;
    type A = __m512i;
    const K: usize = 2;

    #[inline(always)]
    unsafe fn weights(from: *const u16) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }

    #[inline(always)]
    unsafe fn input(from: *const u16) -> __m512i {
        _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: __m512, input: __m512i, weights: __m512i) -> __m512 {
        _mm512_dpbf16_ps(sum, pairs(input), pairs(weights))
    }

    #[inline(always)]
    unsafe fn store(to: *mut u16, value: __m512) {
        _mm256_storeu_si256(to.cast(), to_bf16(value));
    }
}

impl PairStep for Bf16 {
    #[inline(always)]
    unsafe fn pack(to: *mut u16, first: __m512, second: __m512) {
        let low = _mm512_cvtepu16_epi32(to_bf16(first));
        let high = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(to_bf16(second)));
        _mm512_storeu_si512(to.cast(), _mm512_or_si512(low, high));
    }
}

/// The nearest bfloat16 of each lane, ties to even.
#[inline(always)]
unsafe fn to_bf16(value: __m512) -> __m256i {
    std::mem::transmute(_mm512_cvtneps_pbh(value))
}

/// The same bits as pairs of bfloat16.
#[inline(always)]
unsafe fn pairs(bits: __m512i) -> __m512bh {
    std::mem::transmute(bits)
}
