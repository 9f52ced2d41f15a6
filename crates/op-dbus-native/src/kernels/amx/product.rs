//! Products with weights.
//!
//! While the tiles are busy with one part of a product, vectors finish the part before it, a few rows
//! for each tile of inputs: the CPU has units of its own for both, but does not look far enough ahead
//! to keep both busy by itself.

#![allow(unsafe_op_in_unsafe_fn, reason = "nothing here but instructions under one contract")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{
    BYTES, PANEL, PANEL_BYTES, ROWS, STEP_BYTES, STEPS, Sums, add_bf16, add_int8, configure,
    release,
};
use crate::kernels::activation::{Activate, CoarseGelu, GeluTanh, Relu};
use crate::kernels::avx512::Avx512;
use crate::kernels::avx512_dot::{Bf16, Int8};
use crate::kernels::product::{
    Activation, Finish, GROUP, Product, Scratch, Tile, finish as activate,
};
use crate::kernels::simd::{Simd, each};
use crate::kernels::step::{FloatStep, IntStep};
use crate::kernels::tiles::{BlockScales, IntTiles, SPIN_ROWS};

/// Most rows that are computed together.
const HEIGHT: usize = 2 * ROWS;

/// Bytes that a cache fetches at once.
const LINE: usize = 64;

/// Sums of one panel, 32-bit floats or integers.
#[repr(C, align(64))]
struct Block(MaybeUninit<[[u32; PANEL]; HEIGHT]>);

/// Sums as they come from the tiles, on their way to where they belong.
///
/// # Safety
/// As [`crate::kernels::product::multiply`].
trait Left {
    /// Steps whose sums leave the tiles together.
    const STEPS: usize;
    /// Whether sums are activated when those of a whole group of columns are there.
    const GROUPED: bool;

    /// Adds the products of one tile of inputs, whose rows are `stride` bytes apart, with a panel.
    unsafe fn add(sums: Sums, input: *const u8, stride: usize, panel: *const u8);
    /// What `sums` hold of a tile.
    fn new(product: &Product, tile: Tile, sums: *const u32) -> Self;
    /// Brings a row of them to where it belongs.
    unsafe fn finish(&self, product: &Product, row: usize);
}

/// Sums of floats over all inputs.
struct Floats {
    tile: Tile,
    sums: *const f32,
}

impl Left for Floats {
    const STEPS: usize = usize::MAX;
    const GROUPED: bool = false;

    #[inline(always)]
    unsafe fn add(sums: Sums, input: *const u8, stride: usize, panel: *const u8) {
        add_bf16(sums, input, stride, panel);
    }

    #[inline(always)]
    fn new(_: &Product, tile: Tile, sums: *const u32) -> Self {
        Self { tile, sums: sums.cast() }
    }

    #[inline(always)]
    unsafe fn finish(&self, product: &Product, row: usize) {
        let (sums, column) = (self.sums.add(row * PANEL), self.tile.column);
        let row = self.tile.row + row;
        each!(Avx512, lane in PANEL, {
            let column = column + lane;
            let bias = Avx512::load(product.weights.bias.add(column));
            let sum = Avx512::add(Avx512::load(sums.add(lane)), bias);
            match product.finish {
                Finish::Store { to, stride } => Avx512::store(to.add(row * stride + column), sum),
                Finish::Add { to, residual, stride } => {
                    let at = row * stride + column;
                    Avx512::store(to.add(at), Avx512::add(sum, Avx512::load(residual.add(at))));
                }
                Finish::Activate { activation, to, smooth } => {
                    let value = match activation {
                        Activation::Gelu => CoarseGelu::activate::<Avx512>(sum),
                        Activation::GeluTanh => GeluTanh::activate::<Avx512>(sum),
                        Activation::Relu => Relu::activate::<Avx512>(sum),
                    };
                    let value = if smooth.is_null() {
                        value
                    } else {
                        Avx512::mul(value, Avx512::load(smooth.add(column)))
                    };
                    Bf16::store(to.values.cast::<u16>().add(row * to.stride + column), value);
                }
            }
        });
    }
}

/// Sums of integers over one block of inputs.
struct Ints {
    tile: Tile,
    sums: *const __m512i,
    scales: BlockScales<Avx512>,
}

impl Left for Ints {
    const STEPS: usize = GROUP / Int8::K;
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn add(sums: Sums, input: *const u8, stride: usize, panel: *const u8) {
        add_int8(sums, input, stride, panel);
    }

    #[inline(always)]
    fn new(product: &Product, tile: Tile, sums: *const u32) -> Self {
        // SAFETY: the contract of the product, whose panel and block these are.
        let scales = unsafe { BlockScales::of(product, tile, tile.block) };
        Self { tile, sums: sums.cast(), scales }
    }

    #[inline(always)]
    unsafe fn finish(&self, product: &Product, row: usize) {
        let sums = self.sums.add(2 * row);
        let sums = [Int8::to_float(*sums), Int8::to_float(*sums.add(1))];
        self.scales.add(product, self.tile, [row, self.tile.block], sums);
    }
}

/// What is left to do of a part of a product.
struct Rest<L> {
    left: L,
    /// The next row.
    next: usize,
    /// One behind the last.
    end: usize,
}

/// The weights that are asked for while others are multiplied with: those of the next panel. They come
/// from far away, and are there when it is their turn.
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
    multiply::<Floats>(product, product.input.stride * size_of::<u16>());
}

