//! Faults on purpose: a backend that fails, runs out of memory, lies, is slow, hangs or is lost.

use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::backend::{Backend, BackendError, Description, Footprint, Meanwhile};
use crate::batch::Batch;
use crate::usage::MemoryUse;

/// Faults to show on purpose. Batches are counted from 1 for each backend; the first is the check
/// that the engine runs on every backend it loads, so the first batch of a caller is number 2 at the
/// earliest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Report `Lost` on this batch and all later ones.
    pub die_on_batch: Option<u64>,
    /// Never return from this batch.
    pub hang_on_batch: Option<u64>,
    /// Answer with NaN on this batch.
    pub nan_on_batch: Option<u64>,
    /// Report `Failed` on this batch.
    pub fail_on_batch: Option<u64>,
    /// Report `Failed` on this batch and all later ones, as a driver does in whose context a kernel has failed.
    pub fail_from_batch: Option<u64>,
    /// Report `OutOfMemory` for batches with more rows than this.
    pub oom_above_rows: Option<usize>,
    /// Answer with other vectors for batches with more tokens than this.
    pub wrong_above_tokens: Option<usize>,
    /// Take this many microseconds for each token.
    pub us_per_token: Option<u64>,
    /// Report `Lost` on every batch that holds this token id: a text that kills its worker.
    pub die_on_token: Option<i32>,
}

impl Faults {
    /// What becomes of batch number `n` before it is computed.
    pub(crate) fn before(&self, n: u64, batch: &Batch<'_>) -> Result<(), BackendError> {
        if self.die_on_batch.is_some_and(|at| n >= at) {
            return Err(BackendError::Lost(format!("it was told to die on batch {n}")));
        }
        if let Some(token) = self.die_on_token.filter(|token| batch.ids.contains(token)) {
            return Err(BackendError::Lost(format!("it was told to die on token {token}")));
        }
        if self.fail_on_batch == Some(n) {
            return Err(BackendError::Failed(format!("it was told to fail batch {n}")));
        }
        if let Some(first) = self.fail_from_batch.filter(|first| n >= *first) {
            return Err(BackendError::Failed(format!("it was told to fail from batch {first} on")));
        }
        if let Some(limit) = self.oom_above_rows.filter(|limit| batch.rows() > *limit) {
            let rows = batch.rows();
            return Err(BackendError::OutOfMemory(format!("{rows} rows, {limit} fit")));
        }
        if let Some(us) = self.us_per_token {
            std::thread::sleep(Duration::from_micros(us.saturating_mul(batch.ids.len() as u64)));
        }
        while self.hang_on_batch == Some(n) {
            std::thread::park();
        }
        Ok(())
    }

    /// What becomes of the vectors of batch number `n`.
    pub(crate) fn after(&self, n: u64, batch: &Batch<'_>, out: &mut [f32]) {
        if self.nan_on_batch == Some(n) {
            out.fill(f32::NAN);
        }
        if self.wrong_above_tokens.is_some_and(|limit| batch.ids.len() > limit) {
            out.reverse();
        }
    }
}

/// Reads `oom_above_rows=4,die_on_batch=3`. The error is a sentence that names what was wrong.
impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Map::new();
        for word in text.split(',') {
            let (name, number) = fault(word)?;
            if faults.insert(name.to_owned(), number.into()).is_some() {
                return Err(format!("{text:?} names {name} twice; leave one of them out"));
            }
        }
        Self::deserialize(Value::Object(faults))
            .map_err(|error| format!("{text:?} names no faults: {error}"))
    }
}

/// The name of a fault, and its number.
fn fault(word: &str) -> Result<(&str, i64), String> {
    let (name, number) = word
        .split_once('=')
        .ok_or_else(|| format!("{word:?} is no `fault=number`, as oom_above_rows=4 is"))?;
    let name = name.trim();
    match number.trim().parse() {
        Ok(0) if name.ends_with("_batch") => {
            Err(format!("{word:?} names no batch: they are counted from 1"))
        }
        Ok(number) => Ok((name, number)),
        Err(_) => Err(format!("{word:?} has no number that counts")),
    }
}

/// A backend with faults.
pub struct Faulty {
    inner: Box<dyn Backend>,
    faults: Faults,
    batches: u64,
}

impl Faulty {
    /// `inner`, which computes what no fault is in the way of.
    pub fn new(inner: Box<dyn Backend>, faults: Faults) -> Self {
        Self { inner, faults, batches: 0 }
    }
}

impl Backend for Faulty {
    fn description(&self) -> &Description {
        self.inner.description()
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.run_while(batch, out, &mut |_| ())
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        self.batches += 1;
        self.faults.before(self.batches, batch)?;
        self.inner.run_while(batch, out, meanwhile)?;
        self.faults.after(self.batches, batch, out);
        Ok(())
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        self.inner.trim()
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_what_is_none_is_named() {
        let faults: Faults = "oom_above_rows=4, die_on_batch=3".parse().unwrap();
        let expected =
            Faults { oom_above_rows: Some(4), die_on_batch: Some(3), ..Faults::default() };
        assert_eq!(faults, expected);
        for (text, part) in [
            ("", "fault=number"),
            ("x=1", "unknown field `x`, expected one of `die_on_batch`"),
            ("die_on_batch=x", "no number"),
            ("oom_above_rows=-1", "integer `-1`"),
            ("nan_on_batch = 0", "from 1"),
            ("fail_from_batch=0", "from 1"),
            ("die_on_batch=2, die_on_batch=200", "names die_on_batch twice"),
        ] {
            let message = text.parse::<Faults>().unwrap_err();
            assert!(message.contains(part), "{message}");
        }
    }
}
