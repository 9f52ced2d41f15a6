//! The product of rows with packed weights, and what is done to it while it is hot.
//!
//! Weights lie in panels of `PANEL` columns (two vectors), the inputs of one step side by side, so
//! that a panel is read from front to back. A tile is a few rows of the left operand against one
//! panel, its sums in registers, where they begin with the bias and what else is added to them. They
//! go to their destination, or, if they are to be activated, to a scratch block first, and from there
//! when the tiles of a group of columns are complete.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::Element;
use super::activation::{Activate, CoarseGelu, FineGelu, GeluTanh, Identity, Relu};
use super::simd::Simd;

/// Columns that are finished together. Also the inputs that share a scale where they are 8-bit
/// integers: a group of outputs is one block of inputs of the product after it. Mean cosine of
/// `medium` in 8-bit integers with 32-bit floats, on sentences and log lines: 0.99975 and 0.99969 with
/// blocks of 128, 0.99971 and 0.99964 with 192 where whole rows are rounded, 0.99960 and 0.99951 with 384
/// there. On AVX-512 those are 2 % and 3 % faster, but with 192 already, texts unlike those of the
/// calibration (`tests/golden`) fall below 0.9995.
pub(crate) const GROUP: usize = 128;

/// Most rows of one product.
pub(crate) const STRIP_MAX: usize = 192;

/// Rows that are taken through one panel after another instead of the panels of a group.
const FEW_ROWS: usize = 32;

/// Bytes of a tile's rows that are multiplied with all panels of a group before the next inputs:
/// what stays in the first level cache while panels stream through it.
const INPUT_BYTES: usize = 12 << 10;

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

/// What becomes of the sums.
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
    /// Its rows, at most [`STRIP_MAX`].
    pub rows: usize,
    /// The right operand.
    pub weights: Weights,
    /// First column, a multiple of the panel; of [`GROUP`] where integers become an operand.
    pub first: usize,
    /// One behind the last column: likewise, or all columns.
    pub end: usize,
    /// What becomes of the sums.
    pub finish: Finish,
}

/// Sums on their way to their destination.
#[repr(C, align(64))]
pub(crate) struct Scratch(MaybeUninit<[[f32; GROUP]; STRIP_MAX]>);

impl Scratch {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Where a sum lies. Every sum is written before it is read.
    #[inline(always)]
    pub(super) fn at(&mut self, row: usize, column: usize) -> *mut f32 {
        self.0.as_mut_ptr().cast::<f32>().wrapping_add(row * GROUP + column)
    }
}

/// What the driver below needs of a precision on an instruction set.
///
/// # Safety
/// As [`Simd`].
pub(crate) trait Tiles {
    type S: Simd;
    /// Rows of a full tile.
    const ROWS: usize;
    /// Element of the packed weights.
    const WEIGHT: Element;
    /// Inputs of a step.
    const STEP: usize;
    /// Bytes of one input.
    const INPUT_BYTES: usize;
    /// Whether inputs are rounded so much that a coarser activation makes no difference.
    const COARSE: bool = !matches!(Self::WEIGHT, Element::F32);
    /// Columns of a panel: two vectors.
    const PANEL: usize = 2 * Self::S::LANES;
    /// Blocks of [`GROUP`] inputs that a tile goes through at a time.
    const DEPTH: usize = {
        let blocks = INPUT_BYTES / (GROUP * Self::ROWS * Self::INPUT_BYTES);
        if blocks > 0 { blocks } else { 1 }
    };

    /// Computes up to [`ROWS`](Self::ROWS) rows against one panel over some blocks of inputs. The
    /// sums go to `tile.to`: on top of what is there, or, if the blocks are the first, of what
    /// [`start`] says.
    unsafe fn tile(product: &Product, tile: Tile);
    /// Does nothing but the arithmetic of `repeats` steps of a full tile, all in registers; returns
    /// something that depends on all of it.
    unsafe fn spin(repeats: usize) -> f32;
    /// Writes values of one row, beginning at `column`, as a left operand.
    unsafe fn store<A: Activate>(to: &Operand, row: usize, column: usize, values: &Values<A>);
}

/// Which part of a product a tile computes.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// First row.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// First column: the first of a panel.
    pub column: usize,
    /// First block of [`GROUP`] inputs.
    pub block: usize,
    /// Blocks.
    pub blocks: usize,
    /// Where the first row's sums go.
    pub to: *mut f32,
    /// Floats from one row's sums to the next.
    pub stride: usize,
    /// Whether the panel comes from far away: nobody has just read it.
    pub far: bool,
}

/// What the sums of one row and panel begin with: the bias, and what they are stored on top of.
#[inline(always)]
pub(crate) unsafe fn start<S: Simd>(product: &Product, row: usize, column: usize) -> [S::F; 2] {
    let bias = product.weights.bias.add(column);
    let bias = [S::load(bias), S::load(bias.add(S::LANES))];
    let Finish::Add { residual, stride, .. } = product.finish else { return bias };
    let residual = residual.add(row * stride + column);
    [S::add(bias[0], S::load(residual)), S::add(bias[1], S::load(residual.add(S::LANES)))]
}

