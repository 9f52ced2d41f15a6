//! AVX-512 F, BW, DQ and VL, which include AVX2 and FMA: 16 lanes, 32 registers.
//!
//! Every function is inlined into a kernel that is compiled for these features and runs only where
//! the CPU has them; that, and pointers that are valid for a vector's elements, is what each asks.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::simd::Simd;
use super::step::{self, IntStep};

/// 512-bit vectors.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        _mm512_set1_ps(value)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        _mm512_storeu_ps(to, value)
    }

    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(from.cast())
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }

    #[inline(always)]
    unsafe fn round(value: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(value)
    }

    #[inline(always)]
    unsafe fn power_of_two(n: __m512) -> __m512 {
        let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
        _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
    }

    #[inline(always)]
    unsafe fn times_power_of_two(value: __m512, n: __m512) -> __m512 {
        _mm512_scalef_ps(value, n)
    }

    #[inline(always)]
    unsafe fn fraction(x: __m512) -> (__m512, __m512) {
        // `scalef` takes the power's next lower integer, whatever it is.
        (_mm512_reduce_ps::<{ _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC }>(x), x)
    }

    #[inline(always)]
    unsafe fn transpose(from: *const u32, stride: usize, to: *mut u32, to_stride: usize) {
        let mut rows = [_mm512_setzero_si512(); 16];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = _mm512_loadu_si512(from.add(index * stride).cast());
        }
        // Pairs, then fours within the lanes of 128 bits; then those lanes.
        let mut pairs = rows;
        for four in 0..4 {
            let [a, b, c, d] = std::array::from_fn(|n| rows[4 * four + n]);
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low_2, high_2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            pairs[4 * four] = _mm512_unpacklo_epi64(low, low_2);
            pairs[4 * four + 1] = _mm512_unpackhi_epi64(low, low_2);
            pairs[4 * four + 2] = _mm512_unpacklo_epi64(high, high_2);
            pairs[4 * four + 3] = _mm512_unpackhi_epi64(high, high_2);
        }
        for column in 0..4 {
            let [a, b, c, d] = std::array::from_fn(|four| pairs[4 * four + column]);
            let (even, odd) =
                (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xDD>(a, b));
            let (even_2, odd_2) =
                (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xDD>(c, d));
            let columns = [
                _mm512_shuffle_i32x4::<0x88>(even, even_2),
                _mm512_shuffle_i32x4::<0x88>(odd, odd_2),
                _mm512_shuffle_i32x4::<0xDD>(even, even_2),
                _mm512_shuffle_i32x4::<0xDD>(odd, odd_2),
            ];
            for (lane, values) in columns.into_iter().enumerate() {
                _mm512_storeu_si512(to.add((4 * lane + column) * to_stride).cast(), values);
            }
        }
    }

    #[inline(always)]
    unsafe fn sum(value: __m512) -> f32 {
        let low = _mm512_castps512_ps256(value);
        Avx2::sum(_mm256_add_ps(low, _mm512_extractf32x8_ps::<1>(value)))
    }

    #[inline(always)]
    unsafe fn least(value: __m512) -> f32 {
        let low = _mm512_castps512_ps256(value);
        Avx2::least(_mm256_min_ps(low, _mm512_extractf32x8_ps::<1>(value)))
    }

    #[inline(always)]
    unsafe fn greatest(value: __m512) -> f32 {
        let low = _mm512_castps512_ps256(value);
        Avx2::greatest(_mm256_max_ps(low, _mm512_extractf32x8_ps::<1>(value)))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
    }

    #[inline(always)]
    unsafe fn rounded_to_bf16(value: __m512) -> __m512 {
        let bits = _mm512_castps_si512(value);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
        _mm512_castsi512_ps(_mm512_and_si512(near, _mm512_set1_epi32(-65536)))
    }

    #[inline(always)]
    unsafe fn zero_i32() -> __m512i {
        _mm512_setzero_si512()
    }

    #[inline(always)]
    unsafe fn from_i32(value: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(value)
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, value: __m512) {
        let whole = _mm512_cvtps_epi32(value);
        _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(whole));
    }

    #[inline(always)]
    unsafe fn store_i16(to: *mut i16, value: __m512) {
        let whole = _mm512_cvtps_epi32(value);
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(whole));
    }
}

/// 32-bit floats.
pub(crate) type F32 = step::F32<Avx512>;

/// bfloat16 operands, widened to 32-bit floats.
pub(crate) type Bf16 = step::Bf16<Avx512>;

/// The same bits, of which the compiler knows nothing any more. No instruction.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) unsafe fn opaque(mut value: __m512i) -> __m512i {
    asm!("/* {0} */", inout(zmm_reg) value, options(nomem, nostack, preserves_flags));
    value
}

/// 8-bit integers as pairs of 16-bit ones: exact, at twice the speed of 32-bit floats.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Avx512;
    type Input = i16;
    type A = __m512i;
    const K: usize = 2;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> __m512i {
        _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast()))
    }

    #[inline(always)]
    unsafe fn input(from: *const i16) -> __m512i {
        _mm512_set1_epi32(from.cast::<i32>().read_unaligned())
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: __m512i, input: __m512i, weights: __m512i) -> __m512i {
        // The sums of several steps would be added up in another order, in which they need more
        // registers than there are.
        opaque(_mm512_add_epi32(sum, _mm512_madd_epi16(input, weights)))
    }

    #[inline(always)]
    unsafe fn opaque(inputs: __m512i) -> __m512i {
        opaque(inputs)
    }

    #[inline(always)]
    unsafe fn store(to: *mut i16, value: __m512) {
        Avx512::store_i16(to, value)
    }
}
