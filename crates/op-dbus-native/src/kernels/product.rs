//! The product of rows with packed weights, and what is done to it while it is hot.
//!
//! Weights lie in panels of `PANEL` columns (two vectors), the inputs of one step side by side, so
//! that a panel is read from front to back. A tile is a few rows of the left operand against one
//! panel, its sums in registers. Tiles of up to [`GROUP`] columns go to a scratch block in the first
//! level cache, and from there, finished, to their destination.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "arithmetic on registers and pointers under one contract"
)]

use super::simd::{Simd, each, gelu, gelu_tanh};
use super::step::{FloatStep, IntStep};

/// Columns that are finished together. Also the inputs that share a scale where they are 8-bit
/// integers: a group of outputs is one block of inputs of the product after it.
pub(crate) const GROUP: usize = 128;

/// Most rows that a tile of any instruction set has.
pub(crate) const ROWS_MAX: usize = 16;

/// Rows of a left operand as one precision wants them.
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    /// First element of row 0, of the precision's input type.
    pub values: *mut u8,
    /// Elements from one row to the next.
    pub stride: usize,
    /// Scale and least value of each block of [`GROUP`] inputs, `[row][blocks][2]`; unused where
    /// inputs are floats.
    pub scales: *mut f32,
    /// Blocks per row.
    pub blocks: usize,
}

/// The packed weights of one linear layer. Everything is padded with zeros to whole panels and
/// steps.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    /// `[panels][steps][PANEL][K]`, of the precision's weight type.
    pub panels: *const u8,
    /// Steps per panel.
    pub steps: usize,
    /// `[columns]`.
    pub bias: *const f32,
    /// Integers only: `[panels][blocks][2][PANEL]`: the scale of a column's block of weights, and
    /// that scale times the block's sum.
    pub scales: *const f32,
}

/// What lies between the products of a feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activation {
    /// GELU by the error function.
    Gelu,
    /// GELU by its approximation with tanh.
    GeluTanh,
    /// The larger of 0 and x.
    Relu,
}

/// What becomes of the sums once the bias is on them.
#[derive(Clone, Copy)]
pub(crate) enum Finish {
    /// They are stored, `stride` floats from row to row.
    Store { to: *mut f32, stride: usize },
    /// They are stored on top of what is in `residual`, which has the same stride.
    Add { to: *mut f32, residual: *const f32, stride: usize },
    /// They are activated and become the left operand of the next product, each column multiplied
    /// by its factor in `smooth` unless that is null.
    Activate { activation: Activation, to: Operand, smooth: *const f32 },
}

/// Rows times weights, for a range of columns.
#[derive(Clone, Copy)]
pub(crate) struct Product {
    /// The left operand.
    pub input: Operand,
    /// Its rows.
    pub rows: usize,
    /// The right operand.
    pub weights: Weights,
    /// First column, a multiple of [`GROUP`].
    pub first: usize,
    /// One behind the last column: a multiple of [`GROUP`], or all columns.
    pub end: usize,
    /// What becomes of the sums.
    pub finish: Finish,
}

/// A block of sums on its way to its destination.
#[repr(C, align(64))]
pub(crate) struct Scratch([[f32; GROUP]; ROWS_MAX]);

impl Scratch {
    #[inline(always)]
    fn new() -> Self {
        Self([[0.0; GROUP]; ROWS_MAX])
    }

    #[inline(always)]
    fn at(&mut self, row: usize, column: usize) -> *mut f32 {
        &raw mut self.0[row][column]
    }
}

/// What the driver below needs of a precision on an instruction set.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait Tiles {
    type S: Simd;
    /// Rows of a full tile; at most [`ROWS_MAX`].
    const ROWS: usize;
    /// Columns of a panel: two vectors.
    const PANEL: usize = 2 * Self::S::LANES;

    /// Computes `M` rows from `row` on against the panel that begins at `column`, into `scratch`.
    unsafe fn tile<const M: usize>(product: &Product, row: usize, column: usize, to: *mut f32);
    /// Does nothing but the arithmetic of `repeats` steps of a tile, all in registers; returns
    /// something that depends on all of it.
    unsafe fn spin(repeats: usize) -> f32;
    /// Writes `length` finished values of one row, a multiple of a vector and at most [`GROUP`],
    /// beginning at `column`, as a left operand.
    unsafe fn store(to: &Operand, row: usize, column: usize, values: *const f32, length: usize);
}

