//! Kernels: everything that is compiled once per instruction set. The only unsafe arithmetic here.
//!
//! A [`Kernels`] is a table of functions for one instruction set and one precision. The functions
//! are generic; an instruction set implements [`simd::Simd`] and the steps of [`step`], and names
//! the features that its copies are compiled for. Nothing here knows of models, and nothing outside
//! `core` and `std::arch` is used, so that the tests of this folder build for any target.

#![allow(
    unsafe_op_in_unsafe_fn,
    reason = "below are arithmetic and instructions, each function under the one contract of its trait"
)]

mod activation;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) mod amx;
pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_dot;
#[cfg(target_arch = "x86_64")]
mod avx_vnni;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_dot;
#[cfg(target_arch = "aarch64")]
mod neon_matrix;
pub(crate) mod norm;
pub(crate) mod portable;
pub(crate) mod product;
mod simd;
mod step;
mod tiles;

use attention::Attention;
use norm::Norm;
use product::{Product, Rows, Tiles};
use tiles::{FloatTiles, IntTiles};

use crate::isa::Isa;
use crate::precision::Precision;

/// How weights and inputs lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Element of the packed weights.
    pub weight: Element,
    /// Columns of a panel.
    pub panel: usize,
    /// Inputs of a step.
    pub step: usize,
    /// Bytes of one input.
    pub input_bytes: usize,
}

/// Element of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    /// 32-bit float.
    F32,
    /// bfloat16.
    Bf16,
    /// Integers of -127 to 127, with a scale per column and block.
    I8,
}

/// The functions of one instruction set and precision.
///
/// All of them may only be called on a CPU that has the instruction set, and ask of their pointers
/// what the generic function behind them says.
#[derive(Clone, Copy)]
pub(crate) struct Kernels {
    /// How weights and inputs lie in memory.
    pub layout: Layout,
    /// [`product::multiply`].
    pub multiply: unsafe fn(&Product),
    /// [`product::prepare`].
    pub prepare: unsafe fn(&Rows),
    /// [`attention::attend`].
    pub attend: unsafe fn(&Attention),
    /// [`norm::normalize`].
    pub normalize: unsafe fn(&Norm),
    /// [`product::Tiles::spin`].
    pub spin: unsafe fn(usize) -> f32,
    /// Operations, two per multiply-add, of one repeat of `spin`.
    pub spin_operations: usize,
}

