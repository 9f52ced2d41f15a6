//! Products with weights.
//!
//! While the tiles are busy with one part of a product, vectors finish the part before it, a few rows
//! for each tile of inputs: the CPU has units of its own for both, but does not look far enough ahead
//! to keep both busy by itself.
//!
//! Integers have to leave the tiles after each block of inputs. What vectors do to a few blocks of them they do
//! in one go, after the first tile of inputs of the next blocks: a few rows for each tile took longer.
//!
//! Of many rows, all go past a piece of a panel that stays in the first level cache, before the next
//! piece: they are loaded from the second one by an instruction that leaves the first as it is. Loaded in
//! the ordinary way they would push the piece out, and themselves, long before they come up again.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::left::{Activated, Added, Left, Scaled, Stored};
use super::{BYTES, PANEL, PANEL_BYTES, ROWS, STEP_BYTES, STEPS, Sums, configure, release};
use crate::kernels::activation::{CoarseGelu, GeluTanh, Identity, Relu};
use crate::kernels::avx512_dot::Int8;
use crate::kernels::product::{Activation, Finish, GROUP, Product, STRIP_MAX, Scratch, Tile};
use crate::kernels::step::IntStep;

/// Most rows that are computed together.
pub(super) const HEIGHT: usize = 2 * ROWS;

/// Most strips of so many rows.
const STRIPS: usize = STRIP_MAX.div_ceil(HEIGHT);

/// Most tiles of inputs whose piece of a panel the rows go past together: 32 KiB of the 48 KiB of the
/// first level cache. Four products of tiles take 108 cycles with 12, 104 with 16 and 136 with 24 of them,
/// with 192 rows, 1,536 inputs and 384 columns, all in the second level cache (medians of 3 runs).
const DEPTH: usize = 16;

/// Most blocks of integers whose sums leave the tiles before vectors scale and add them all, row by row.
pub(super) const TOGETHER: usize = 4;

/// Bytes that a cache fetches at once.
const LINE: usize = 64;

/// Sums of one panel, 32-bit floats or integers.
#[repr(C, align(64))]
struct Block(MaybeUninit<[[u32; PANEL]; HEIGHT]>);

/// What is left to do of a tile.
struct Rest<L> {
    left: L,
    /// The next row.
    next: usize,
    /// One behind the last.
    end: usize,
}

/// The weights that are asked for while others are multiplied with: the next piece. They come from far
/// away, and are there when it is their turn.
struct Ahead {
    next: *const u8,
    /// Lines of the cache, for each tile of inputs.
    lines: usize,
}

impl Ahead {
    #[inline(always)]
    unsafe fn fetch(&mut self) {
        for _ in 0..self.lines {
            _mm_prefetch::<_MM_HINT_T1>(self.next.cast());
            self.next = self.next.wrapping_add(LINE);
        }
    }
}

/// Less than a tile of inputs and weights, with zeros behind.
#[repr(C, align(64))]
struct Tail {
    inputs: [[u8; BYTES]; HEIGHT],
    weights: [[u8; STEP_BYTES]; STEPS],
}

impl Tail {
    #[inline(always)]
    unsafe fn new(
        rows: usize,
        input: *const u8,
        stride: usize,
        panel: *const u8,
        steps: usize,
    ) -> Self {
        let mut tail = Self { inputs: [[0; BYTES]; HEIGHT], weights: [[0; STEP_BYTES]; STEPS] };
        for row in 0..rows {
            let to = tail.inputs[row].as_mut_ptr();
            to.copy_from_nonoverlapping(input.add(row * stride), 4 * steps);
        }
        tail.weights.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(panel, STEP_BYTES * steps);
        tail
    }
}

/// Multiplies bfloat16, finishes and stores.
///
/// # Safety
/// As [`crate::kernels::product::multiply`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn multiply_bf16(product: &Product) {
    let stride = product.input.stride * size_of::<u16>();
    match product.finish {
        Finish::Store { .. } => multiply::<Stored>(product, stride),
        Finish::Add { .. } => multiply::<Added>(product, stride),
        Finish::Activate { activation, .. } => match activation {
            Activation::Gelu => multiply::<Activated<CoarseGelu>>(product, stride),
            Activation::GeluTanh => multiply::<Activated<GeluTanh>>(product, stride),
            Activation::Relu => multiply::<Activated<Relu>>(product, stride),
        },
    }
}