/// Multiplies, finishes and stores.
///
/// # Safety
/// The CPU has the instruction set; all pointers of `product` are valid for what its sizes say; no
/// other thread writes what this reads, or touches what this writes.
#[inline(always)]
pub(crate) unsafe fn multiply<T: Tiles>(product: &Product) {
    let mut scratch = Scratch::new();
    let mut column = product.first;
    while column < product.end {
        let columns = GROUP.min(product.end - column);
        let mut row = 0;
        while row < product.rows {
            let rows = T::ROWS.min(product.rows - row);
            let mut offset = 0;
            while offset < columns {
                tile::<T>(product, row, rows, column + offset, scratch.at(0, offset));
                offset += T::PANEL;
            }
            finish::<T>(product, &mut scratch, row, rows, column, columns);
            row += rows;
        }
        column += columns;
    }
}

/// A tile of as many rows as are left.
#[inline(always)]
unsafe fn tile<T: Tiles>(product: &Product, row: usize, rows: usize, column: usize, to: *mut f32) {
    match rows {
        1 => T::tile::<1>(product, row, column, to),
        2 => T::tile::<2>(product, row, column, to),
        3 => T::tile::<3>(product, row, column, to),
        4 => T::tile::<4>(product, row, column, to),
        5 => T::tile::<5>(product, row, column, to),
        6 => T::tile::<6>(product, row, column, to),
        7 if T::ROWS > 6 => T::tile::<7>(product, row, column, to),
        8 if T::ROWS > 6 => T::tile::<8>(product, row, column, to),
        9 if T::ROWS > 6 => T::tile::<9>(product, row, column, to),
        10 if T::ROWS > 6 => T::tile::<10>(product, row, column, to),
        11 if T::ROWS > 6 => T::tile::<11>(product, row, column, to),
        12 if T::ROWS > 6 => T::tile::<12>(product, row, column, to),
        _ => unreachable!("no tile has so many rows"),
    }
}

#[inline(always)]
unsafe fn finish<T: Tiles>(
    product: &Product,
    scratch: &mut Scratch,
    first: usize,
    rows: usize,
    column: usize,
    columns: usize,
) {
    let bias = product.weights.bias.add(column);
    for row in 0..rows {
        let values = scratch.at(row, 0);
        match product.finish {
            Finish::Store { to, stride } => {
                let to = to.add((first + row) * stride + column);
                each!(T::S, at in columns, {
                    let sum = T::S::add(T::S::load(values.add(at)), T::S::load(bias.add(at)));
                    T::S::store(to.add(at), sum);
                });
            }
            Finish::Add { to, residual, stride } => {
                let offset = (first + row) * stride + column;
                each!(T::S, at in columns, {
                    let sum = T::S::add(T::S::load(values.add(at)), T::S::load(bias.add(at)));
                    let sum = T::S::add(sum, T::S::load(residual.add(offset + at)));
                    T::S::store(to.add(offset + at), sum);
                });
            }
            Finish::Activate { activation, to, smooth } => {
                activate::<T::S>(activation, values, bias, columns);
                if !smooth.is_null() {
                    scale::<T::S>(values, smooth.add(column), columns, values);
                }
                T::store(&to, first + row, column, values, columns);
            }
        }
    }
}

#[inline(always)]
unsafe fn activate<S: Simd>(
    activation: Activation,
    values: *mut f32,
    bias: *const f32,
    columns: usize,
) {
    macro_rules! all {
        ($x:ident => $activated:expr) => {
            each!(S, at in columns, {
                let $x = S::add(S::load(values.add(at)), S::load(bias.add(at)));
                S::store(values.add(at), $activated);
            })
        };
    }
    match activation {
        Activation::Gelu => all!(x => gelu::<S>(x)),
        Activation::GeluTanh => all!(x => gelu_tanh::<S>(x)),
        Activation::Relu => all!(x => S::max(x, S::splat(0.0))),
    }
}

/// Rows of floats that become a left operand.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    /// The first row.
    pub from: *const f32,
    /// Floats from one row to the next.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Values in a row, a multiple of every vector.
    pub columns: usize,
    /// Null, or a factor for each column.
    pub smooth: *const f32,
    /// Where they go.
    pub to: Operand,
}

