//! One step of a product: what an instruction set does with the next few inputs of a row and the
//! weights that belong to them. A tile is many steps over a block of sums in registers.

use std::marker::PhantomData;

use super::simd::Simd;

/// Bytes that a cache fetches at once.
const LINE: usize = 64;

/// Runs the body for each step, four at a time: the addresses of a step's inputs, one for each row,
/// are then worked out once for four steps. Without that a CPU whose other thread is busy has not
/// the width to keep its multipliers fed.
macro_rules! unrolled {
    ($steps:expr, $step:ident => $body:block) => {{
        let (steps, mut first) = ($steps, 0);
        while first + 4 <= steps {
            for next in 0..4 {
                let $step = first + next;
                $body
            }
            first += 4;
        }
        while first < steps {
            let $step = first;
            $body
            first += 1;
        }
    }};
}

/// Bytes from the weights of a step to those that are asked for with it, where they come from far away: by
/// then they are there. A CPU's own prefetching ends with each page.
const AHEAD: usize = 3 << 10;

/// Asks for what lies [`AHEAD`] of so many weights; behind the last that may be anything.
#[inline(always)]
unsafe fn ahead<S: Simd, W>(weights: *const W, count: usize) {
    let first = weights.cast::<u8>().wrapping_add(AHEAD);
    let mut line = 0;
    while line < count * size_of::<W>() {
        S::prefetch(first.wrapping_add(line));
        line += LINE;
    }
}

/// Adds to `$sums` over all steps, of either kind: the weights are loaded once for the inputs of all rows.
macro_rules! add_steps {
    ($sums:ident, $input:ident, $stride:ident, $panel:ident, $steps:ident) => {
        let half = Self::S::LANES * Self::K;
        unrolled!($steps, step => {
            let panel = $panel.add(step * 2 * half);
            if FAR {
                ahead::<Self::S, _>(panel, 2 * half);
            }
            let weights = [Self::weights(panel), Self::weights(panel.add(half))];
            let input = $input.add(step * Self::K);
            for (row, sums) in $sums.iter_mut().enumerate() {
                let value = Self::input(input.add(row * $stride));
                sums[0] = Self::multiply_add(sums[0], value, weights[0]);
                sums[1] = Self::multiply_add(sums[1], value, weights[1]);
            }
        });
    };
}

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
    /// Adds to `sums` the products of `M` rows with two vectors of columns, over `steps` steps. Row
    /// `r` of the input begins at `input + r * stride`. `FAR` says that the weights come from far away.
    #[inline(always)]
    unsafe fn sums<const M: usize, const FAR: bool>(
        input: *const Self::Input,
        stride: usize,
        panel: *const Self::Weight,
        steps: usize,
        mut sums: [[<Self::S as Simd>::F; 2]; M],
    ) -> [[<Self::S as Simd>::F; 2]; M] {
        add_steps!(sums, input, stride, panel, steps);
        sums
    }
}

/// Float steps that weights can be packed for on the way: one input and one step of a column's
/// weights are both 4 bytes, a 32-bit float or two bfloat16.
///
/// # Safety
/// As [`FloatStep`].
pub(crate) trait PairStep: FloatStep {
    /// Writes the weights of `LANES` columns for one step: `first` for the first input of the step,
    /// `second` for the second, where there is one.
    unsafe fn pack(
        to: *mut Self::Weight,
        first: <Self::S as Simd>::F,
        second: <Self::S as Simd>::F,
    );
}

/// 32-bit floats: one multiply-add per step.
pub(crate) struct F32<S>(PhantomData<S>);

impl<S: Simd> FloatStep for F32<S> {
    type S = S;
    type Input = f32;
    type Weight = f32;
    type A = S::F;
    const K: usize = 1;

    #[inline(always)]
    unsafe fn weights(from: *const f32) -> S::F {
        S::load(from)
    }

    #[inline(always)]
    unsafe fn input(from: *const f32) -> S::F {
        S::operand(from)
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: S::F, input: S::F, weights: S::F) -> S::F {
        S::add_product(sum, input, weights)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: S::F) {
        S::store(to, value);
    }
}

impl<S: Simd> PairStep for F32<S> {
    #[inline(always)]
    unsafe fn pack(to: *mut f32, first: S::F, _: S::F) {
        S::store(to, first);
    }
}

/// bfloat16 operands, widened to 32-bit floats: half the memory of 32-bit floats at their speed.
pub(crate) struct Bf16<S>(PhantomData<S>);

impl<S: Simd> FloatStep for Bf16<S> {
    type S = S;
    /// Rounded to bfloat16, but stored as 32-bit floats, so that nothing is widened row by row.
    type Input = f32;
    type Weight = u16;
    type A = S::F;
    const K: usize = 1;

    #[inline(always)]
    unsafe fn weights(from: *const u16) -> S::F {
        S::load_bf16(from)
    }

    #[inline(always)]
    unsafe fn input(from: *const f32) -> S::F {
        S::operand(from)
    }

    #[inline(always)]
    unsafe fn multiply_add(sum: S::F, input: S::F, weights: S::F) -> S::F {
        S::add_product(sum, input, weights)
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: S::F) {
        S::store(to, S::rounded_to_bf16(value));
    }
}

/// Steps whose sums are 32-bit integers, made floats once per block of inputs.
///
/// # Safety
/// As [`FloatStep`].
pub(crate) trait IntStep {
    /// The vectors that the scaled sums are held in.
    type S: Simd;
    /// Element of the left operand as it lies in memory: integers of 0 to 255, less the shift.
    type Input: Copy;
    /// `K` inputs of one row, in each lane.
    type A: Copy;
    /// Inputs that one step takes. The weights of one step lie as `[column][K]`.
    const K: usize;
    /// What is subtracted from each input on its way to memory, where the CPU wants signed ones.
    const SHIFT: f32 = 0.0;
    /// Whether [`store`](Self::store) rounds to the nearest, ties to even, and takes a little more than 255
    /// for 255.
    const ROUNDS: bool = false;

    /// Weights of `LANES` columns for one step, -127 to 127.
    unsafe fn weights(from: *const i8) -> Self::A;
    /// `K` inputs of one row, for all lanes.
    unsafe fn input(from: *const Self::Input) -> Self::A;
    /// `sum + input · weights`, exactly.
    unsafe fn multiply_add(
        sum: <Self::S as Simd>::I,
        input: Self::A,
        weights: Self::A,
    ) -> <Self::S as Simd>::I;
    /// The same inputs, but the compiler can't tell: it may not reuse products with them. Only where it could, as
    /// it multiplies by itself and not within an instruction that adds as well.
    #[inline(always)]
    unsafe fn opaque(inputs: Self::A) -> Self::A {
        inputs
    }
    /// Writes `LANES` integral values of 0 to 255, less the shift, as inputs of a later product.
    unsafe fn store(to: *mut Self::Input, value: <Self::S as Simd>::F);

    /// As [`FloatStep::sums`], but from zero.
    #[inline(always)]
    unsafe fn sums<const M: usize, const FAR: bool>(
        input: *const Self::Input,
        stride: usize,
        panel: *const i8,
        steps: usize,
    ) -> [[<Self::S as Simd>::I; 2]; M] {
        let mut sums = [[Self::S::zero_i32(); 2]; M];
        add_steps!(sums, input, stride, panel, steps);
        sums
    }
}
