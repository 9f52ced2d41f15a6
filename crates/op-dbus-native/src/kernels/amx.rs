//! AMX: products of tiles of 16 rows by 64 bytes, beside AVX-512 for all else.
//!
//! Instructions are written as assembly: `std::arch` has no stable functions for them. Weights lie as
//! for the dot products of AVX-512, so that half a panel over 16 steps is a tile as it is. Four tiles
//! of sums, two below two, take four loads for four products: half the time of these if what is loaded
//! lies in the first level cache, and more than that if it has to be brought there.

mod attention;
mod left;
mod product;

use std::arch::asm;

pub(crate) use attention::attend;
pub(crate) use product::{SPIN, multiply_bf16, multiply_int8, spin_bf16, spin_int8};

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
/// Bytes of a panel's weights for one tile of inputs.
const PANEL_BYTES: usize = STEPS * STEP_BYTES;

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

    /// Begins with what rows that are `stride` bytes apart hold; with 0, all with the same.
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
    ($(#[$doc:meta])* $name:ident, $instruction:literal, $load:literal) => {
        /// Adds the products of one tile of inputs, whose rows are `stride` bytes apart, with a panel.
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name(sums: Sums, input: *const u8, stride: usize, panel: *const u8) {
            if sums.rows > ROWS {
                asm!(
                    "tileloadd tmm6, [{panel} + {step}*1]",
                    concat!($load, " tmm4, [{upper} + {stride}*1]"),
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{panel} + {step}*1 + 64]",
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($load, " tmm5, [{lower} + {stride}*1]"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    panel = in(reg) panel,
                    upper = in(reg) input,
                    lower = in(reg) input.add(ROWS * stride),
                    stride = in(reg) stride,
                    step = in(reg) STEP_BYTES,
                    options(nostack, readonly)
                );
            } else {
                asm!(
                    "tileloadd tmm6, [{panel} + {step}*1]",
                    concat!($load, " tmm4, [{upper} + {stride}*1]"),
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm7, [{panel} + {step}*1 + 64]",
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    panel = in(reg) panel,
                    upper = in(reg) input,
                    stride = in(reg) stride,
                    step = in(reg) STEP_BYTES,
                    options(nostack, readonly)
                );
            }
        }
    };
}

products!(add_bf16, "tdpbf16ps", "tileloadd");
products!(add_int8, "tdpbusd", "tileloadd");
products!(
    /// The inputs pass by the first level cache, where the panel stays.
    pass_bf16, "tdpbf16ps", "tileloaddt1"
);
products!(
    /// As [`pass_bf16`].
    pass_int8, "tdpbusd", "tileloaddt1"
);

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
