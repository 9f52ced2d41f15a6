//! Activations, vector by vector: what lies between the products of a feed-forward network.

use super::simd::{Simd, exp};

/// A function of one number.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait Activate {
    /// Whether it leaves everything as it is.
    const IDENTITY: bool = false;

    /// The function of each lane.
    unsafe fn activate<S: Simd>(x: S::F) -> S::F;
}

/// `x` itself.
pub(crate) struct Identity;

impl Activate for Identity {
    const IDENTITY: bool = true;

    #[inline(always)]
    unsafe fn activate<S: Simd>(x: S::F) -> S::F {
        x
    }
}

/// The larger of 0 and `x`.
pub(crate) struct Relu;

impl Activate for Relu {
    #[inline(always)]
    unsafe fn activate<S: Simd>(x: S::F) -> S::F {
        S::max(S::splat(0.0), x)
    }
}

/// `Φ(t) - 1/2 = t · P(2t²/reach² - 1)` for |t| ≤ `reach`; beyond, Φ is taken for what it is at the reach, which is 0
/// or 1 but for 2e-7. Fitted for the least largest error of `t · Φ(t)`.
struct Gelu<const TERMS: usize> {
    reach: f32,
    /// Coefficients of P, the highest power first.
    terms: [f32; TERMS],
}

/// No farther than 1.5e-6 from `x · Φ(x)` in 32-bit floats for |x| ≤ 5, and than 2e-7 · |x| beyond.
const FINE: Gelu<13> = Gelu {
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
const COARSE: Gelu<7> = Gelu {
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

/// [`FINE`], as an activation.
pub(crate) struct FineGelu;

impl Activate for FineGelu {
    #[inline(always)]
    unsafe fn activate<S: Simd>(x: S::F) -> S::F {
        gelu::<S, _>(x, &FINE)
    }
}

/// [`COARSE`], as an activation.
pub(crate) struct CoarseGelu;

impl Activate for CoarseGelu {
    #[inline(always)]
    unsafe fn activate<S: Simd>(x: S::F) -> S::F {
        gelu::<S, _>(x, &COARSE)
    }
}

/// `x · Φ(x)`, Φ being the normal distribution's integral: GELU by the error function.
#[inline(always)]
unsafe fn gelu<S: Simd, const TERMS: usize>(x: S::F, by: &Gelu<TERMS>) -> S::F {
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
pub(crate) struct GeluTanh;

impl Activate for GeluTanh {
    #[inline(always)]
    unsafe fn activate<S: Simd>(x: S::F) -> S::F {
        const TWICE_ROOT: f32 = -1.595_769;
        let square = S::mul(x, x);
        let inner = S::fma(S::mul(square, x), S::splat(0.044_715), x);
        let power = exp::<S>(S::mul(inner, S::splat(TWICE_ROOT)));
        S::div(x, S::add(power, S::splat(1.0)))
    }
}
