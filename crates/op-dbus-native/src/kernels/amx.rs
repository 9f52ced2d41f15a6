//! AMX: products of tiles of 16 rows by 64 bytes, beside AVX-512 for all else.
//!
//! Instructions are written as assembly: `std::arch` has no stable functions for them. Weights lie as
//! for the dot products of AVX-512, so that half a panel over 16 steps is a tile as it is. Four tiles
//! of sums, two below two, take four loads for four products.

#![allow(unsafe_op_in_unsafe_fn, reason = "nothing here but instructions under one contract")]

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::activation::Activate;
use super::avx512::Avx512;
use super::avx512_dot::{Bf16, Int8};
use super::product::{GROUP, Operand, Product, Tile, Tiles, Values, start};
use super::simd::Simd;
use super::step::{FloatStep, IntStep};
use super::tiles::{BlockScales, FloatTiles, IntTiles, SPIN_ROWS};

/// Rows of a tile.
const ROWS: usize = 16;
/// Bytes of a tile's row.
const BYTES: usize = 64;
/// Columns of a panel.
const PANEL: usize = 32;
/// Steps that one tile of inputs, or of weights, holds: 4 bytes each.
const STEPS: usize = BYTES / 4;
/// Bytes of one step of a panel.
const STEP_BYTES: usize = 4 * PANEL;

/// What the CPU is told of its eight tiles.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0 and 1 are the sums of the upper rows, 2 and 3 of the lower, 4 and 5 the inputs of both,
/// 6 and 7 the weights of the panel's halves.
#[inline(always)]
unsafe fn configure(rows: usize) {
    let upper = rows.min(ROWS) as u8;
    let lower = rows as u8 - upper;
    let tiles = [upper, upper, lower, lower, upper, lower, ROWS as u8, ROWS as u8];
    let mut configuration = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let mut tile = 0;
    while tile < tiles.len() {
        configuration.rows[tile] = tiles[tile];
        configuration.row_bytes[tile] = if tiles[tile] == 0 { 0 } else { BYTES as u16 };
        tile += 1;
    }
    asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly));
}

#[inline(always)]
unsafe fn release() {
    asm!("tilerelease", options(nostack, nomem));
}

/// Sums of up to 32 rows against one panel, in the tiles.
#[derive(Clone, Copy)]
struct Sums {
    rows: usize,
}

impl Sums {
    /// Clears them.
    #[inline(always)]
    unsafe fn clear(self) {
        asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
        if self.rows > ROWS {
            asm!("tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
        }
    }

    /// Loads them from rows that are `stride` bytes apart.
    #[inline(always)]
    unsafe fn load(self, from: *const u8, stride: usize) {
        asm!(
            "tileloadd tmm0, [{from} + {stride}*1]",
            "tileloadd tmm1, [{from} + {stride}*1 + 64]",
            from = in(reg) from, stride = in(reg) stride, options(nostack, readonly)
        );
        if self.rows > ROWS {
            asm!(
                "tileloadd tmm2, [{from} + {stride}*1]",
                "tileloadd tmm3, [{from} + {stride}*1 + 64]",
                from = in(reg) from.add(ROWS * stride), stride = in(reg) stride,
                options(nostack, readonly)
            );
        }
    }

    /// Stores them to rows that are `stride` bytes apart.
    #[inline(always)]
    unsafe fn store(self, to: *mut u8, stride: usize) {
        asm!(
            "tilestored [{to} + {stride}*1], tmm0",
            "tilestored [{to} + {stride}*1 + 64], tmm1",
            to = in(reg) to, stride = in(reg) stride, options(nostack)
        );
        if self.rows > ROWS {
            asm!(
                "tilestored [{to} + {stride}*1], tmm2",
                "tilestored [{to} + {stride}*1 + 64], tmm3",
                to = in(reg) to.add(ROWS * stride), stride = in(reg) stride, options(nostack)
            );
        }
    }
}

/// Sums that products are added to by one instruction.
macro_rules! products {
    ($name:ident, $instruction:literal) => {
        /// Adds the products of rows that are `stride` bytes apart with a panel, over `count` whole
        /// tiles of inputs.
        #[inline(always)]
        unsafe fn $name(
            sums: Sums,
            input: *const u8,
            stride: usize,
            panel: *const u8,
            count: usize,
        ) {
            if count == 0 {
                return;
            }
            if sums.rows > ROWS {
                asm!(
                    "2:",
                    "tileloadd tmm6, [{panel} + {step}*1]",
                    "tileloadd tmm4, [{upper} + {stride}*1]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{panel} + {step}*1 + 64]",
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    "tileloadd tmm5, [{lower} + {stride}*1]",
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "add {panel}, 2048",
                    "add {upper}, 64",
                    "add {lower}, 64",
                    "dec {count}",
                    "jnz 2b",
                    panel = inout(reg) panel => _,
                    upper = inout(reg) input => _,
                    lower = inout(reg) input.add(ROWS * stride) => _,
                    count = inout(reg) count => _,
                    stride = in(reg) stride,
                    step = in(reg) STEP_BYTES,
                    options(nostack, readonly)
                );
            } else {
                asm!(
                    "2:",
                    "tileloadd tmm6, [{panel} + {step}*1]",
                    "tileloadd tmm4, [{upper} + {stride}*1]",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{panel} + {step}*1 + 64]",
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    "add {panel}, 2048",
                    "add {upper}, 64",
                    "dec {count}",
                    "jnz 2b",
                    panel = inout(reg) panel => _,
                    upper = inout(reg) input => _,
                    count = inout(reg) count => _,
                    stride = in(reg) stride,
                    step = in(reg) STEP_BYTES,
                    options(nostack, readonly)
                );
            }
        }
    };
}

