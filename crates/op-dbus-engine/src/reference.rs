//! What a backend's vectors have to be: those of one that is trusted.

use crate::config::BatchLimits;

/// The vector of the engine's own text, as a backend that is trusted has computed it
/// ([`reference`](crate::reference)).
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// The vector, of the model's dimensions.
    pub vector: Vec<f32>,
    /// What is asked of a backend besides before it is trusted; none where the text is enough.
    pub sample: Option<Sample>,
    /// The least cosine with each of them.
    pub cosine_min: f32,
}

/// Texts of unequal length, one of them as long as the model reads, and the vector of each as a backend
/// that is trusted has computed it alone. One that counts padding, or cuts what it is sent, gives others.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample(pub(crate) Vec<Known>);

/// One text of a sample.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub ids: Box<[i32]>,
    pub vector: Vec<f32>,
}

impl Sample {
    /// How many rows of it may be in one batch: all, or else one.
    pub(crate) fn rows_together(&self, limits: &BatchLimits) -> usize {
        let rows = self.0.len();
        let longest = self.0.iter().map(|known| known.ids.len()).max().unwrap_or(0);
        match rows <= limits.rows_max && rows * longest <= limits.tokens_max {
            true => rows.max(1),
            false => 1,
        }
    }
}

impl Reference {
    /// Least cosine of the vectors of 32-bit floats on an accelerator with those of the CPU; providers
    /// may multiply in TF32 or with weights of 16 bits.
    pub const F32_COSINE_MIN: f32 = 0.9995;

    /// Least cosine of the vectors of `f16` with those of 32-bit floats on the CPU. Operands and results
    /// of products have 11 bits there, and providers may sum in as many; what is wrong with a provider
    /// shows in the first digits.
    pub const F16_COSINE_MIN: f32 = 0.999;

    /// A vector that is enough by itself.
    pub fn new(vector: Vec<f32>, cosine_min: f32) -> Self {
        Self { vector, sample: None, cosine_min }
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
