//! Kernels: everything that is compiled once per instruction set. The only unsafe arithmetic here.
//!
//! A [`Kernels`] is a table of functions for one instruction set and one precision. The functions
//! are generic; an instruction set implements [`simd::Simd`] and the steps of [`step`], and names
//! the features that its copies are compiled for. Nothing here knows of models, and nothing outside
//! `core` and `std::arch` is used, so that the tests of this folder build for any target.

pub(crate) mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
pub(crate) mod norm;
pub(crate) mod portable;
pub(crate) mod product;
mod simd;
mod step;

use attention::Attention;
use norm::Norm;
use product::{Product, Rows};

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
    ($(#[$features:meta])*, $tiles:ty, $element:expr, $step:expr, $input:ty,
     $attention:ty, $rows:literal) => {{
        type Vectors = <$tiles as product::Tiles>::S;
        $(#[$features])*
        unsafe fn multiply(job: &Product) {
            // SAFETY: the contract of the table.
            unsafe { product::multiply::<$tiles>(job) }
        }
        $(#[$features])*
        unsafe fn prepare(job: &Rows) {
            // SAFETY: the contract of the table.
            unsafe { product::prepare::<$tiles>(job) }
        }
        $(#[$features])*
        unsafe fn attend(job: &Attention) {
            // SAFETY: the contract of the table.
            unsafe { attention::attend::<$attention, $rows>(job) }
        }
        $(#[$features])*
        unsafe fn normalize(job: &Norm) {
            // SAFETY: the contract of the table.
            unsafe { norm::normalize::<Vectors>(job) }
        }
        $(#[$features])*
        unsafe fn spin(repeats: usize) -> f32 {
            // SAFETY: the contract of the table.
            unsafe { <$tiles as product::Tiles>::spin(repeats) }
        }
        Kernels {
            layout: Layout {
                weight: $element,
                panel: <$tiles as product::Tiles>::PANEL,
                step: $step,
                input_bytes: size_of::<$input>(),
            },
            multiply,
            prepare,
            attend,
            normalize,
            spin,
            spin_operations: 2 * product::SPIN_ROWS * <$tiles as product::Tiles>::PANEL * $step,
        }
    }};
}

/// The kernels of `precision` on `isa`, which must be [available](Isa::is_available).
pub(crate) fn kernels(isa: Isa, precision: Precision) -> Kernels {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2_kernels(precision),
        _ => portable_kernels(precision),
    }
}

fn portable_kernels(precision: Precision) -> Kernels {
    use portable::{Bf16, F32, Int8};
    use product::{FloatTiles, IntTiles};
    match precision {
        Precision::F32 => table!(, FloatTiles<F32, 4>, Element::F32, 1, f32, F32, 4),
        Precision::Bf16 => table!(, FloatTiles<Bf16, 4>, Element::Bf16, 1, f32, F32, 4),
        Precision::Int8 => table!(, IntTiles<Int8, 4>, Element::I8, 1, u8, F32, 4),
    }
}

#[cfg(target_arch = "x86_64")]
fn avx2_kernels(precision: Precision) -> Kernels {
    use avx2::{Bf16, F32, Int8};
    use product::{FloatTiles, IntTiles};
    macro_rules! avx2 {
        ($($rest:tt)*) => { table!(#[target_feature(enable = "avx2,fma")], $($rest)*) };
    }
    match precision {
        Precision::F32 => avx2!(FloatTiles<F32, 6>, Element::F32, 1, f32, F32, 6),
        Precision::Bf16 => avx2!(FloatTiles<Bf16, 6>, Element::Bf16, 1, f32, F32, 6),
        Precision::Int8 => avx2!(IntTiles<Int8, 6>, Element::I8, 2, i16, F32, 6),
    }
}