products!(add_bf16, "tdpbf16ps");
products!(add_int8, "tdpbusd");

/// Less than a tile of inputs and weights, with zeros behind.
#[repr(C, align(64))]
struct Tail {
    inputs: [[u8; BYTES]; 2 * ROWS],
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
        let mut tail = Self { inputs: [[0; BYTES]; 2 * ROWS], weights: [[0; STEP_BYTES]; STEPS] };
        for row in 0..rows {
            let to = tail.inputs[row].as_mut_ptr();
            to.copy_from_nonoverlapping(input.add(row * stride), 4 * steps);
        }
        tail.weights.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(panel, STEP_BYTES * steps);
        tail
    }
}

/// Adds the products over any number of steps.
macro_rules! all_steps {
    ($add:ident, $sums:expr, $input:expr, $stride:expr, $panel:expr, $steps:expr) => {{
        let (sums, input, stride, panel, steps) = ($sums, $input, $stride, $panel, $steps);
        let (whole, rest) = (steps / STEPS, steps % STEPS);
        $add(sums, input, stride, panel, whole);
        if rest > 0 {
            let done = whole * STEPS;
            let (input, panel) = (input.add(4 * done), panel.add(STEP_BYTES * done));
            let tail = Tail::new(sums.rows, input, stride, panel, rest);
            $add(sums, (&raw const tail.inputs).cast(), BYTES, (&raw const tail.weights).cast(), 1);
        }
    }};
}

/// So many products of full tiles, and a number that depends on them.
macro_rules! spin_tiles {
    ($instruction:literal, $products:expr) => {{
        configure(2 * ROWS);
        Sums { rows: 2 * ROWS }.clear();
        asm!("tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7", options(nostack));
        for _ in 0..$products / 4 {
            asm!(
                concat!($instruction, " tmm0, tmm4, tmm6"),
                concat!($instruction, " tmm1, tmm4, tmm7"),
                concat!($instruction, " tmm2, tmm5, tmm6"),
                concat!($instruction, " tmm3, tmm5, tmm7"),
                options(nostack, nomem)
            );
        }
        let mut sums = [[0.0_f32; PANEL]; 2 * ROWS];
        Sums { rows: 2 * ROWS }.store(sums.as_mut_ptr().cast(), 2 * BYTES);
        release();
        sums[0][0]
    }};
}

/// Tiles of bfloat16.
pub(crate) struct Bf16Tiles;

impl Tiles for Bf16Tiles {
    type S = Avx512;
    const ROWS: usize = 2 * ROWS;
    const INPUT_BYTES: usize = 2;
    const COARSE: bool = true;
    /// Loading and storing sums takes as long as a few products; the CPUs with tiles have first
    /// level caches of 48 KiB, of which this is 24.
    const DEPTH: usize = 3;

