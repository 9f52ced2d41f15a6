//! What a backend's vectors have to be: those of one that is trusted.

use crate::config::BatchLimits;

/// The vector of the engine's own text, as a backend that is trusted has computed it
/// ([`reference`](crate::reference)).
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The vector, of the model's dimensions.
    pub vector: Vec<f32>,
    /// What is asked of a backend besides before it gets any caller's text.
    pub sample: Sample,
    /// The least cosine with each of them.
    pub cosine_min: f32,
}

/// Batches of texts, one of unequal lengths and one of a text as long as the model reads, with the vector of each
/// as a backend that is trusted has computed it alone. One that counts padding, cuts what it is sent, or computes
/// other shapes wrong than that of a short text, gives others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample(pub(crate) Vec<Vec<SampleText>>);

/// One text of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleText {
    pub ids: Box<[i32]>,
    pub vector: Vec<f32>,
}

impl Sample {
    /// Its batches under these limits: what is too large for them is computed row by row.
    pub(crate) fn batches(&self, limits: &BatchLimits) -> impl Iterator<Item = &[SampleText]> {
        self.0.iter().flat_map(|batch| {
            let rows = batch.len();
            let longest = batch.iter().map(|known| known.ids.len()).max().unwrap_or(0);
            let fits = rows <= limits.rows_max && rows * longest <= limits.tokens_max;
            batch.chunks(if fits { rows.max(1) } else { 1 })
        })
    }
}

impl Reference {
    /// Least cosine of the vectors of 32-bit floats on an accelerator with those of the CPU; providers
    /// may multiply in TF32 or with weights of 16 bits.
    pub const F32_COSINE_MIN: f32 = 0.9995;

    /// Least cosine of the vectors of `f16` with those of 32-bit floats on the CPU. Operands and results
    /// of products have 11 bits there, and providers may sum in as many; what is wrong with a provider
    /// shows in the first digits.
    const F16_COSINE_MIN: f32 = 0.999;

    /// Least cosine of a provider's vectors with those of 32-bit floats on the CPU, by whether `f16` was asked for.
    pub fn cosine_min_of(f16: bool) -> f32 {
        if f16 { Self::F16_COSINE_MIN } else { Self::F32_COSINE_MIN }
    }

    /// A vector, to compare others with alone.
    pub fn new(vector: Vec<f32>, cosine_min: f32) -> Self {
        Self { vector, sample: Sample::default(), cosine_min }
    }

    /// Compares a vector with this one, in direction and in length.
    ///
    /// # Errors
    /// One clause with the cosine, or the ratio of lengths, that was seen.
    pub fn check(&self, vector: &[f32]) -> Result<(), String> {
        self.compare(&self.vector, vector)
    }

    /// Compares a vector with a known one.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn compare(&self, known: &[f32], found: &[f32]) -> Result<(), String> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let (own, length) = (dot(found, found).sqrt(), dot(known, known).sqrt());
        let cosine = dot(found, known) / (own * length);
        // Not a number is not enough either.
        if found.len() == known.len() && cosine >= self.cosine_min {
            let longer = own / length;
            return match (0.98..=1.02).contains(&longer) {
                true => Ok(()),
                false => Err(format!(
                    "its vectors are {longer:.3} times as long as those of the model; check who \
                     normalises them"
                )),
            };
        }
        Err(format!(
            "its vectors are not those of the model: the cosine with a reference is {cosine:.6}, \
             and at least {} is expected",
            self.cosine_min
        ))
    }
}
