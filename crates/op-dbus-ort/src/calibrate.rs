//! How large batches are on a device: as large as makes it faster, and no larger.

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, BackendError, BatchLimits, Buckets};

use crate::OrtBackend;
use crate::backend::milliseconds;

/// Tokens of a batch, padding included, where nothing was measured or nothing is gained by more.
const TOKENS: usize = BatchLimits::ACCELERATOR_TOKENS;
/// Tokens of the smallest batch that is measured, from which on each is twice the one before.
const TOKENS_FIRST: usize = 1024;
/// Tokens of each row: short texts are those that many go into a batch of.
const LENGTH: usize = 32;
/// Whoever comes while a batch is computed waits for it.
const BATCH_TIME_MAX: Duration = Duration::from_millis(20);
/// Of the best tokens per second, what a smaller batch may be short of.
const LOSS_PERCENT_MAX: u32 = 5;
/// A device that may take longer for the smallest of these is not measured.
const FIRST_TIME_MAX: Duration = Duration::from_secs(1);
/// After so long nothing larger is tried.
const CALIBRATION_MAX: Duration = Duration::from_secs(5);
/// Runs of a batch that are timed, behind one that prepares its shape.
const RUNS: u32 = 2;

impl OrtBackend {
    /// Has batches, and the shapes that they are rounded up to, be those of which the device computes most
    /// tokens per second; where trying is dear, those of 8,192 tokens.
    ///
    /// # Errors
    /// What stands in the way of a batch.
    pub(crate) fn calibrate(&mut self, is_dear: bool) -> Result<(), BackendError> {
        let Some(buckets) = self.description.buckets else {
            if self.separate {
                tracing::info!(batch_tokens = TOKENS, "batches without buffers are not timed");
            }
            self.description.batch_tokens = TOKENS;
            return Ok(());
        };
        let began = Instant::now();
        let (timed, tried) = if is_dear { (Vec::new(), 0) } else { self.timed(buckets)? };
        let tokens_max = best(&timed).min(buckets.tokens_max);
        if tried > tokens_max {
            // The device keeps what that took, also if it was not enough.
            self.trim()?;
        }
        let calibration_ms = milliseconds(began);
        tracing::debug!(?timed, "batches were timed");
        tracing::info!(
            calibration_ms,
            batch_tokens = tokens_max,
            "calibrated how large batches are"
        );
        let BatchLimits { rows_max, attention_max, .. } =
            BatchLimits::accelerator(Some(tokens_max));
        let (rows_max, attention_max) =
            (rows_max.min(buckets.rows_max), attention_max.min(buckets.attention_max));
        self.description.batch_tokens = tokens_max;
        self.description.buckets = Some(Buckets { tokens_max, rows_max, attention_max, ..buckets });
        Ok(())
    }

    /// What batches of so many tokens take, and of how many the largest was that was tried.
    fn timed(&mut self, buckets: Buckets) -> Result<(Vec<(usize, Duration)>, usize), BackendError> {
        let length = LENGTH.min(buckets.length_max).max(1);
        let smallest = [1, length];
        self.run_shape(smallest)?;
        let began = Instant::now();
        self.run_shape(smallest)?;
        // No larger batch costs more for each of its tokens.
        let rows = u32::try_from(TOKENS_FIRST / length).unwrap_or(u32::MAX);
        if began.elapsed().saturating_mul(rows) > FIRST_TIME_MAX {
            return Ok((Vec::new(), 0));
        }
        let sizes = std::iter::successors(Some(TOKENS_FIRST), |tokens| tokens.checked_mul(2));
        let (mut found, mut tried) = (Vec::new(), 0);
        for tokens in sizes.take_while(|tokens| *tokens <= buckets.tokens_max) {
            tried = tokens;
            match self.time([tokens / length, length]) {
                Ok(took) => found.push((tokens, took)),
                // The engine would halve such a batch.
                Err(BackendError::OutOfMemory(_)) => break,
                Err(error) if tokens > TOKENS => {
                    tracing::debug!(tokens, %error, "a batch was too large");
                    break;
                }
                Err(error) => return Err(error),
            }
            let is_slow = found.last().is_some_and(|(_, took)| *took > BATCH_TIME_MAX);
            if is_slow || began.elapsed() > CALIBRATION_MAX {
                break;
            }
        }
        Ok((found, tried))
    }

    /// What a batch of this shape takes.
    fn time(&mut self, shape: [usize; 2]) -> Result<Duration, BackendError> {
        self.run_shape(shape)?;
        let mut least = Duration::MAX;
        for _ in 0..RUNS {
            let began = Instant::now();
            self.run_shape(shape)?;
            least = least.min(began.elapsed());
        }
        Ok(least)
    }
}

/// The least tokens with which a batch is about as fast as any, by what batches of so many took.
fn best(found: &[(usize, Duration)]) -> usize {
    let rate = |(tokens, took): &(usize, Duration)| *tokens as f64 / took.as_secs_f64().max(1e-9);
    let in_time = found.iter().filter(|(_, took)| *took <= BATCH_TIME_MAX);
    let fastest = in_time.clone().map(rate).fold(0.0, f64::max);
    let enough = fastest * f64::from(100 - LOSS_PERCENT_MAX) / 100.0;
    let mut large = in_time.filter(|(tokens, _)| *tokens >= TOKENS);
    large.find(|one| rate(one) >= enough).map_or(TOKENS, |(tokens, _)| *tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(took_us: &[(usize, u64)]) -> Vec<(usize, Duration)> {
        took_us.iter().map(|(tokens, us)| (*tokens, Duration::from_micros(*us))).collect()
    }

    #[test]
    fn a_larger_batch_is_for_what_it_gains() {
        let launches = [(4096, 500), (8192, 554), (16_384, 880), (32_768, 1568)];
        assert_eq!(best(&found(&launches)), 32_768);
        let even = [(4096, 2000), (8192, 3700), (16_384, 6800), (32_768, 13_400)];
        assert_eq!(best(&found(&even)), 16_384);
        assert_eq!(best(&found(&[(4096, 2000), (8192, 4000), (16_384, 8000)])), 8192);
    }

    #[test]
    fn nobody_waits_long_for_a_batch() {
        let slow = [(4096, 9000), (8192, 17_000), (16_384, 33_000)];
        assert_eq!(best(&found(&slow)), 8192);
        // As ever, however long that takes.
        assert_eq!(best(&found(&[(1024, 3_000_000)])), TOKENS);
        assert_eq!(best(&[]), TOKENS);
    }
}