/// A table of the generic functions, compiled for `$features`.
macro_rules! table {
    ($(#[$features:meta])*, $tiles:ty, $attention:ty, $rows:literal) => {{
        type T = $tiles;
        $(#[$features])*
        unsafe fn multiply(job: &Product) {
            // SAFETY: the contract of the table.
            unsafe { product::multiply::<T>(job) }
        }
        $(#[$features])*
        unsafe fn prepare(job: &Rows) {
            // SAFETY: the contract of the table.
            unsafe { product::prepare::<T>(job) }
        }
        $(#[$features])*
        unsafe fn attend(job: &Attention) {
            // SAFETY: the contract of the table.
            unsafe { attention::attend::<$attention, $rows>(job) }
        }
        $(#[$features])*
        unsafe fn normalize(job: &Norm) {
            // SAFETY: the contract of the table.
            unsafe { norm::normalize::<<T as Tiles>::S>(job) }
        }
        $(#[$features])*
        unsafe fn spin(repeats: usize) -> f32 {
            // SAFETY: the contract of the table.
            unsafe { T::spin(repeats) }
        }
        Kernels {
            layout: Layout {
                weight: T::WEIGHT,
                panel: T::PANEL,
                step: T::STEP,
                input_bytes: T::INPUT_BYTES,
            },
            multiply,
            prepare,
            attend,
            normalize,
            spin,
            spin_operations: 2 * T::ROWS * T::PANEL * T::STEP,
        }
    }};
}

/// The kernels of `precision` on `isa`, which must be [available](Isa::is_available).
pub(crate) fn kernels(isa: Isa, precision: Precision) -> Kernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2_kernels(precision),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => avx_vnni_kernels(precision),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512_kernels(precision),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni => avx512_vnni_kernels(precision),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => avx512_bf16_kernels(precision),
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        Isa::Amx => amx_kernels(precision),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon_kernels(precision),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonDotprod => neon_dotprod_kernels(precision),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonI8mm => neon_i8mm_kernels(precision),
        #[cfg(target_arch = "aarch64")]
        Isa::NeonBf16 => neon_bf16_kernels(precision),
        _ => portable_kernels(precision),
    }
}

fn portable_kernels(precision: Precision) -> Kernels {
    use portable::{Bf16, F32, Int8};
    match precision {
        Precision::F32 => table!(, FloatTiles<F32, 4>, F32, 4),
        Precision::Bf16 => table!(, FloatTiles<Bf16, 4>, F32, 4),
        Precision::Int8 => table!(, IntTiles<Int8, 4>, F32, 4),
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2_kernels(precision: Precision) -> Kernels {
    use avx2::{Bf16, F32, Int8};
    macro_rules! avx2 {
        ($($rest:tt)*) => { table!(#[target_feature(enable = "avx2,fma")], $($rest)*) };
    }
    match precision {
        Precision::F32 => avx2!(FloatTiles<F32, 6>, F32, 6),
        Precision::Bf16 => avx2!(FloatTiles<Bf16, 6>, F32, 6),
        Precision::Int8 => avx2!(IntTiles<Int8, 5>, F32, 6),
    }
}

#[cfg(target_arch = "x86_64")]
fn avx_vnni_kernels(precision: Precision) -> Kernels {
    use avx_vnni::Int8;
    use avx2::F32;
    match precision {
        Precision::F32 | Precision::Bf16 => avx2_kernels(precision),
        Precision::Int8 => {
            table!(#[target_feature(enable = "avx2,fma,avxvnni")], IntTiles<Int8, 6>, F32, 6)
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512_kernels(precision: Precision) -> Kernels {
    use avx512::{Bf16, F32, Int8};
    macro_rules! avx512 {
        ($($rest:tt)*) => {
            table!(#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")], $($rest)*)
        };
    }
    match precision {
        Precision::F32 => avx512!(FloatTiles<F32, 8>, F32, 8),
        Precision::Bf16 => avx512!(FloatTiles<Bf16, 8>, F32, 8),
        Precision::Int8 => avx512!(IntTiles<Int8, 8>, F32, 8),
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512_vnni_kernels(precision: Precision) -> Kernels {
    use avx512::F32;
    use avx512_dot::Int8;
    match precision {
        Precision::F32 | Precision::Bf16 => avx512_kernels(precision),
        Precision::Int8 => table!(
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")],
            IntTiles<Int8, 8>, F32, 8
        ),
    }
}

/// A table for AVX-512 BF16, and for AMX: the compiler needs to know no feature for tiles, it is told
/// their instructions.
#[cfg(target_arch = "x86_64")]
macro_rules! avx512_bf16 {
    ($($rest:tt)*) => {
        table!(
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")],
            $($rest)*
        )
    };
}

#[cfg(target_arch = "x86_64")]
fn avx512_bf16_kernels(precision: Precision) -> Kernels {
    use avx512_dot::{Bf16, Int8};
    match precision {
        Precision::F32 => avx512_kernels(precision),
        Precision::Bf16 => avx512_bf16!(FloatTiles<Bf16, 8>, Bf16, 8),
        Precision::Int8 => avx512_bf16!(IntTiles<Int8, 8>, Bf16, 8),
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn amx_kernels(precision: Precision) -> Kernels {
    let vectors = avx512_bf16_kernels(precision);
    let spin_operations = 2 * amx::SPIN * vectors.layout.step;
    let tiles = Kernels { attend: amx::attend, spin_operations, ..vectors };
    match precision {
        Precision::F32 => vectors,
        Precision::Bf16 => Kernels { multiply: amx::multiply_bf16, spin: amx::spin_bf16, ..tiles },
        Precision::Int8 => Kernels { multiply: amx::multiply_int8, spin: amx::spin_int8, ..tiles },
    }
}

#[cfg(target_arch = "aarch64")]
fn neon_kernels(precision: Precision) -> Kernels {
    use neon::{Bf16, F32, Int8};
    match precision {
        Precision::F32 => table!(, FloatTiles<F32, 8>, F32, 8),
        Precision::Bf16 => table!(, FloatTiles<Bf16, 8>, F32, 8),
        Precision::Int8 => table!(, IntTiles<Int8, 8>, F32, 8),
    }
}

#[cfg(target_arch = "aarch64")]
fn neon_dotprod_kernels(precision: Precision) -> Kernels {
    use neon::F32;
    use neon_dot::Int8;
    match precision {
        Precision::F32 | Precision::Bf16 => neon_kernels(precision),
        Precision::Int8 => {
            table!(#[target_feature(enable = "neon,dotprod")], IntTiles<Int8, 8>, F32, 8)
        }
    }
}

#[cfg(target_arch = "aarch64")]
fn neon_i8mm_kernels(precision: Precision) -> Kernels {
    use neon::F32;
    use neon_matrix::Int8;
    match precision {
        Precision::F32 | Precision::Bf16 => neon_kernels(precision),
        Precision::Int8 => {
            table!(#[target_feature(enable = "neon,i8mm")], IntTiles<Int8, 8>, F32, 8)
        }
    }
}

#[cfg(target_arch = "aarch64")]
fn neon_bf16_kernels(precision: Precision) -> Kernels {
    use neon_matrix::{Bf16, Int8};
    macro_rules! bf16 {
        ($($rest:tt)*) => { table!(#[target_feature(enable = "neon,i8mm,bf16")], $($rest)*) };
    }
    match precision {
        Precision::F32 => neon_kernels(precision),
        Precision::Bf16 => bf16!(FloatTiles<Bf16, 8>, neon_dot::Bf16, 8),
        Precision::Int8 => bf16!(IntTiles<Int8, 8>, neon_dot::Bf16, 8),
    }
}