/// Multiplies, finishes and stores.
///
/// # Safety
/// The CPU has the instruction set; all pointers of `product` are valid for what its sizes say; no
/// other thread writes what this reads, or touches what this writes.
#[inline(always)]
pub(crate) unsafe fn multiply<T: Tiles>(product: &Product) {
    let mut scratch = Scratch::new();
    let tiles = product.rows.div_ceil(T::ROWS);
    // All about as high: a tile of few rows keeps the multipliers waiting.
    let (least, more) = (product.rows / tiles.max(1), product.rows % tiles.max(1));
    let place = |tile: usize| (tile * least + tile.min(more), least + usize::from(tile < more));
    // Few rows stay in the first level cache while each panel comes, once; of many, a tile stays
    // there. Either way a panel comes from far away for the first tile, and is near for the others.
    let few = product.rows <= FEW_ROWS;
    let mut column = product.first;
    while column < product.end {
        let columns = GROUP.min(product.end - column);
        let panels = columns.div_ceil(T::PANEL);
        let mut block = 0;
        while block < product.input.blocks {
            let blocks = T::DEPTH.min(product.input.blocks - block);
            let last = block + blocks == product.input.blocks;
            for outer in 0..if few { panels } else { tiles } {
                for inner in 0..if few { tiles } else { panels } {
                    let (tile, panel) = if few { (inner, outer) } else { (outer, inner) };
                    let (row, rows) = place(tile);
                    let (column, offset) = (column + panel * T::PANEL, panel * T::PANEL);
                    let (to, stride) = match product.finish {
                        Finish::Store { to, stride } | Finish::Add { to, stride, .. } => {
                            (to.add(row * stride + column), stride)
                        }
                        Finish::Activate { .. } => (scratch.at(row, offset), GROUP),
                    };
                    let far = tile == 0;
                    T::tile(product, Tile { row, rows, column, block, blocks, to, stride, far });
                }
                if last && !few {
                    finish::<T>(product, &mut scratch, place(outer), (column, columns));
                }
            }
            if last && few {
                finish::<T>(product, &mut scratch, (0, product.rows), (column, columns));
            }
            block += blocks;
        }
        column += columns;
    }
}

/// Makes rows of complete sums in the scratch block an operand, if that is what they are for.
#[inline(always)]
unsafe fn finish<T: Tiles>(
    product: &Product,
    scratch: &mut Scratch,
    (first, rows): (usize, usize),
    (column, columns): (usize, usize),
) {
    let Finish::Activate { activation, to, smooth } = product.finish else { return };
    let smooth = if smooth.is_null() { smooth } else { smooth.add(column) };
    macro_rules! all {
        ($activation:ty) => {
            for row in first..first + rows {
                let values = Values::<$activation>::new(scratch.at(row, 0), columns, smooth);
                T::store(&to, row, column, &values);
            }
        };
    }
    match activation {
        Activation::Gelu if T::COARSE => all!(CoarseGelu),
        Activation::Gelu => all!(FineGelu),
        Activation::GeluTanh => all!(GeluTanh),
        Activation::Relu => all!(Relu),
    }
}

/// Values on their way into an operand: activated, then multiplied by their columns' factors.
pub(crate) struct Values<A> {
    from: *const f32,
    /// How many: a multiple of a vector, and at most [`GROUP`].
    pub length: usize,
    /// Null, or a factor for each.
    smooth: *const f32,
    activation: PhantomData<A>,
}

impl<A: Activate> Values<A> {
    #[inline(always)]
    pub fn new(from: *const f32, length: usize, smooth: *const f32) -> Self {
        Self { from, length, smooth, activation: PhantomData }
    }

    /// Where they are, if nothing is to be done to them.
    #[inline(always)]
    pub fn as_they_are(&self) -> Option<*const f32> {
        (A::IDENTITY && self.smooth.is_null()).then_some(self.from)
    }

    /// The vector that begins with value `at`.
    #[inline(always)]
    pub unsafe fn load<S: Simd>(&self, at: usize) -> S::F {
        Self::of::<S>(S::load(self.from.add(at)), self.smooth, at)
    }

    /// The vector that begins with value `at`, of what it is made of.
    #[inline(always)]
    pub unsafe fn of<S: Simd>(from: S::F, smooth: *const f32, at: usize) -> S::F {
        let value = A::activate::<S>(from);
        if smooth.is_null() { value } else { S::mul(value, S::load(smooth.add(at))) }
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
    for row in 0..job.rows {
        let mut column = 0;
        while column < job.columns {
            let length = GROUP.min(job.columns - column);
            let smooth = if job.smooth.is_null() { job.smooth } else { job.smooth.add(column) };
            let from = job.from.add(row * job.stride + column);
            let values = Values::<Identity>::new(from, length, smooth);
            T::store(&job.to, row, column, &values);
            column += length;
        }
    }
}