/// Multiplies 8-bit integers, finishes and stores.
///
/// # Safety
/// As [`multiply_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn multiply_int8(product: &Product) {
    let stride = product.input.stride;
    match product.finish {
        Finish::Store { .. } | Finish::Add { .. } => multiply::<Scaled<Identity>>(product, stride),
        Finish::Activate { activation, .. } => match activation {
            Activation::Gelu => multiply::<Scaled<CoarseGelu>>(product, stride),
            Activation::GeluTanh => multiply::<Scaled<GeluTanh>>(product, stride),
            Activation::Relu => multiply::<Scaled<Relu>>(product, stride),
        },
    }
}

/// `stride` is that of the inputs in bytes.
#[inline(always)]
unsafe fn multiply<L: Left>(product: &Product, stride: usize) {
    match product.rows > HEIGHT {
        true => pass::<L, true>(product, stride),
        false => pass::<L, false>(product, stride),
    }
}

/// Has all rows, several strips of them or one, go past one panel after another.
///
/// A function for each of what may become of the sums: in one for all of them, the compiler does not keep
/// what is needed for a row in registers.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
unsafe fn pass<L: Left, const SEVERAL: bool>(product: &Product, stride: usize) {
    let Product { weights, finish, .. } = product;
    let mut scratch = Scratch::new();
    let mut blocks = [const { [const { Block(MaybeUninit::uninit()) }; TOGETHER] }; 2];
    let blocks = blocks.each_mut().map(|blocks| blocks.as_mut_ptr().cast::<u32>());
    let mut partial = [const { Block(MaybeUninit::uninit()) }; STRIPS];
    // All strips are of one height, for which the tiles are told once. The last may begin with rows that
    // the one before it ended with; they are not finished again.
    let strips = product.rows.div_ceil(HEIGHT).max(1);
    let height = product.rows.div_ceil(strips);
    configure(height);
    // Pieces of about as many tiles, and of whole blocks.
    let tiles = weights.steps.div_ceil(STEPS);
    let pieces = if SEVERAL { tiles.div_ceil(DEPTH) } else { 1 };
    let depth = (STEPS * tiles.div_ceil(pieces)).next_multiple_of(GROUP / Int8::K);
    let ahead = Ahead { next: weights.panels, lines: (PANEL_BYTES / LINE).div_ceil(strips) };
    let sums = Sums { rows: height };
    let mut way = Way::<L, SEVERAL> {
        product,
        stride,
        sums,
        blocks,
        partial: partial.as_mut_ptr().cast(),
        rest: None,
        ahead,
    };
    let mut group = product.first;
    while group < product.end {
        let group_end = product.end.min(group + GROUP);
        let mut column = group;
        while column < group_end {
            let mut first = 0;
            while first < weights.steps {
                let end = weights.steps.min(first + depth);
                way.ahead.next = way.panel(column, end);
                for strip in 0..strips {
                    let row = (strip * height).min(product.rows - height);
                    let (to, stride) = match *finish {
                        Finish::Store { to, stride } | Finish::Add { to, stride, .. } => {
                            (to.add(row * stride + column), stride)
                        }
                        Finish::Activate { .. } => (scratch.at(row, column - group), GROUP),
                    };
                    let (rows, block, blocks) = (height, 0, 1);
                    let tile = Tile { row, rows, column, block, blocks, to, stride, far: false };
                    way.piece(tile, strip, first..end);
                }
                first = end;
            }
            column += PANEL;
        }
        if L::BY_BLOCKS && matches!(finish, Finish::Activate { .. }) {
            way.finish(HEIGHT);
            L::round(product, scratch.at(0, 0), group..group_end);
        }
        group = group_end;
    }
    way.finish(HEIGHT);
    release();
}

/// A product under way.
struct Way<'a, L, const SEVERAL: bool> {
    product: &'a Product,
    /// Bytes from one row of inputs to the next.
    stride: usize,
    /// In the tiles.
    sums: Sums,
    /// Where sums of tiles go by turns: they are finished in one while the other is written.
    blocks: [*mut u32; 2],
    /// Sums of each strip over the pieces of a panel before this one, `[STRIPS][HEIGHT][PANEL]`.
    partial: *mut f32,
    /// What is left to do of the tile before.
    rest: Option<Rest<L>>,
    ahead: Ahead,
}

