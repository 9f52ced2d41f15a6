//! Plain Rust, for any CPU: the reference that every other instruction set is tested against.

use super::simd::Simd;
use super::step::{self, IntStep};

/// Vectors that are arrays; the compiler makes of them what the target has.
pub(crate) struct Portable;

const LANES: usize = 8;
type F = [f32; LANES];

#[inline(always)]
fn map(a: F, f: impl Fn(f32) -> f32) -> F {
    a.map(f)
}

#[inline(always)]
fn zip(a: F, b: F, f: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

/// The nearest bfloat16 of a finite value, ties to even.
#[inline(always)]
pub(crate) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) as u16
}

/// The value of a bfloat16.
#[inline(always)]
pub(crate) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl Simd for Portable {
    type F = F;
    type I = [i32; LANES];
    const LANES: usize = LANES;

    #[inline(always)]
    unsafe fn splat(value: f32) -> F {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> F {
        from.cast::<F>().read_unaligned()
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: F) {
        to.cast::<F>().write_unaligned(value);
    }

    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }

    /// Rounded twice: a fused one would be a call of the C library wherever the target lacks it.
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|lane| a[lane] * b[lane] + c[lane])
    }

    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn round(value: F) -> F {
        map(value, f32::round_ties_even)
    }

    #[inline(always)]
    unsafe fn power_of_two(n: F) -> F {
        map(n, |n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn sum(value: F) -> f32 {
        value.iter().sum()
    }

    #[inline(always)]
    unsafe fn least(value: F) -> f32 {
        value.into_iter().fold(f32::MAX, f32::min)
    }

    #[inline(always)]
    unsafe fn greatest(value: F) -> f32 {
        value.into_iter().fold(f32::MIN, f32::max)
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> F {
        from.cast::<[u16; LANES]>().read_unaligned().map(from_bf16)
    }

    #[inline(always)]
    unsafe fn rounded_to_bf16(value: F) -> F {
        map(value, |value| from_bf16(to_bf16(value)))
    }

    #[inline(always)]
    unsafe fn zero_i32() -> [i32; LANES] {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn from_i32(value: [i32; LANES]) -> F {
        value.map(|value| value as f32)
    }

    #[inline(always)]
    unsafe fn store_u8(to: *mut u8, value: F) {
        to.cast::<[u8; LANES]>().write_unaligned(value.map(|value| value as u8));
    }

    #[inline(always)]
    unsafe fn store_i16(to: *mut i16, value: F) {
        to.cast::<[i16; LANES]>().write_unaligned(value.map(|value| value as i16));
    }
}

/// 32-bit floats.
pub(crate) type F32 = step::F32<Portable>;

/// bfloat16 operands, widened to 32-bit floats.
pub(crate) type Bf16 = step::Bf16<Portable>;

/// 8-bit integers, widened to 32 bits.
pub(crate) struct Int8;

impl IntStep for Int8 {
    type S = Portable;
    type Input = u8;
    type A = [i32; LANES];
    const K: usize = 1;

    #[inline(always)]
    unsafe fn weights(from: *const i8) -> [i32; LANES] {
        from.cast::<[i8; LANES]>().read_unaligned().map(i32::from)
    }

    #[inline(always)]
    unsafe fn input(from: *const u8) -> [i32; LANES] {
        [i32::from(*from); LANES]
    }

    #[inline(always)]
    unsafe fn multiply_add(
        sum: [i32; LANES],
        input: [i32; LANES],
        weights: [i32; LANES],
    ) -> [i32; LANES] {
        std::array::from_fn(|lane| sum[lane] + input[lane] * weights[lane])
    }

    #[inline(always)]
    unsafe fn opaque(inputs: [i32; LANES]) -> [i32; LANES] {
        std::hint::black_box(inputs)
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, value: F) {
        Portable::store_u8(to, value);
    }
}
