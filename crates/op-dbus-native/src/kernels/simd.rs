//! What a kernel needs of a vector unit, in 32-bit floats; each instruction set implements it once.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "arithmetic on registers and pointers under one contract"
)]

/// Vectors of `LANES` 32-bit floats.
///
/// # Safety
/// All methods are inlined into a kernel that is compiled for the instruction set, and may only run
/// on a CPU that has it. Pointers must be valid for the stated number of elements; no alignment is
/// asked for.
pub(crate) trait Simd {
    /// One vector register.
    type F: Copy;
    /// 32-bit floats in it.
    const LANES: usize;

    /// The same value in each lane.
    unsafe fn splat(value: f32) -> Self::F;
    /// `LANES` values from `from`.
    unsafe fn load(from: *const f32) -> Self::F;
    /// `LANES` values to `to`.
    unsafe fn store(to: *mut f32, value: Self::F);
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once where the CPU can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller of two.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of two.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(value: Self::F) -> Self::F;
    /// `2^n` for integral `n` of -126 to 127.
    unsafe fn power_of_two(n: Self::F) -> Self::F;
    /// Sum of the lanes.
    unsafe fn sum(value: Self::F) -> f32;
    /// Smallest lane.
    unsafe fn least(value: Self::F) -> f32;
    /// Largest lane.
    unsafe fn greatest(value: Self::F) -> f32;
    /// `LANES` bfloat16 from `from`.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// `LANES` integers of 0 to 255 to `to`; the values are integral.
    unsafe fn store_u8(to: *mut u8, value: Self::F);
    /// `LANES` integers of -32768 to 32767 to `to`; the values are integral.
    unsafe fn store_i16(to: *mut i16, value: Self::F);
}

/// `e^x` with a relative error below 3e-7 for `x` of -87 to 88; below that, as for -87.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    let x = S::min(S::max(x, S::splat(-87.0)), S::splat(88.0));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, of which the first has few enough bits that n times it is exact.
    let r = S::fma(n, S::splat(-0.693_359_4), x);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.0 / 720.0);
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    S::mul(p, S::power_of_two(n))
}

/// `Φ(t) - 1/2 = t · P(2t²/reach² - 1)` for |t| ≤ `reach`; beyond, Φ is taken for 0 or 1. Fitted for
/// the least largest error of `t · Φ(t)`.
pub(crate) struct Gelu<const TERMS: usize> {
    reach: f32,
    /// Coefficients of P, the highest power first.
    terms: [f32; TERMS],
}

/// No farther than 1.5e-6 from `x · Φ(x)` in 32-bit floats.
pub(crate) const FINE: Gelu<13> = Gelu {
    reach: 5.0,
    terms: [
        4.929_697e-4,
        -1.514_154_1e-3,
        2.001_859_7e-3,
        -2.915_672_3e-3,
        6.165_431e-3,
        -1.097_323_3e-2,
        1.649_765_7e-2,
        -2.333_673e-2,
        3.142_623e-2,
        -4.043_295e-2,
        5.152_142e-2,
        -7.029_665e-2,
        0.141_363_78,
    ],
};

/// No farther than 2e-4 from `x · Φ(x)`: a fifth of a bfloat16's last place at the function's
/// least value, -0.17. P(1) is such that the two halves meet Φ at the reach.
pub(crate) const COARSE: Gelu<7> = Gelu {
    reach: 4.0,
    terms: [
        5.921_359e-3,
        -1.653_450_5e-2,
        2.414_789_6e-2,
        -3.547_607_7e-2,
        5.539_511_5e-2,
        -8.442_455e-2,
        0.175_970_77,
    ],
};

/// `x · Φ(x)`, Φ being the normal distribution's integral: GELU by the error function.
#[inline(always)]
pub(crate) unsafe fn gelu<S: Simd, const TERMS: usize>(x: S::F, by: &Gelu<TERMS>) -> S::F {
    let t = S::min(S::max(x, S::splat(-by.reach)), S::splat(by.reach));
    let scaled = S::mul(t, S::splat(2.0 / (by.reach * by.reach)));
    let u = S::fma(t, scaled, S::splat(-1.0));
    let mut p = S::splat(by.terms[0]);
    for &coefficient in &by.terms[1..] {
        p = S::fma(p, u, S::splat(coefficient));
    }
    S::mul(x, S::fma(t, p, S::splat(0.5)))
}

/// GELU by its approximation with tanh: `x / (1 + e^(-2y))`, `y = √(2/π) (x + 0.044715 x³)`.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Simd>(x: S::F) -> S::F {
    const TWICE_ROOT: f32 = -1.595_769;
    let square = S::mul(x, x);
    let inner = S::fma(S::mul(square, x), S::splat(0.044_715), x);
    let power = exp::<S>(S::mul(inner, S::splat(TWICE_ROOT)));
    S::div(x, S::add(power, S::splat(1.0)))
}

/// Runs the body with the offset of each vector in so many values. A closure would not do: it is
/// compiled for the plain CPU, and every instruction in it becomes a call.
macro_rules! each {
    ($simd:ty, $at:ident in $length:expr, $body:block) => {{
        let length: usize = $length;
        let mut $at = 0;
        while $at < length {
            $body
            $at += <$simd as $crate::kernels::simd::Simd>::LANES;
        }
    }};
}
pub(crate) use each;
