//! Shows that an emulator really has the instructions that the kernels use: each is executed once
//! and compared with what its manual says, in scalar code. Built with `rustc` alone, for x86-64 and
//! aarch64; `cargo xtask emulate` runs it first, so that a broken emulator is not taken for a broken
//! kernel. It prints one line per instruction and ends with status 1 if one was wrong.

/// Sixteen registers' worth of bytes, aligned like a cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Block<T: Copy, const N: usize>([T; N]);

/// Reproducible, spread over all byte values; no product of the formats used here overflows.
fn bytes<const N: usize>(seed: u32) -> Block<u8, N> {
    let mut state = seed;
    Block(std::array::from_fn(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    }))
}

/// bfloat16 values in [-2, 2), as bits: the upper half of a float.
fn halves<const N: usize>(seed: u32) -> Block<u16, N> {
    let Block(bytes) = bytes::<N>(seed);
    Block(std::array::from_fn(|i| {
        let value = f32::from(bytes[i]) / 64.0 - 2.0;
        (value.to_bits() >> 16) as u16
    }))
}

fn widen(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

/// Prints the verdict and tells whether it was right.
fn verdict(name: &str, wrong: usize) -> bool {
    println!(
        "{name}: {}",
        if wrong == 0 { "as expected".to_owned() } else { format!("{wrong} elements wrong") }
    );
    wrong == 0
}

fn count<T: PartialEq>(found: &[T], expected: &[T]) -> usize {
    found.iter().zip(expected).filter(|(a, b)| a != b).count()
}

/// Sums in a register may be rounded in another order than ours.
fn count_near(found: &[f32], expected: &[f32]) -> usize {
    found.iter().zip(expected).filter(|(a, b)| (*a - *b).abs() > 1e-4 * b.abs().max(1.0)).count()
}

/// Adds `width` products of neighbours to each sum.
fn dot<A: Copy, B: Copy, const N: usize>(
    a: &[A],
    b: &[B],
    width: usize,
    product: impl Fn(A, B) -> i32,
) -> [i32; N] {
    std::array::from_fn(|i| (0..width).map(|k| product(a[i * width + k], b[i * width + k])).sum())
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::*;
    use std::arch::asm;

    /// Runs one instruction on `zmm0` (the sums) and `zmm1` (left), with `{b}` in it for the address
    /// of the right operand, which is given 64 bytes lower: operands in memory are written with an
    /// offset, because compilers do, and because it is encoded in units that differ by instruction.
    ///
    /// # Safety of each use
    /// The CPU reports the feature; the pointers are to 64 aligned bytes, the right one to 128.
    macro_rules! execute {
        ($instruction:literal, $sums:expr, $left:expr, $right:expr) => {
            asm!(
                "vmovaps zmm0, [{s}]", "vmovaps zmm1, [{a}]", "vmovaps zmm2, [{b} + 64]",
                $instruction, "vmovaps [{s}], zmm0",
                s = in(reg) &mut $sums, a = in(reg) &$left, b = in(reg) &$right,
                out("xmm0") _, out("xmm1") _, out("xmm2") _,
            )
        };
    }

    fn avx512_bf16() -> bool {
        let (a, b) = (halves::<32>(1), halves::<64>(2));
        let mut sums = [Block([0.5f32; 16]); 3];
        // SAFETY: see `execute`.
        unsafe {
            execute!("vdpbf16ps zmm0, zmm1, zmm2", sums[0], a, b);
            execute!("vdpbf16ps zmm0, zmm1, [{b} + 64]", sums[1], a, b);
            execute!("vdpbf16ps zmm0, zmm1, [{b} + 68]{{1to16}}", sums[2], a, b);
        }
        let expected = |right: fn(usize) -> usize| -> [f32; 16] {
            std::array::from_fn(|i| {
                let product = |k: usize| widen(a.0[2 * i + k]) * widen(b.0[32 + right(i) + k]);
                0.5 + product(0) + product(1)
            })
        };
        verdict("vdpbf16ps zmm", count_near(&sums[0].0, &expected(|i| 2 * i)))
            & verdict("vdpbf16ps zmm, memory", count_near(&sums[1].0, &expected(|i| 2 * i)))
            & verdict("vdpbf16ps zmm, broadcast", count_near(&sums[2].0, &expected(|_| 2)))
    }

    fn avx512_vnni() -> bool {
        let (a, b) = (bytes::<64>(3), bytes::<128>(4));
        let mut sums = [Block([0i32; 16]); 3];
        // SAFETY: see `execute`.
        unsafe {
            execute!("vpdpbusd zmm0, zmm1, zmm2", sums[0], a, b);
            execute!("vpdpbusd zmm0, zmm1, [{b} + 64]", sums[1], a, b);
            execute!("vpdpbusd zmm0, zmm1, [{b} + 68]{{1to16}}", sums[2], a, b);
        }
        let product = |a: u8, b: u8| i32::from(a) * i32::from(b as i8);
        let whole: [i32; 16] = dot(&a.0, &b.0[64..], 4, product);
        let one: [i32; 16] = dot(&a.0, &b.0[68..72].repeat(16), 4, product);
        verdict("vpdpbusd zmm", count(&sums[0].0, &whole))
            & verdict("vpdpbusd zmm, memory", count(&sums[1].0, &whole))
            & verdict("vpdpbusd zmm, broadcast", count(&sums[2].0, &one))
    }

    fn avx_vnni() -> bool {
        let (a, b) = (bytes::<32>(5), bytes::<64>(6));
        let mut sums = [Block([0i32; 8]); 2];
        // SAFETY: called where the CPU reports avxvnni; the pointers are to 32 aligned bytes each,
        // the right one to 64.
        unsafe {
            asm!(
                "vpxor ymm0, ymm0, ymm0", "vpxor ymm3, ymm3, ymm3",
                "vmovdqa ymm1, [{a}]", "vmovdqa ymm2, [{b} + 32]",
                "{{vex}} vpdpbusd ymm0, ymm1, ymm2", "{{vex}} vpdpbusd ymm3, ymm1, [{b} + 32]",
                "vmovdqa [{s}], ymm0", "vmovdqa [{t}], ymm3",
                s = in(reg) &mut sums[0], t = in(reg) &mut sums[1], a = in(reg) &a, b = in(reg) &b,
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            );
        }
        let expected: [i32; 8] =
            dot(&a.0, &b.0[32..], 4, |a: u8, b: u8| i32::from(a) * i32::from(b as i8));
        verdict("{vex} vpdpbusd ymm", count(&sums[0].0, &expected))
            & verdict("{vex} vpdpbusd ymm, memory", count(&sums[1].0, &expected))
    }

    /// Rows and bytes per row of tiles 0 (sums), 1 (left) and 2 (right): 16 × 64 each, 7 rows of left.
    fn tile_shapes() -> Block<u8, 64> {
        let mut shapes = Block([0u8; 64]);
        shapes.0[0] = 1;
        for (tile, rows) in [(0, LEFT_ROWS as u8), (1, LEFT_ROWS as u8), (2, 16)] {
            shapes.0[16 + 2 * tile] = 64;
            shapes.0[48 + tile] = rows;
        }
        shapes
    }
    const LEFT_ROWS: usize = 7;

    fn amx_int8() -> bool {
        let (a, b, mut sums) = (bytes::<1024>(7), bytes::<1024>(8), Block([0i32; 256]));
        let shapes = tile_shapes();
        // SAFETY: called where the CPU reports amx-int8 and the system gave tile state; 64 bytes of
        // shapes, and at least rows × 64 bytes behind each tile's pointer.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]", "tilezero tmm0",
                "tileloadd tmm1, [{a} + {stride}]", "tileloadd tmm2, [{b} + {stride}]",
                "tdpbusd tmm0, tmm1, tmm2", "tilestored [{s} + {stride}], tmm0", "tilerelease",
                shapes = in(reg) &shapes, stride = in(reg) 64usize,
                s = in(reg) &mut sums, a = in(reg) &a, b = in(reg) &b,
            );
        }
        // Row k of the right tile has four neighbours in K for each of its 16 columns.
        let term = |row: usize, column: usize, k: usize| {
            let right = b.0[k / 4 * 64 + column * 4 + k % 4] as i8;
            i32::from(a.0[row * 64 + k]) * i32::from(right)
        };
        let cell = |i: usize| (0..64).map(|k| term(i / 16, i % 16, k)).sum::<i32>();
        let expected: [i32; LEFT_ROWS * 16] = std::array::from_fn(cell);
        verdict("tdpbusd", count(&sums.0, &expected))
    }

    fn amx_bf16() -> bool {
        let (a, b, mut sums) = (halves::<512>(9), halves::<512>(10), Block([0f32; 256]));
        let shapes = tile_shapes();
        // SAFETY: as in `amx_int8`, where the CPU reports amx-bf16.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]", "tilezero tmm0",
                "tileloadd tmm1, [{a} + {stride}]", "tileloadd tmm2, [{b} + {stride}]",
                "tdpbf16ps tmm0, tmm1, tmm2", "tilestored [{s} + {stride}], tmm0", "tilerelease",
                shapes = in(reg) &shapes, stride = in(reg) 64usize,
                s = in(reg) &mut sums, a = in(reg) &a, b = in(reg) &b,
            );
        }
        let term = |row: usize, column: usize, k: usize| {
            widen(a.0[row * 32 + k]) * widen(b.0[k / 2 * 32 + column * 2 + k % 2])
        };
        let cell = |i: usize| (0..32).map(|k| term(i / 16, i % 16, k)).sum::<f32>();
        let expected: [f32; LEFT_ROWS * 16] = std::array::from_fn(cell);
        verdict("tdpbf16ps", count_near(&sums.0, &expected))
    }

    /// Bits of CPUID leaf 7 for tiles, which `is_x86_feature_detected!` does not know yet on stable.
    fn amx(bit: u32) -> bool {
        let leaf = std::arch::x86_64::__cpuid_count(7, 0);
        let (request, tile_data, answer): (u64, u64, i64);
        (request, tile_data) = (0x1023, 18);
        // SAFETY: arch_prctl(ARCH_REQ_XCOMP_PERM, 18) touches no memory of ours.
        unsafe {
            asm!("syscall", inout("rax") 158i64 => answer, in("rdi") request, in("rsi") tile_data,
                out("rcx") _, out("r11") _);
        }
        leaf.edx >> bit & 1 == 1 && answer == 0
    }

    pub type Probe = (&'static str, bool, fn() -> bool);
    pub fn probes() -> Vec<Probe> {
        vec![
            ("avx512bf16", is_x86_feature_detected!("avx512bf16"), avx512_bf16),
            ("avx512vnni", is_x86_feature_detected!("avx512vnni"), avx512_vnni),
            ("avxvnni", is_x86_feature_detected!("avxvnni"), avx_vnni),
            ("amx-int8", amx(25), amx_int8),
            ("amx-bf16", amx(22), amx_bf16),
        ]
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use super::*;
    use std::arch::{asm, is_aarch64_feature_detected};

    /// Runs one instruction on `v0` (the sums), `v1` (left) and `v2` (right), from and to memory.
    ///
    /// # Safety of each use
    /// The CPU reports the feature, and the three pointers are to 16 bytes each.
    macro_rules! execute {
        ($extension:literal, $instruction:literal, $sums:expr, $left:expr, $right:expr) => {
            asm!(
                $extension, "ldr q0, [{s}]", "ldr q1, [{a}]", "ldr q2, [{b}]",
                $instruction, "str q0, [{s}]",
                s = in(reg) &mut $sums, a = in(reg) &$left, b = in(reg) &$right,
                out("v0") _, out("v1") _, out("v2") _,
            )
        };
    }

    fn neon() -> bool {
        let (a, b) = (halves::<4>(1).0.map(widen), halves::<4>(2).0.map(widen));
        let mut sums = Block([0.25f32; 4]);
        // SAFETY: see `execute`.
        unsafe { execute!("", "fmla v0.4s, v1.4s, v2.4s", sums, a, b) };
        let expected: [f32; 4] = std::array::from_fn(|i| a[i].mul_add(b[i], 0.25));
        verdict("fmla", count(&sums.0, &expected))
    }

    fn dotprod() -> bool {
        let (a, b) = (bytes::<16>(3), bytes::<16>(4));
        let (mut signed, mut unsigned) = (Block([0i32; 4]), Block([0i32; 4]));
        // SAFETY: see `execute`.
        unsafe {
            execute!(".arch_extension dotprod", "sdot v0.4s, v1.16b, v2.16b", signed, a, b);
            execute!(".arch_extension dotprod", "udot v0.4s, v1.16b, v2.16b", unsigned, a, b);
        }
        let s: [i32; 4] =
            dot(&a.0, &b.0, 4, |a: u8, b: u8| i32::from(a as i8) * i32::from(b as i8));
        let u: [i32; 4] = dot(&a.0, &b.0, 4, |a: u8, b: u8| i32::from(a) * i32::from(b));
        verdict("sdot", count(&signed.0, &s)) & verdict("udot", count(&unsigned.0, &u))
    }

    /// Two rows of `depth` by two columns of `depth`, as the matrix instructions have them.
    fn two_by_two<T>(depth: usize, term: impl Fn(usize, usize) -> T) -> [T; 4]
    where
        T: std::iter::Sum,
    {
        std::array::from_fn(|i| {
            (0..depth).map(|k| term(i / 2 * depth + k, i % 2 * depth + k)).sum()
        })
    }

    fn i8mm() -> bool {
        let (a, b) = (bytes::<16>(5), bytes::<16>(6));
        let (mut signed, mut mixed) = (Block([0i32; 4]), Block([0i32; 4]));
        // SAFETY: see `execute`.
        unsafe {
            execute!(".arch_extension i8mm", "smmla v0.4s, v1.16b, v2.16b", signed, a, b);
            execute!(".arch_extension i8mm", "usmmla v0.4s, v1.16b, v2.16b", mixed, a, b);
        }
        let s = two_by_two(8, |i, j| i32::from(a.0[i] as i8) * i32::from(b.0[j] as i8));
        let m = two_by_two(8, |i, j| i32::from(a.0[i]) * i32::from(b.0[j] as i8));
        verdict("smmla", count(&signed.0, &s)) & verdict("usmmla", count(&mixed.0, &m))
    }

    fn bf16() -> bool {
        let (a, b) = (halves::<8>(7), halves::<8>(8));
        let (mut pairs, mut matrix) = (Block([0f32; 4]), Block([0f32; 4]));
        // SAFETY: see `execute`.
        unsafe {
            execute!(".arch_extension bf16", "bfdot v0.4s, v1.8h, v2.8h", pairs, a, b);
            execute!(".arch_extension bf16", "bfmmla v0.4s, v1.8h, v2.8h", matrix, a, b);
        }
        let product = |i: usize, j: usize| widen(a.0[i]) * widen(b.0[j]);
        let p: [f32; 4] =
            std::array::from_fn(|i| product(2 * i, 2 * i) + product(2 * i + 1, 2 * i + 1));
        let m = two_by_two(4, product);
        verdict("bfdot", count_near(&pairs.0, &p)) & verdict("bfmmla", count_near(&matrix.0, &m))
    }

    pub type Probe = (&'static str, bool, fn() -> bool);
    pub fn probes() -> Vec<Probe> {
        vec![
            ("neon", is_aarch64_feature_detected!("neon"), neon),
            ("dotprod", is_aarch64_feature_detected!("dotprod"), dotprod),
            ("i8mm", is_aarch64_feature_detected!("i8mm"), i8mm),
            ("bf16", is_aarch64_feature_detected!("bf16"), bf16),
        ]
    }
}

fn main() -> std::process::ExitCode {
    let mut good = true;
    for (feature, there, run) in machine::probes() {
        if there {
            good &= run();
        } else {
            println!("{feature}: this CPU does not report it");
            good = false;
        }
    }
    if good { std::process::ExitCode::SUCCESS } else { std::process::ExitCode::FAILURE }
}
