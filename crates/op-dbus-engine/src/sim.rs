//! The simulator: a backend without a model, for tests, for trying clients, and for faults.

use crate::backend::{Backend, BackendError, Description};
use crate::batch::Batch;

pub use crate::faults::{Faults, Faulty};

/// Length of the vectors that the service simulates: that of the smaller levels.
pub const DIMENSIONS: usize = 384;

/// Unit vectors that depend on nothing but a row's token ids: the same text gives the same vector,
/// another text an unrelated one. They mean nothing.
#[derive(Debug)]
pub struct SimBackend {
    description: Description,
}

impl SimBackend {
    /// A simulator with vectors of length `dimensions`.
    pub fn new(dimensions: usize) -> Self {
        Self::of("sim", dimensions)
    }

    /// The same under the name of a provider.
    pub fn of(provider: &str, dimensions: usize) -> Self {
        let description = Description {
            provider: provider.to_owned(),
            device: format!("{provider}:0"),
            devices: 1,
            precision: "f32".into(),
            engine: "sim".into(),
            dimensions,
            pid: std::process::id(),
            ..Description::default()
        };
        Self { description }
    }
}

impl Backend for SimBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        let vectors = out.chunks_mut(self.description.dimensions.max(1));
        batch.texts().zip(vectors).for_each(|(ids, vector)| fill(ids, vector));
        Ok(())
    }
}

fn fill(ids: &[i32], vector: &mut [f32]) {
    let seed = ids.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, id| {
        (hash ^ u64::from(id.cast_unsigned())).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = SplitMix64(seed);
    vector.fill_with(|| (random.next_u64() >> 40) as f32 / (1u32 << 23) as f32 - 1.0);
    crate::vector::normalise(vector);
}

/// Numbers that look random and are the same in every run; spread evenly even for neighbouring seeds.
pub(crate) struct SplitMix64(pub u64);

impl SplitMix64 {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(ids: &[i32], lengths: &[i32]) -> Vec<f32> {
        let mut out = vec![0.0; lengths.len() * 8];
        let batch = Batch { ids, lengths };
        SimBackend::new(8).run(&batch, &mut out).unwrap();
        out
    }

    #[test]
    fn a_vector_depends_on_its_row_only() {
        let alone = run(&[1, 2], &[2]);
        let batch = run(&[7, 8, 9, 1, 2], &[3, 2]);
        assert_eq!(alone, batch[8..]);
        assert_ne!(alone, batch[..8]);
        let norm: f32 = alone.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-5);
    }
}
