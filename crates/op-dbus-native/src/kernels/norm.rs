//! Layer normalisation of rows.

use super::simd::{Simd, each};

/// Rows to normalise.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    /// The first row.
    pub from: *const f32,
    /// Where its result goes; may be `from`.
    pub to: *mut f32,
    /// Floats from one row to the next, in both: a multiple of every vector.
    pub stride: usize,
    /// Rows.
    pub rows: usize,
    /// Values in a row; what lies between them and the end of the last vector is zero.
    pub columns: usize,
    /// Added to the variance.
    pub epsilon: f32,
    /// `[columns]`, padded with zeros to whole vectors.
    pub scale: *const f32,
    /// As `scale`.
    pub shift: *const f32,
}

/// Normalises each row to mean 0 and variance 1, then scales and shifts its columns.
///
/// # Safety
/// The CPU has the instruction set; the pointers are valid for what the sizes say.
#[inline(always)]
pub(crate) unsafe fn normalize<S: Simd>(job: &Norm) {
    let count = job.columns as f32;
    let whole = job.columns / S::LANES * S::LANES;
    for row in 0..job.rows {
        let from = job.from.add(row * job.stride);
        let to = job.to.add(row * job.stride);
        let mut sum = S::splat(0.0);
        each!(S, at in job.columns, { sum = S::add(sum, S::load(from.add(at))) });
        let mean = S::sum(sum) / count;
        let middle = S::splat(mean);
        let mut squares = S::splat(0.0);
        each!(S, at in whole, {
            let apart = S::sub(S::load(from.add(at)), middle);
            squares = S::fma(apart, apart, squares);
        });
        let mut squares = S::sum(squares);
        for at in whole..job.columns {
            let apart = *from.add(at) - mean;
            squares += apart * apart;
        }
        let inverse = S::splat(1.0 / (squares / count + job.epsilon).sqrt());
        each!(S, at in job.columns, {
            let apart = S::mul(S::sub(S::load(from.add(at)), middle), inverse);
            let value = S::fma(apart, S::load(job.scale.add(at)), S::load(job.shift.add(at)));
            S::store(to.add(at), value);
        });
    }
}
