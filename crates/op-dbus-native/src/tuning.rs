//! How a machine computes a model best: measured once, then read from the cache. Nothing of it
//! changes a vector.

mod calibrate;

use std::fs;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::backend::NativeBackend;
use crate::isa::{self, Isa};
use crate::kernels::product::STRIP_MAX;
use crate::load::Options;

/// Version of the measurement and of its record. A record of another version is not used.
const VERSION: u32 = 2;

/// Tokens of a batch for each thread: fewer would leave every saving aside that a batch is for, and
/// more would keep those waiting who come while it is computed.
const BATCH_TOKENS: RangeInclusive<usize> = 128..=2048;

/// What may differ from machine to machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tuning {
    /// Most tokens that go through a layer together: enough that weights are worth their way to the
    /// caches, few enough that what belongs to the tokens stays in the second level cache.
    pub strip: usize,
    /// Tokens of a batch for each thread beyond which the throughput hardly grows.
    pub batch_tokens: usize,
    /// What it costs that all threads compute one text together, in percent of its work done by one:
    /// a short text, and a long one.
    pub together_percent: Together,
}

/// Costs of sharing a text between all threads, in percent of computing it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Together {
    /// Of a text of up to [`Together::SHORT`] tokens.
    pub short: u64,
    /// Of a longer one.
    pub long: u64,
}

impl Together {
    /// Tokens of a text that counts as short.
    pub const SHORT: usize = 48;

    /// For a text of `tokens`.
    pub fn of(self, tokens: usize) -> u64 {
        if tokens <= Self::SHORT { self.short } else { self.long }
    }
}

impl Default for Tuning {
    /// Chosen on curves of a two-core AVX2 machine; what a machine is taken for that was not measured.
    fn default() -> Self {
        let together_percent = Together { short: 115, long: 115 };
        Self { strip: 96, batch_tokens: 512, together_percent }
    }
}

impl Tuning {
    /// Whether it can be computed with: records come from a file.
    fn is_possible(&self) -> bool {
        (1..=STRIP_MAX).contains(&self.strip) && BATCH_TOKENS.contains(&self.batch_tokens)
    }
}

/// The file that a calibration leaves.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    version: u32,
    key: String,
    tuning: Tuning,
}

/// Tunes `backend` as the cache says, or else measures it and leaves the result in the cache. What
/// fails costs speed alone, and is said in the log.
pub(crate) fn tune(backend: &mut NativeBackend, options: &Options) {
    let Options { isa, precision, threads, .. } = options;
    let key = format!("{} {isa} {precision} threads={threads} cpu={}", options.key, cpu());
    let digest = Sha256::digest(&key);
    let name: String = digest[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let place = options.cache_dir.join("tuning").join(name + ".json");
    match read(&place, &key) {
        Ok(Some(tuning)) => return backend.set_tuning(tuning),
        Ok(None) => {}
        Err(error) => {
            tracing::warn!(?place, %error, "the cached calibration can't be used; measuring anew");
        }
    }
    let start = std::time::Instant::now();
    let tuning = match calibrate::measure(backend) {
        Some(tuning) => tuning,
        None => {
            tracing::warn!("the calibration failed; batches are computed as on an ordinary CPU");
            Tuning::default()
        }
    };
    backend.set_tuning(tuning);
    let calibration_ms = start.elapsed().as_millis();
    let Tuning { strip, batch_tokens, together_percent } = tuning;
    tracing::info!(
        calibration_ms,
        strip,
        batch_tokens,
        together_short = together_percent.short,
        together_long = together_percent.long,
        "calibrated how batches are computed"
    );
    if let Err(error) = save(&place, &Record { version: VERSION, key, tuning }) {
        tracing::warn!(?place, %error, "the calibration can't be cached for the next start");
    }
}

/// What a record says; nothing if there is none.
fn read(place: &Path, key: &str) -> io::Result<Option<Tuning>> {
    let json = match fs::read(place) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        json => json?,
    };
    let Record { version, key: of, tuning } = serde_json::from_slice(&json)?;
    if version != VERSION || of != key || !tuning.is_possible() {
        return Err(io::Error::other("it is not what this version has measured here"));
    }
    Ok(Some(tuning))
}

/// Writes a record, whole or not at all.
fn save(place: &Path, record: &Record) -> io::Result<()> {
    let folder = place.parent().unwrap_or(place);
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.persist(place)?;
    Ok(())
}

/// What tells this CPU from another that the cache may come to.
fn cpu() -> String {
    let names: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
    format!("{:08x} {}", isa::signature(), names.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_makes_no_sense_is_not_used() {
        assert!(Tuning::default().is_possible());
        for strip in [0, STRIP_MAX + 1] {
            assert!(!Tuning { strip, ..Tuning::default() }.is_possible());
        }
        for batch_tokens in [0, BATCH_TOKENS.end() + 1] {
            assert!(!Tuning { batch_tokens, ..Tuning::default() }.is_possible());
        }
    }
}
