//! One step of a product: what an instruction set does with the next few inputs of a row and the
//! weights that belong to them. A tile is many steps over a block of sums in registers.

use super::simd::Simd;

/// Steps whose sums are 32-bit floats.
///
/// # Safety
/// As [`Simd`]: only on a CPU of the instruction set; pointers valid for what is read or written.
pub(crate) trait FloatStep {
    /// The vectors that the sums are held in.
    type S: Simd;
    /// Element of the left operand, as it lies in memory.
    type Input: Copy;
    /// Element of the packed weights.
    type Weight: Copy;
    /// `K` inputs of one row, in each lane.
    type A: Copy;
    /// Inputs that one step takes. The weights of one step lie as `[column][K]`.
    const K: usize;

    /// Weights of `LANES` columns for one step.
    unsafe fn weights(from: *const Self::Weight) -> Self::A;
    /// `K` inputs of one row, for all lanes.
    unsafe fn input(from: *const Self::Input) -> Self::A;
    /// `sum + input · weights`, in each lane over its `K` pairs.
    unsafe fn multiply_add(
        sum: <Self::S as Simd>::F,
        input: Self::A,
        weights: Self::A,
    ) -> <Self::S as Simd>::F;
    /// Writes `LANES` values as inputs of a later product.
    unsafe fn store(to: *mut Self::Input, value: <Self::S as Simd>::F);
    /// Writes the weights of `LANES` columns for one step: `first` for the first input of the step,
    /// `second` for the second, where there is one.
    unsafe fn pack(
        to: *mut Self::Weight,
        first: <Self::S as Simd>::F,
        second: <Self::S as Simd>::F,
    );
}

/// Steps whose sums are 32-bit integers, made floats once per block of inputs.
///
/// # Safety
/// As [`FloatStep`].
pub(crate) trait IntStep {
    /// The vectors that the scaled sums are held in.
    type S: Simd;
    /// Element of the left operand as it lies in memory: integers of 0 to 255.
    type Input: Copy;
    /// `LANES` sums.
    type Acc: Copy;
    /// `K` inputs of one row, in each lane.
    type A: Copy;
    /// Inputs that one step takes. The weights of one step lie as `[column][K]`.
    const K: usize;

    /// Sums of nothing.
    unsafe fn zero() -> Self::Acc;
    /// Weights of `LANES` columns for one step, -127 to 127.
    unsafe fn weights(from: *const i8) -> Self::A;
    /// `K` inputs of one row, for all lanes.
    unsafe fn input(from: *const Self::Input) -> Self::A;
    /// `sum + input · weights`, exactly.
    unsafe fn multiply_add(sum: Self::Acc, input: Self::A, weights: Self::A) -> Self::Acc;
    /// The sums as floats.
    unsafe fn to_float(sum: Self::Acc) -> <Self::S as Simd>::F;
    /// Writes `LANES` integral values of 0 to 255 as inputs of a later product.
    unsafe fn store(to: *mut Self::Input, value: <Self::S as Simd>::F);
}
