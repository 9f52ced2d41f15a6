//! What the CPU and other devices can do at most, and what a model has to do for a text.

use std::path::Path;
use std::time::{Duration, Instant};

use op_dbus_embedder::backend::{self, Spec};
use op_dbus_engine::{Backend, BackendError, Batch};
use op_dbus_native::{Isa, Precision, peak};
use serde_json::Value;

use crate::cli::tell;

/// How long one measurement of the peak takes.
const TIME: Duration = Duration::from_millis(100);

/// Operations per second of all CPUs in `precision`, two for each multiplication with addition, on
/// operands that never leave the registers of the best instruction set. `None` for a precision that
/// there are no loops for.
pub fn measure(precision: &str) -> Option<f64> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let precision = precision.parse::<Precision>().ok()?;
    Some(peak::measure(Isa::best(), precision, threads, TIME))
}

/// Matrices that a device multiplies: as large as it does so fast, at most of the larger size.
const SIDES: (usize, usize) = (512, 8192);
/// Products of one batch: so many that its way to the device and back does not count.
const PRODUCTS: usize = 16;
/// A batch that takes this long keeps a device busy.
const BUSY: Duration = Duration::from_millis(20);
/// Tokens of one row.
const ROW: usize = 128;
/// Batches of one measurement.
const BATCHES: usize = 5;

/// Large products on a device, by the same provider with the same options as a worker's model.
pub struct Products {
    backend: Box<dyn Backend>,
    side: usize,
}

impl Products {
    /// As large as keep the device of `spec` busy; `None`, with a word on standard error, where it fails.
    pub fn on(spec: &Spec) -> Option<Self> {
        let made = Self::busy(spec);
        made.inspect_err(|error| tell(format_args!("no peak of {}: {error}", spec.provider))).ok()
    }

    fn busy(spec: &Spec) -> Result<Self, BackendError> {
        let (mut side, most) = SIDES;
        loop {
            let backend = backend::products(spec, side, PRODUCTS)?;
            let mut products = Self { backend, side };
            // The first batch prepares what later ones find.
            products.once()?;
            if products.once()? >= BUSY || side == most {
                return Ok(products);
            }
            side *= 2;
        }
    }

    /// Operations per second, two for each multiplication with addition: the median of some batches.
    pub fn measure(&mut self) -> Option<f64> {
        let times: Result<Vec<_>, _> = (0..BATCHES).map(|_| self.once()).collect();
        let untold = |error: &BackendError| tell(format_args!("no peak of a device: {error}"));
        let mut times = times.inspect_err(untold).ok()?;
        times.sort_unstable();
        let side = self.side as f64;
        Some(2.0 * side.powi(3) * PRODUCTS as f64 / times[BATCHES / 2].as_secs_f64())
    }

    /// How long one batch takes.
    fn once(&mut self) -> Result<Duration, BackendError> {
        let ids: Vec<i32> = (1..64).cycle().take(self.side).collect();
        let lengths = vec![ROW as i32; self.side / ROW];
        let mut out = vec![0.0; lengths.len() * self.side];
        let start = Instant::now();
        self.backend.run(&Batch { ids: &ids, lengths: &lengths }, &mut out)?;
        Ok(start.elapsed())
    }
}

/// What a model computes for a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Of the linear layers, for each token.
    per_token: f64,
    /// Of attention, for each pair of tokens.
    per_pair: f64,
}

impl Work {
    /// Reads the shape from a model's `config.json`; `None` when it is not an encoder's.
    pub fn of(config: &Path) -> Option<Self> {
        let config: Value = serde_json::from_slice(&std::fs::read(config).ok()?).ok()?;
        Self::of_shape(&config)
    }

    fn of_shape(config: &Value) -> Option<Self> {
        // The second name is DistilBERT's.
        let number = |names: [&str; 2]| names.iter().find_map(|name| config.get(name)?.as_f64());
        let hidden = number(["hidden_size", "dim"])?;
        let inner = number(["intermediate_size", "hidden_dim"])?;
        let layers = number(["num_hidden_layers", "n_layers"])?;
        Some(Self {
            per_token: 2.0 * layers * (4.0 * hidden * hidden + 2.0 * hidden * inner),
            per_pair: 4.0 * layers * hidden,
        })
    }

    /// Operations for texts of these many tokens.
    pub fn operations(self, tokens: impl Iterator<Item = usize>) -> f64 {
        let of = |tokens: f64| tokens * self.per_token + tokens * tokens * self.per_pair;
        tokens.map(|tokens| of(tokens as f64)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_the_built_in_models_is_what_is_published() {
        let medium = serde_json::json!({
            "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6
        });
        let work = Work::of_shape(&medium).unwrap();
        assert_eq!(work.per_token, 21_233_664.0);
        let distil = serde_json::json!({ "dim": 768, "hidden_dim": 3072, "n_layers": 6 });
        assert_eq!(Work::of_shape(&distil).unwrap().per_token, 84_934_656.0);
        // 62 tokens: attention adds 2.7 %.
        let ratio = work.operations([62].into_iter()) / (62.0 * work.per_token);
        assert!((ratio - 1.027).abs() < 0.001, "{ratio}");
        assert_eq!(Work::of_shape(&Value::Null), None);
    }
}
