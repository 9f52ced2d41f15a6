//! How large the inputs of every product get, seen on some texts: what smoothing needs to know.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The texts, one a line: of many kinds, because a value that is large in one kind of text only is
/// still to be represented.
const TEXTS: &str = include_str!("calibration.txt");

/// Texts that a model is calibrated with.
pub fn calibration_texts() -> impl Iterator<Item = &'static str> {
    TEXTS.lines().filter(|line| !line.is_empty())
}

/// A product, by what goes into it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Input {
    /// Queries, keys and values.
    Attention,
    /// Projection of the attention's result.
    Output,
    /// First product of the feed-forward network.
    Up,
    /// Second product of the feed-forward network.
    Down,
}

/// Largest magnitude of each input of each product.
#[derive(Clone, Debug)]
pub(crate) struct Maxima(Vec<[Vec<f32>; 4]>);

impl Maxima {
    /// The inputs of one product of one layer.
    pub fn of(&self, layer: usize, input: Input) -> &[f32] {
        &self.0[layer][input as usize]
    }
}

/// Notes the largest inputs while texts are computed.
#[derive(Debug)]
pub(crate) struct Recorder(Mutex<Maxima>);

impl Recorder {
    /// A recorder for so many layers, with nothing seen.
    pub fn new(layers: usize, hidden: usize, inner: usize) -> Self {
        let layer = [hidden, hidden, hidden, inner].map(|inputs| vec![0.0; inputs]);
        Self(Mutex::new(Maxima(vec![layer; layers])))
    }

    /// Notes one row of inputs.
    pub fn see(&self, layer: usize, input: Input, row: &[f32]) {
        let most = &mut self.lock().0[layer][input as usize];
        most.iter_mut().zip(row).for_each(|(most, value)| *most = most.max(value.abs()));
    }

    /// What was seen.
    pub fn maxima(&self) -> Maxima {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Maxima> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
