//! What the vectors of a call look like, and where they go.

use crate::call::RowSink;
use crate::vector;

/// What the vectors of a call look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Length of the backend's vectors.
    pub full: usize,
    /// Length of the caller's vectors.
    pub dimensions: usize,
    /// Whether a vector is normalised again after a cut or a mean.
    pub normalise: bool,
    /// Whether the backend's own vectors need normalising.
    pub normalise_all: bool,
}

/// Where the vectors go.
#[derive(Debug)]
pub(crate) enum Out {
    /// Into the reply, `[rows, dimensions]`.
    Reply(Vec<f32>),
    /// To the caller as they come. The buffer holds a vector that is made of the backend's.
    Sink(RowSink, Vec<f32>),
}

impl Out {
    pub const NONE: Self = Self::Reply(Vec::new());

    /// Whether vectors go nowhere, as the sink has panicked.
    pub fn is_broken(&self) -> bool {
        matches!(self, Self::Sink(sink, _) if sink.has_panicked())
    }

    /// The backend's vector of a text, as the caller gets it. A sink that wants it as it is gets that
    /// very one.
    pub fn vector<'a>(&'a mut self, text: u32, vector: &'a [f32], output: Output) -> &'a [f32] {
        match self {
            Self::Sink(sink, _) if output.is_as_computed() => {
                sink.take(text, vector);
                vector
            }
            _ => self.made(text, output, |target| output.write(vector, target)),
        }
    }

    /// The backend's vectors of texts that follow one another, as the caller gets them.
    pub fn vectors(&mut self, first: u32, vectors: &[f32], output: Output) {
        match self {
            Self::Sink(sink, _) if output.is_as_computed() => sink.take(first, vectors),
            Self::Reply(all) if output.is_as_computed() => {
                let start = first as usize * output.dimensions;
                all[start..start + vectors.len()].copy_from_slice(vectors);
            }
            _ => {
                for (vector, text) in vectors.chunks_exact(output.full.max(1)).zip(first..) {
                    self.vector(text, vector, output);
                }
            }
        }
    }

    /// The mean of a text's windows, as the caller gets it.
    pub fn mean(&mut self, text: u32, mean: &[f32], output: Output) -> &[f32] {
        self.made(text, output, |target| output.write_mean(mean, target))
    }

    /// A vector that another caller got before, and with the same output.
    pub fn kept(&mut self, text: u32, vector: &[f32], output: Output) {
        match self {
            Self::Reply(all) => row(all, text, output).copy_from_slice(vector),
            Self::Sink(sink, _) => sink.take(text, vector),
        }
    }

    /// A vector that `write` makes where it belongs.
    fn made(&mut self, text: u32, output: Output, write: impl FnOnce(&mut [f32])) -> &[f32] {
        match self {
            Self::Reply(all) => {
                let target = row(all, text, output);
                write(target);
                target
            }
            Self::Sink(sink, own) => {
                write(own);
                sink.take(text, own);
                own
            }
        }
    }
}

fn row(all: &mut [f32], text: u32, output: Output) -> &mut [f32] {
    let start = text as usize * output.dimensions;
    &mut all[start..start + output.dimensions]
}

impl Output {
    /// Whether the caller's vectors are the backend's.
    fn is_as_computed(self) -> bool {
        self.dimensions == self.full && !self.normalise_all
    }

    fn write(self, vector: &[f32], target: &mut [f32]) {
        target.copy_from_slice(&vector[..self.dimensions]);
        let cut = self.dimensions < self.full;
        if self.normalise_all || (cut && self.normalise) {
            vector::normalise(target);
        }
    }

    fn write_mean(self, mean: &[f32], target: &mut [f32]) {
        target.copy_from_slice(&mean[..self.dimensions]);
        if self.normalise {
            vector::normalise(target);
        }
    }
}