    #[inline(always)]
    unsafe fn begin(rows: usize) {
        configure(rows);
    }

    #[inline(always)]
    unsafe fn end() {
        release();
    }

    #[inline(always)]
    unsafe fn tile(product: &Product, tile: Tile) {
        let Product { input, weights, .. } = product;
        let first = tile.block * GROUP / Bf16::K;
        let steps = (tile.blocks * GROUP / Bf16::K).min(weights.steps - first);
        let stride = input.stride * size_of::<u16>();
        let values = input.values.add(tile.row * stride + 4 * first);
        let panel = weights.panels.add(4 * tile.column * weights.steps + STEP_BYTES * first);
        let sums = Sums { rows: tile.rows };
        let (to, apart) = (tile.to.cast::<u8>(), tile.stride * size_of::<f32>());
        if tile.block == 0 {
            for row in 0..tile.rows {
                let start = start::<Avx512>(product, tile.row + row, tile.column);
                let to = tile.to.add(row * tile.stride);
                Avx512::store(to, start[0]);
                Avx512::store(to.add(Avx512::LANES), start[1]);
            }
        }
        sums.load(to, apart);
        all_steps!(add_bf16, sums, values.cast_const(), stride, panel, steps);
        sums.store(to, apart);
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        spin_tiles!("tdpbf16ps", repeats * SPIN_ROWS * PANEL * Bf16::K / (16 * 16 * 32))
    }

    #[inline(always)]
    unsafe fn store<A: Activate>(to: &Operand, row: usize, column: usize, values: &Values<A>) {
        FloatTiles::<Bf16, 1>::store(to, row, column, values);
    }
}

/// Tiles of 8-bit integers.
pub(crate) struct Int8Tiles;

impl Tiles for Int8Tiles {
    type S = Avx512;
    const ROWS: usize = 2 * ROWS;
    const INPUT_BYTES: usize = 1;
    const COARSE: bool = true;

    #[inline(always)]
    unsafe fn begin(rows: usize) {
        configure(rows);
    }

    #[inline(always)]
    unsafe fn end() {
        release();
    }

    #[inline(always)]
    unsafe fn tile(product: &Product, tile: Tile) {
        let Product { input, weights, .. } = product;
        let values = input.values.add(tile.row * input.stride);
        let panel = weights.panels.add(4 * tile.column * weights.steps);
        let steps_per_block = GROUP / Int8::K;
        let mut whole = MaybeUninit::<[[__m512i; 2]; 2 * ROWS]>::uninit();
        let whole = whole.as_mut_ptr().cast::<__m512i>();
        let sums = Sums { rows: tile.rows };
        for block in tile.block..tile.block + tile.blocks {
            let first = block * steps_per_block;
            let steps = steps_per_block.min(weights.steps - first);
            let values = values.add(4 * first).cast_const();
            sums.clear();
            all_steps!(add_int8, sums, values, input.stride, panel.add(STEP_BYTES * first), steps);
            sums.store(whole.cast(), 2 * BYTES);
            let scales = BlockScales::<Avx512>::of(product, tile, block);
            for row in 0..tile.rows {
                let sums = whole.add(2 * row);
                let sums = [Int8::to_float(*sums), Int8::to_float(*sums.add(1))];
                scales.add(product, tile, [row, block], sums);
            }
        }
    }

    #[inline(always)]
    unsafe fn spin(repeats: usize) -> f32 {
        spin_tiles!("tdpbusd", repeats * SPIN_ROWS * PANEL * Int8::K / (16 * 16 * 64))
    }

    #[inline(always)]
    unsafe fn store<A: Activate>(to: &Operand, row: usize, column: usize, values: &Values<A>) {
        IntTiles::<Int8, 1>::store(to, row, column, values);
    }
}

/// Whether the operating system lets this process use the tiles; it has to be asked.
pub(crate) fn is_permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: a system call that takes two numbers and touches no memory of the program.
    unsafe {
        asm!(
            "syscall",
            inout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack)
        );
    }
    result == 0
}