/// Multiplies 8-bit integers, finishes and stores.
///
/// # Safety
/// As [`multiply_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")]
pub(crate) unsafe fn multiply_int8(product: &Product) {
    multiply::<Ints>(product, product.input.stride);
}

/// `stride` is that of the inputs in bytes.
#[inline(always)]
unsafe fn multiply<L: Left>(product: &Product, stride: usize) {
    let Product { weights, finish, .. } = product;
    let mut scratch = Scratch::new();
    let mut blocks = [const { Block(MaybeUninit::uninit()) }; 2];
    let blocks = blocks.each_mut().map(|block| block.0.as_mut_ptr().cast::<u32>());
    // All strips are of one height, for which the tiles are told once. The last may begin with rows that
    // the one before it ended with; they are not finished again.
    let strips = product.rows.div_ceil(HEIGHT).max(1);
    let height = product.rows.div_ceil(strips);
    configure(height);
    let lines = (PANEL_BYTES / LINE).div_ceil(strips);
    let ahead = Ahead { next: weights.panels, lines };
    let mut way =
        Way::<L> { product, stride, sums: Sums { rows: height }, blocks, rest: None, ahead };
    let mut group = product.first;
    while group < product.end {
        let group_end = product.end.min(group + GROUP);
        let mut column = group;
        while column < group_end {
            way.ahead.next = weights.panels.wrapping_add(4 * (column + PANEL) * weights.steps);
            let mut done = 0;
            while done < product.rows {
                let row = done.min(product.rows - height);
                let (to, stride) = match *finish {
                    Finish::Store { to, stride } | Finish::Add { to, stride, .. } => {
                        (to.add(row * stride + column), stride)
                    }
                    Finish::Activate { .. } => (scratch.at(row, column - group), GROUP),
                };
                let (mut first, mut block) = (0, 0);
                while first < weights.steps {
                    let steps = L::STEPS.min(weights.steps - first);
                    let rows = height;
                    let tile = Tile { row, rows, column, block, blocks: 1, to, stride, far: false };
                    way.part(tile, first, steps, done - row);
                    (first, block) = (first + steps, block + 1);
                }
                done = row + height;
            }
            column += PANEL;
        }
        if L::GROUPED && matches!(finish, Finish::Activate { .. }) {
            way.finish(HEIGHT);
            let columns = (group, group_end - group);
            activate::<IntTiles<Int8, 8>>(product, &mut scratch, (0, product.rows), columns);
        }
        group = group_end;
    }
    way.finish(HEIGHT);
    release();
}

/// A product under way.
struct Way<'a, L> {
    product: &'a Product,
    /// Bytes from one row of inputs to the next.
    stride: usize,
    /// In the tiles.
    sums: Sums,
    /// Where sums of tiles go by turns: they are finished in one while the other is written.
    blocks: [*mut u32; 2],
    /// What is left to do of the part before.
    rest: Option<Rest<L>>,
    ahead: Ahead,
}

impl<L: Left> Way<'_, L> {
    /// Computes the sums of a tile over `steps` steps from `first` on, and meanwhile finishes those before
    /// them. Rows before `skip` are left as they are.
    #[inline(always)]
    unsafe fn part(&mut self, tile: Tile, first: usize, steps: usize, skip: usize) {
        let Self { product, stride, sums, .. } = *self;
        let Product { input, weights, .. } = product;
        let input = input.values.add(tile.row * stride + 4 * first).cast_const();
        let panel = weights.panels.add(4 * tile.column * weights.steps + STEP_BYTES * first);
        let (whole, odd) = (steps / STEPS, steps % STEPS);
        let share = tile.rows.div_ceil(whole.max(1));
        sums.clear();
        for place in 0..whole {
            L::add(sums, input.add(BYTES * place), stride, panel.add(PANEL_BYTES * place));
            self.ahead.fetch();
            self.finish(share);
        }
        if odd > 0 {
            let (input, panel) = (input.add(BYTES * whole), panel.add(PANEL_BYTES * whole));
            let tail = Tail::new(tile.rows, input, stride, panel, odd);
            let weights = (&raw const tail.weights).cast();
            L::add(sums, (&raw const tail.inputs).cast(), BYTES, weights);
        }
        self.finish(HEIGHT);
        sums.store(self.blocks[0].cast(), 4 * PANEL);
        let left = L::new(product, tile, self.blocks[0]);
        self.rest = Some(Rest { left, next: skip, end: tile.rows });
        self.blocks.swap(0, 1);
    }

    /// Finishes up to `rows` rows of what is left.
    #[inline(always)]
    unsafe fn finish(&mut self, rows: usize) {
        let Some(rest) = &mut self.rest else { return };
        let end = rest.end.min(rest.next + rows);
        for row in rest.next..end {
            rest.left.finish(self.product, row);
        }
        rest.next = end;
    }
}

/// So many products of full tiles, and a number that depends on them.
macro_rules! spin {
    ($(#[$doc:meta])* $name:ident, $instruction:literal, $inputs:expr) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has tiles, and this process may use them.
        pub(crate) unsafe fn $name(repeats: usize) -> f32 {
            configure(HEIGHT);
            let sums = Sums { rows: HEIGHT };
            sums.clear();
            asm!("tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7", options(nostack));
            for _ in 0..repeats * SPIN_ROWS * PANEL * $inputs / (ROWS * PANEL / 2 * STEPS * $inputs) / 4 {
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
    spin_bf16, "tdpbf16ps", Bf16::K
);
spin!(
    /// [`spin`](crate::kernels::product::Tiles::spin) of 8-bit integers.
    spin_int8, "tdpbusd", Int8::K
);
