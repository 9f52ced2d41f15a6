//! AVX2 and FMA: 8 lanes, 16 registers.
//!
//! Every function is inlined into a kernel that is compiled for these features and runs only where
//! the CPU has them; that, and pointers that are valid for a vector's elements, is what each asks.

use std::arch::asm;
use std::arch::x86_64::*;

use super::simd::Simd;
use super::step::{self, IntStep};

/// 256-bit vectors.
pub(crate) struct Avx2;

impl Simd for Avx2 {
    type F = __m256;
    type I = __m256i;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        _mm256_set1_ps(value)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        _mm256_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        _mm256_storeu_ps(to, value)
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }

    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn round(value: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value)
    }

    #[inline(always)]
    unsafe fn power_of_two(n: __m256) -> __m256 {
        let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast());
    }

    #[inline(always)]
    unsafe fn sum(value: __m256) -> f32 {
        let half = _mm_add_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let quarter = _mm_add_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_add_ss(quarter, _mm_movehdup_ps(quarter)))
    }

    #[inline(always)]
    unsafe fn least(value: __m256) -> f32 {
        let half = _mm_min_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let quarter = _mm_min_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_min_ss(quarter, _mm_movehdup_ps(quarter)))
    }

    #[inline(always)]
    unsafe fn greatest(value: __m256) -> f32 {
        let half = _mm_max_ps(_mm256_castps256_ps128(value), _mm256_extractf128_ps::<1>(value));
        let quarter = _mm_max_ps(half, _mm_movehl_ps(half, half));
        _mm_cvtss_f32(_mm_max_ss(quarter, _mm_movehdup_ps(quarter)))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m256 {
        let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
    }

    #[inline(always)]
    unsafe fn rounded_to_bf16(value: __m256) -> __m256 {
        let bits = _mm256_castps_si256(value);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
        _mm256_castsi256_ps(_mm256_and_si256(near, _mm256_set1_epi32(-65536)))
    }

    #[inline(always)]
    unsafe fn zero_i32() -> __m256i {
        _mm256_setzero_si256()
    }

    #[inline(always)]
    unsafe fn from_i32(value: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(value)
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, value: __m256) {
        let whole = _mm256_cvtps_epi32(value);
        let (low, high) = (_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
        let words = _mm_packs_epi32(low, high);
        _mm_storel_epi64(to.cast(), _mm_packus_epi16(words, words));
    }

    #[inline(always)]
    unsafe fn store_i16(to: *mut i16, value: __m256) {
        let whole = _mm256_cvtps_epi32(value);
        let (low, high) = (_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
        _mm_storeu_si128(to.cast(), _mm_packs_epi32(low, high));
    }
}

/// 32-bit floats.
pub(crate) type F32 = step::F32<Avx2>;

/// bfloat16 operands, widened to 32-bit floats.
pub(crate) type Bf16 = step::Bf16<Avx2>;

/// The same bits, of which the compiler knows nothing any more. No instruction.
#[inline]
#[target_feature(enable = "avx")]
pub(crate) unsafe fn opaque(mut value: __m256i) -> __m256i {
    asm!("/* {0} */", inout(ymm_reg) value, options(nomem, nostack, preserves_flags));
    value
}

/// 8-bit integers as pairs of 16-bit ones: exact, at twice the speed of 32-bit floats.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Avx2;
    type Input = i16;
    type A = __m256i;
    const K: usize = 2;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> __m256i {
        _mm256_cvtepi8_epi16(_mm_loadu_si128(from.cast()))
    }

    #[inline(always)]
    unsafe fn input(from: *const i16) -> __m256i {
        _mm256_set1_epi32(from.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: __m256i, input: __m256i, weights: __m256i) -> __m256i {
        // The sums of several steps would be added up in another order, in which they need more
        // registers than there are.
        opaque(_mm256_add_epi32(sum, _mm256_madd_epi16(input, weights)))
    }

    #[inline(always)]
    unsafe fn opaque(inputs: __m256i) -> __m256i {
        opaque(inputs)
    }

    #[inline(always)]
    unsafe fn store(to: *mut i16, value: __m256) {
        Avx2::store_i16(to, value)
    }
}