impl<L: Left, const SEVERAL: bool> Way<'_, L, SEVERAL> {
    /// The weights of the panel at `column` from a step on.
    #[inline(always)]
    unsafe fn panel(&self, column: usize, step: usize) -> *const u8 {
        let weights = self.product.weights;
        weights.panels.wrapping_add(4 * column * weights.steps + STEP_BYTES * step)
    }

    /// Has a strip, a tile of the product, go past the piece of its panel that has these steps.
    #[inline(always)]
    unsafe fn piece(&mut self, tile: Tile, strip: usize, steps: Range<usize>) {
        let Self { product, sums, .. } = *self;
        // Rows that the strip before has as well.
        let skip = strip * tile.rows - tile.row;
        if L::BY_BLOCKS {
            let per_block = GROUP / Int8::K;
            let blocks = steps.len().div_ceil(per_block);
            let together = per_block * blocks.div_ceil(blocks.div_ceil(TOGETHER));
            let mut first = steps.start;
            while first < steps.end {
                let end = steps.end.min(first + together);
                let blocks = (end - first).div_ceil(per_block);
                for next in 0..blocks {
                    let first = first + next * per_block;
                    L::begin(product, tile.column, sums);
                    self.add(&tile, first..end.min(first + per_block), HEIGHT);
                    let block = self.blocks[0].add(next * HEIGHT * PANEL);
                    sums.store(block.cast(), 4 * PANEL);
                }
                self.leave(Tile { block: first / per_block, blocks, ..tile }, skip);
                first = end;
            }
            return;
        }
        let partial = self.partial.add(strip * HEIGHT * PANEL).cast::<u8>();
        if steps.start == 0 {
            L::begin(product, tile.column, sums);
        } else {
            sums.load(partial, 4 * PANEL);
        }
        let end = steps.end;
        let share = tile.rows.div_ceil((steps.len() / STEPS).max(1));
        self.add(&tile, steps, share);
        if end < product.weights.steps {
            sums.store(partial, 4 * PANEL);
        } else if L::AS_THEY_ARE {
            sums.store(tile.to.cast(), 4 * tile.stride);
        } else {
            sums.store(self.blocks[0].cast(), 4 * PANEL);
            self.leave(tile, skip);
        }
    }

    /// Adds the products of some steps, and meanwhile finishes the tile before, `share` rows with each
    /// tile of inputs.
    #[inline(always)]
    unsafe fn add(&mut self, tile: &Tile, steps: Range<usize>, share: usize) {
        let Self { product, stride, sums, .. } = *self;
        let input = product.input.values.add(tile.row * stride + 4 * steps.start).cast_const();
        let panel = self.panel(tile.column, steps.start);
        let (whole, odd) = (steps.len() / STEPS, steps.len() % STEPS);
        for place in 0..whole {
            let (input, panel) = (input.add(BYTES * place), panel.add(PANEL_BYTES * place));
            L::add::<SEVERAL>(sums, input, stride, panel);
            self.ahead.fetch();
            self.finish(share);
        }
        if odd > 0 {
            let (input, panel) = (input.add(BYTES * whole), panel.add(PANEL_BYTES * whole));
            let tail = Tail::new(tile.rows, input, stride, panel, odd);
            let weights = (&raw const tail.weights).cast();
            L::add::<false>(sums, (&raw const tail.inputs).cast(), BYTES, weights);
        }
    }

    /// Leaves what is left to do of the sums that were stored for later.
    #[inline(always)]
    unsafe fn leave(&mut self, tile: Tile, skip: usize) {
        self.finish(HEIGHT);
        let left = L::new(self.product, tile, self.blocks[0]);
        self.rest = Some(Rest { left, next: skip, end: tile.rows });
        self.blocks.swap(0, 1);
    }

    /// Finishes up to `rows` rows of what is left.
    #[inline(always)]
    unsafe fn finish(&mut self, rows: usize) {
        let Some(rest) = &mut self.rest else { return };
        let rows = rest.next..rest.end.min(rest.next + rows);
        rest.next = rows.end;
        if !rows.is_empty() {
            rest.left.finish(self.product, rows);
        }
    }
}

/// Multiply-adds of one repeat of a spin, and input of a step: four products of full tiles.
pub(crate) const SPIN: usize = 4 * ROWS * PANEL / 2 * STEPS;

/// So many times [`SPIN`], and a number that depends on them.
macro_rules! spin {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has tiles, and this process may use them.
        pub(crate) unsafe fn $name(repeats: usize) -> f32 {
            configure(HEIGHT);
            let sums = Sums { rows: HEIGHT };
            sums.clear();
            asm!("tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7", options(nostack));
            for _ in 0..repeats {
                asm!(
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    options(nostack, nomem)
                );
            }
            let mut block = [[0.0_f32; PANEL]; HEIGHT];
            sums.store(block.as_mut_ptr().cast(), 4 * PANEL);
            release();
            block[0][0]
        }
    };
}

spin!(
    /// [`spin`](crate::kernels::product::Tiles::spin) of bfloat16.
    spin_bf16, "tdpbf16ps"
);
spin!(
    /// [`spin`](crate::kernels::product::Tiles::spin) of 8-bit integers.
    spin_int8, "tdpbusd"
);
