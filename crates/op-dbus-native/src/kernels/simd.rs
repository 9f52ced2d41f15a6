//! What a kernel needs of a vector unit, in 32-bit floats; each instruction set implements it once.

/// Vectors of `LANES` 32-bit floats.
///
/// # Safety
/// All methods are inlined into a kernel that is compiled for the instruction set, and may only run
/// on a CPU that has it. Pointers must be valid for the stated number of elements; no alignment is
/// asked for.
pub(crate) trait Simd {
    /// One vector register.
    type F: Copy;
    /// As many 32-bit integers.
    type I: Copy;
    /// 32-bit floats in a register.
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
    /// The value at `from`, as [`add_product`](Self::add_product) takes it.
    #[inline(always)]
    unsafe fn operand(from: *const f32) -> Self::F {
        Self::splat(from.read_unaligned())
    }
    /// `sum + input · weights`, as [`fma`](Self::fma), with an `input` of [`operand`](Self::operand).
    #[inline(always)]
    unsafe fn add_product(sum: Self::F, input: Self::F, weights: Self::F) -> Self::F {
        Self::fma(input, weights, sum)
    }
    /// The smaller of two; the second, or neither number, where one is none.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger of two; the second, or neither number, where one is none.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    unsafe fn round(value: Self::F) -> Self::F;
    /// `2^n` for integral `n` of -126 to 127.
    unsafe fn power_of_two(n: Self::F) -> Self::F;
    /// `value · 2^n`, as [`power_of_two`](Self::power_of_two).
    #[inline(always)]
    unsafe fn times_power_of_two(value: Self::F, n: Self::F) -> Self::F {
        Self::mul(value, Self::power_of_two(n))
    }
    /// A fraction of 0 to 1, and what [`times_power_of_two`](Self::times_power_of_two) takes for the
    /// rest of `x`. What is beyond the powers of two there are may become the last of them.
    #[inline(always)]
    unsafe fn fraction(x: Self::F) -> (Self::F, Self::F) {
        let x = Self::min(Self::splat(127.0), Self::max(Self::splat(-126.0), x));
        let n = Self::round(Self::sub(x, Self::splat(0.5)));
        (Self::sub(x, n), n)
    }
    /// Transposes `LANES` rows of as many 4-byte elements, `stride` elements apart.
    #[inline(always)]
    unsafe fn transpose(from: *const u32, stride: usize, to: *mut u32, to_stride: usize) {
        for row in 0..Self::LANES {
            for column in 0..Self::LANES {
                to.add(column * to_stride + row).write(from.add(row * stride + column).read());
            }
        }
    }
    /// Has the cache line of an address fetched, or does nothing. Any address will do.
    #[inline(always)]
    unsafe fn prefetch(_from: *const u8) {}
    /// Sum of the lanes.
    unsafe fn sum(value: Self::F) -> f32;
    /// Smallest lane.
    unsafe fn least(value: Self::F) -> f32;
    /// Largest lane.
    unsafe fn greatest(value: Self::F) -> f32;
    /// `LANES` bfloat16 from `from`.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// The nearest bfloat16 of each lane, ties to even; the values are finite.
    unsafe fn rounded_to_bf16(value: Self::F) -> Self::F;
    /// Integers of 0.
    unsafe fn zero_i32() -> Self::I;
    /// The nearest 32-bit floats of integers.
    unsafe fn from_i32(value: Self::I) -> Self::F;
    /// `LANES` integers of 0 to 255 to `to`; the values are integral.
    unsafe fn store_u8(to: *mut u8, value: Self::F);
    /// `LANES` integers of -32768 to 32767 to `to`; the values are integral.
    unsafe fn store_i16(to: *mut i16, value: Self::F);
}

/// `e^x` with a relative error below 3e-7 for `x` of -87 to 88; beyond, as for those. Of what is no number none, as with
/// the others here.
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    let x = S::min(S::splat(88.0), S::max(S::splat(-87.0), x));
    let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, of which the first has few enough bits that n times it is exact.
    let r = S::fma(n, S::splat(-0.693_359_4), x);
    powers::<S>(S::fma(n, S::splat(2.121_944_4e-4), r), n)
}

/// `e^r · 2^n` for `r` of ±ln 2 / 2.
#[inline(always)]
unsafe fn powers<S: Simd>(r: S::F, n: S::F) -> S::F {
    let mut p = S::splat(1.0 / 720.0);
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    S::times_power_of_two(p, n)
}

/// `2^x` with a relative error below 3e-7 for `x` of -126 to 126; beyond, as for those.
#[inline(always)]
pub(crate) unsafe fn exp2<S: Simd>(x: S::F) -> S::F {
    let x = S::min(S::splat(126.0), S::max(S::splat(-126.0), x));
    let n = S::round(x);
    powers::<S>(S::mul(S::sub(x, n), S::splat(std::f32::consts::LN_2)), n)
}

/// `2^x` with a relative error below 8e-5, a fiftieth of a bfloat16's last place, for `x` of -126 to
/// 127; beyond, as for those, or 0 and infinity. The terms are those of the least largest relative error.
#[inline(always)]
pub(crate) unsafe fn coarse_exp2<S: Simd>(x: S::F) -> S::F {
    let (r, n) = S::fraction(x);
    let mut p = S::splat(7.802_452e-2);
    for coefficient in [0.226_067_16, 0.695_833_54, 0.999_925_2] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    S::times_power_of_two(p, n)
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