/// Makes a left operand.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
pub(crate) unsafe fn prepare<T: Tiles>(job: &Rows) {
    let mut scratch = Scratch::new();
    for row in 0..job.rows {
        let mut column = 0;
        while column < job.columns {
            let length = GROUP.min(job.columns - column);
            let from = job.from.add(row * job.stride + column);
            if job.smooth.is_null() {
                T::store(&job.to, row, column, from, length);
            } else {
                let scaled = scratch.at(0, 0);
                scale::<T::S>(from, job.smooth.add(column), length, scaled);
                T::store(&job.to, row, column, scaled, length);
            }
            column += length;
        }
    }
}

/// Multiplies each value by its factor.
#[inline(always)]
unsafe fn scale<S: Simd>(from: *const f32, by: *const f32, length: usize, to: *mut f32) {
    each!(S, at in length, {
        S::store(to.add(at), S::mul(S::load(from.add(at)), S::load(by.add(at))));
    });
}

/// Sums of `M` rows against two vectors of columns, over `steps` steps.
///
/// # Safety
/// As [`multiply`]: row `r` of the input begins at `input + r * stride`.
#[inline(always)]
pub(crate) unsafe fn float_sums<P: FloatStep, const M: usize>(
    input: *const P::Input,
    stride: usize,
    panel: *const P::Weight,
    steps: usize,
) -> [[<P::S as Simd>::F; 2]; M] {
    let half = P::S::LANES * P::K;
    let mut sums = [[P::S::splat(0.0); 2]; M];
    for step in 0..steps {
        let panel = panel.add(step * 2 * half);
        let weights = [P::weights(panel), P::weights(panel.add(half))];
        let input = input.add(step * P::K);
        for row in 0..M {
            let value = P::input(input.add(row * stride));
            sums[row][0] = P::multiply_add(sums[row][0], value, weights[0]);
            sums[row][1] = P::multiply_add(sums[row][1], value, weights[1]);
        }
    }
    sums
}

/// Rows of sums that a register-only loop keeps: enough independent chains for any pipeline.
pub(crate) const SPIN_ROWS: usize = 6;

/// Tiles of float steps.
pub(crate) struct FloatTiles<P, const ROWS: usize>(std::marker::PhantomData<P>);

impl<P: FloatStep, const ROWS: usize> Tiles for FloatTiles<P, ROWS> {
    type S = P::S;
    const ROWS: usize = ROWS;

    #[inline(always)]
    unsafe fn tile<const M: usize>(product: &Product, row: usize, column: usize, to: *mut f32) {
        let Product { input, weights, .. } = product;
        let values = input.values.cast::<P::Input>().add(row * input.stride);
        let panel = weights.panels.cast::<P::Weight>().add(column * weights.steps * P::K);
        let sums = float_sums::<P, M>(values, input.stride, panel, weights.steps);
        for (row, sums) in sums.into_iter().enumerate() {
            P::S::store(to.add(row * GROUP), sums[0]);
            P::S::store(to.add(row * GROUP + P::S::LANES), sums[1]);
        }
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        let mut memory = std::hint::black_box([0_u64; 64]);
        let inputs = P::input((&raw mut memory).cast());
        let weights = P::weights((&raw const memory).cast());
        // Chains that were known to be equal would be computed once.
        let mut sums = std::hint::black_box([[P::S::splat(0.0); 2]; SPIN_ROWS]);
        for _ in 0..repeats {
            for row in &mut sums {
                row[0] = P::multiply_add(row[0], inputs, weights);
                row[1] = P::multiply_add(row[1], inputs, weights);
            }
        }
        let mut total = 0.0;
        for row in sums {
            total += P::S::sum(row[0]) + P::S::sum(row[1]);
        }
        total
    }

    #[inline(always)]
    unsafe fn store(to: &Operand, row: usize, column: usize, values: *const f32, length: usize) {
        let to = to.values.cast::<P::Input>().add(row * to.stride + column);
        each!(P::S, at in length, { P::store(to.add(at), P::S::load(values.add(at))) });
    }
}

/// Tiles of integer steps: whole blocks are summed as integers, then scaled and added up as floats.
pub(crate) struct IntTiles<P, const ROWS: usize>(std::marker::PhantomData<P>);

impl<P: IntStep, const ROWS: usize> IntTiles<P, ROWS> {
    /// Adds one block of inputs to the scaled sums in `to`.
    #[inline(always)]
    unsafe fn block<const M: usize>(
        input: *const P::Input,
        stride: usize,
        panel: *const i8,
        steps: usize,
    ) -> [[P::Acc; 2]; M] {
        let half = P::S::LANES * P::K;
        let mut sums = [[P::zero(); 2]; M];
        for step in 0..steps {
            let panel = panel.add(step * 2 * half);
            let weights = [P::weights(panel), P::weights(panel.add(half))];
            let input = input.add(step * P::K);
            for row in 0..M {
                let value = P::input(input.add(row * stride));
                sums[row][0] = P::multiply_add(sums[row][0], value, weights[0]);
                sums[row][1] = P::multiply_add(sums[row][1], value, weights[1]);
            }
        }
        sums
    }
}

impl<P: IntStep, const ROWS: usize> Tiles for IntTiles<P, ROWS> {
    type S = P::S;
    const ROWS: usize = ROWS;

    #[inline(always)]
    unsafe fn tile<const M: usize>(product: &Product, row: usize, column: usize, to: *mut f32) {
        let Product { input, weights, .. } = product;
        let lanes = P::S::LANES;
        let values = input.values.cast::<P::Input>().add(row * input.stride);
        let panel = weights.panels.cast::<i8>().add(column * weights.steps * P::K);
        let steps_per_block = GROUP / P::K;
        for block in 0..input.blocks {
            let first = block * steps_per_block;
            let steps = steps_per_block.min(weights.steps - first);
            let sums = Self::block::<M>(
                values.add(block * GROUP),
                input.stride,
                panel.add(first * Self::PANEL * P::K),
                steps,
            );
            let scales = weights.scales.add(2 * (column * input.blocks + block * Self::PANEL));
            for (r, sums) in sums.into_iter().enumerate() {
                let of_row = input.scales.add(2 * ((row + r) * input.blocks + block));
                let (scale, least) = (P::S::splat(*of_row), P::S::splat(*of_row.add(1)));
                for (half, sum) in sums.into_iter().enumerate() {
                    let at = half * lanes;
                    let to = to.add(r * GROUP + at);
                    let scaled = P::S::mul(P::to_float(sum), P::S::load(scales.add(at)));
                    let before = if block == 0 { P::S::splat(0.0) } else { P::S::load(to) };
                    let total = P::S::load(scales.add(Self::PANEL + at));
                    let sum = P::S::fma(least, total, before);
                    P::S::store(to, P::S::fma(scale, scaled, sum));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        let mut memory = std::hint::black_box([0_u64; 64]);
        let inputs = P::input((&raw mut memory).cast());
        let weights = P::weights((&raw const memory).cast());
        // As for floats: equal chains would be computed once.
        let mut sums = std::hint::black_box([[P::zero(); 2]; SPIN_ROWS]);
        for _ in 0..repeats {
            for row in &mut sums {
                row[0] = P::multiply_add(row[0], inputs, weights);
                row[1] = P::multiply_add(row[1], inputs, weights);
            }
        }
        let mut total = 0.0;
        for row in sums {
            total += P::S::sum(P::to_float(row[0])) + P::S::sum(P::to_float(row[1]));
        }
        total
    }

    #[inline(always)]
    unsafe fn store(to: &Operand, row: usize, column: usize, values: *const f32, length: usize) {
        let mut least = P::S::load(values);
        let mut most = least;
        each!(P::S, at in length, {
            let value = P::S::load(values.add(at));
            least = P::S::min(least, value);
            most = P::S::max(most, value);
        });
        let (least, most) = (P::S::least(least), P::S::greatest(most));
        let scale = (most - least) / 255.0;
        // A block of equal values has no steps; one of nearly equal ones must not overflow.
        let inverse = if scale > 1e-30 { 1.0 / scale } else { 0.0 };
        let of_row = to.scales.add(2 * (row * to.blocks + column / GROUP));
        *of_row = scale;
        *of_row.add(1) = least;
        let to = to.values.cast::<P::Input>().add(row * to.stride + column);
        each!(P::S, at in length, {
            let above = P::S::sub(P::S::load(values.add(at)), P::S::splat(least));
            let steps = P::S::round(P::S::mul(above, P::S::splat(inverse)));
            P::store(to.add(at), P::S::min(steps, P::S::splat(255.0)));
        });
    }
}
