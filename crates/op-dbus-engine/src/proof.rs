//! What a backend has to show before it is trusted, and again later: vectors of the right length that
//! are the model's, and what its batches cost where there is a choice.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::backend::{
    Backend, BackendError, BackendFactory, Description, LoadErrorKind, Meanwhile,
};
use crate::batch::Batch;
use crate::config::{BatchLimits, ModelShape, Pool};
use crate::dispatch::{Shared, WorkerId};
use crate::reference::{Reference, SampleText};
use crate::routing::BatchCost;

/// No batch is measured any more once so many microseconds have gone by since the first, nor one that would take as many.
const MEASURE_MAX_US: u64 = 1_000_000;

/// Does what a new backend is needed for, and once more if somebody kills that meanwhile: what waits for it need
/// not end with it.
///
/// # Errors
/// Those of the work.
pub fn once_more<T>(work: impl Fn() -> Result<T, BackendError>) -> Result<T, BackendError> {
    match work() {
        Err(error @ BackendError::Killed(_)) => {
            tracing::warn!("a worker is started once more: {error}");
            work()
        }
        result => result,
    }
}

/// Makes a backend and has it embed a short text before anybody relies on it.
pub(crate) fn load(id: WorkerId, shared: &Shared) -> Result<Box<dyn Backend>, BackendError> {
    once_more(|| proved(id, shared))
}

fn proved(id: WorkerId, shared: &Shared) -> Result<Box<dyn Backend>, BackendError> {
    let pool = &shared.pools[id.pool];
    let mut backend = made(&pool.factory, id.number, &shared.model)?;
    let vector = probe(backend.as_mut(), &shared.model, &shared.probe)?;
    trust(pool, backend.description(), &vector)?;
    sample(backend.as_mut(), pool, &shared.model)?;
    let (scheduler, device) = (&shared.scheduler, backend.description().device.clone());
    let is_choice = shared.pools.len() > 1 || pool.devices.len() > 1;
    if is_choice && !scheduler.registry(|registry| registry.knows(id.pool, &device)) {
        let costs = costs(backend.as_mut(), id, shared)?;
        scheduler.registry(|registry| registry.measured(id.pool, &device, &costs));
    }
    Ok(backend)
}

/// Compares a backend's vector of the probe with what it has to be.
pub(crate) fn trust(
    pool: &Pool,
    made_by: &Description,
    vector: &[f32],
) -> Result<(), BackendError> {
    let Some(Err(difference)) = pool.reference.as_ref().map(|known| known.check(vector)) else {
        return Ok(());
    };
    Err(untrusted(made_by, &difference))
}

fn untrusted(Description { provider, device, .. }: &Description, why: &str) -> BackendError {
    let message = format!("{provider} can't be trusted on {device}: {why}");
    BackendError::Load { kind: LoadErrorKind::Untrusted, message }
}

/// Has a backend compute the sample of its pool, if that has one: together as far as it takes that.
fn sample(backend: &mut dyn Backend, pool: &Pool, model: &ModelShape) -> Result<(), BackendError> {
    let Some(reference) = &pool.reference else { return Ok(()) };
    let mut compute = |limits: &BatchLimits| {
        let mut batches = reference.sample.batches(limits);
        batches.try_for_each(|batch| compare(backend, reference, batch, model))
    };
    match compute(&pool.batch) {
        // Larger ones will be halved.
        Err(BackendError::OutOfMemory(_)) => compute(&BatchLimits { rows_max: 1, ..pool.batch }),
        result => result,
    }
}

/// Compares what a backend makes of a batch of the sample with what it has to be.
fn compare(
    backend: &mut dyn Backend,
    reference: &Reference,
    texts: &[SampleText],
    model: &ModelShape,
) -> Result<(), BackendError> {
    let ids: Vec<i32> = texts.iter().flat_map(|known| known.ids.iter().copied()).collect();
    let lengths: Vec<i32> =
        texts.iter().map(|known| i32::try_from(known.ids.len()).unwrap_or(i32::MAX)).collect();
    let mut out = vec![f32::NAN; texts.len() * model.dimensions];
    let batch = Batch { ids: &ids, lengths: &lengths };
    prove(backend, &batch, &mut out).map_err(|error| match error {
        BackendError::Failed(why) => {
            let longest = batch.longest();
            let why = format!("it fails texts of up to {longest} tokens, as callers send: {why}");
            untrusted(backend.description(), &why)
        }
        error => error,
    })?;
    for (known, vector) in texts.iter().zip(out.chunks_exact(model.dimensions.max(1))) {
        reference.compare(&known.vector, vector).map_err(|difference| {
            let (tokens, rows) = (known.ids.len(), texts.len());
            let why = format!(
                "{difference}; it was a text of {tokens} tokens, one of {rows} in a batch: padding counts \
                 there, texts are cut, or such shapes are computed wrong"
            );
            untrusted(backend.description(), &why)
        })?;
    }
    Ok(())
}

/// Finds out what batches of growing sizes cost on a backend, so that its callers' go where they should;
/// the rest is learned from those.
///
/// # Errors
/// The backend fails what any caller may ask of it.
pub(crate) fn measure(
    backend: &mut dyn Backend,
    id: WorkerId,
    shared: &Shared,
) -> Result<Vec<BatchCost>, BackendError> {
    let clock = shared.scheduler.clock;
    let (began_us, mut costs) = (clock.now_us(), Vec::new());
    let (pool, probe) = (&shared.pools[id.pool].batch, &shared.probe);
    // No larger than the batches of callers: of other shapes nothing is prepared, and none is asked for.
    let &Description { batch_tokens, buckets, .. } = backend.description();
    let tokens_max = if batch_tokens > 0 { batch_tokens } else { usize::MAX };
    let shaped = buckets.map_or(usize::MAX, |buckets| buckets.full(buckets.length(probe.len())));
    let rows_max = tokens_max.min(pool.tokens_max) / probe.len().max(1);
    let rows_max = rows_max.min(pool.rows_max).min(shaped).max(1);
    let mut rows = 1;
    let mut next_us = 0;
    while rows <= rows_max && clock.now_us() - began_us < MEASURE_MAX_US && next_us < MEASURE_MAX_US
    {
        let lengths = vec![i32::try_from(probe.len()).unwrap_or(i32::MAX); rows];
        let ids = probe.repeat(rows);
        let batch = Batch { ids: &ids, lengths: &lengths };
        let mut out = vec![f32::NAN; rows * shared.model.dimensions];
        // The first of a shape also pays for what a provider prepares for it, unless another program has had the
        // second one wait for longer.
        let mut us = u64::MAX;
        for _ in 0..2 {
            let started_us = clock.now_us();
            match run_checked(backend, &batch, &mut out) {
                // Larger ones will be halved.
                Err(BackendError::OutOfMemory(_)) => return Ok(costs),
                result => result?,
            }
            us = us.min(clock.now_us() - started_us);
        }
        next_us = next_size_us(costs.last(), us);
        costs.push(BatchCost { tokens: ids.len(), us });
        rows *= 4;
    }
    Ok(costs)
}

/// What two batches of the next size, four times as large, may take: longer by as much as this one took than the one
/// before, by four times at most. Of the first it is not known how much of it is the way there, as to another machine.
fn next_size_us(before: Option<&BatchCost>, us: u64) -> u64 {
    let before_us = before.map_or(us / 2, |cost| cost.us).max(1);
    let longer = us.clamp(before_us, before_us.saturating_mul(4));
    us.saturating_mul(longer).saturating_mul(2) / before_us
}

/// As [`measure`]. What a backend fails, and then goes on, tells of no costs: of callers the texts are tried alone.
/// Nor does what it has computed elsewhere meanwhile.
///
/// # Errors
/// It can't be trusted any more.
pub(crate) fn costs(
    backend: &mut dyn Backend,
    id: WorkerId,
    shared: &Shared,
) -> Result<Vec<BatchCost>, BackendError> {
    let device = backend.description().device.clone();
    let costs = match measure(backend, id, shared) {
        Err(BackendError::Failed(_)) => {
            let vector = probe(backend, &shared.model, &shared.probe)?;
            trust(&shared.pools[id.pool], backend.description(), &vector)?;
            Vec::new()
        }
        result => result?,
    };
    let has_moved = backend.description().device != device;
    Ok(if has_moved { Vec::new() } else { costs })
}

/// As [`load`], in place of a worker that may be doubted: then the backend has to compute batches as large as
/// callers' before it gets any of those.
pub(crate) fn load_again(id: WorkerId, shared: &Shared) -> Result<Box<dyn Backend>, BackendError> {
    let mut backend = load(id, shared)?;
    if let Some(doubts) = shared.scheduler.registry(|registry| registry.doubts(id.index)) {
        measure(backend.as_mut(), id, shared).map_err(|error| {
            wrong(format!("{doubts}, and has to prove itself before it gets others: {error}"))
        })?;
    }
    Ok(backend)
}

/// A backend of which nothing is known yet but the dimensions.
pub(crate) fn made(
    factory: &BackendFactory,
    index: usize,
    model: &ModelShape,
) -> Result<Box<dyn Backend>, BackendError> {
    let backend = catch_unwind(AssertUnwindSafe(|| factory(index)))
        .map_err(|_| wrong("the backend panicked while it was loaded; see the log".into()))??;
    let (made, wanted) = (backend.description().dimensions, model.dimensions);
    if made != wanted {
        return Err(wrong(format!(
            "the backend makes vectors of {made} dimensions and the model has {wanted}; \
             check the model's files"
        )));
    }
    Ok(backend)
}

/// The vector that a backend makes of the probe.
pub(crate) fn probe(
    backend: &mut dyn Backend,
    model: &ModelShape,
    probe: &[i32],
) -> Result<Vec<f32>, BackendError> {
    let lengths = [i32::try_from(probe.len()).unwrap_or(i32::MAX)];
    let batch = Batch { ids: probe, lengths: &lengths };
    let mut out = vec![f32::NAN; model.dimensions];
    prove(backend, &batch, &mut out)?;
    let square: f32 = out.iter().map(|x| x * x).sum();
    if model.normalized && !(0.98..=1.02).contains(&square) {
        return Err(wrong(format!(
            "the backend's vectors have length {} where 1 is expected; \
             check the model's normalisation",
            square.sqrt()
        )));
    }
    Ok(out)
}

fn wrong(message: String) -> BackendError {
    BackendError::Load { kind: LoadErrorKind::Other, message }
}

/// Values that are looked at together.
const FINITE_AT_ONCE: usize = 1024;

/// What a backend does that computes beyond what its numbers can hold.
const NOT_FINITE: &str = "it returned values that are not finite numbers";

/// That a batch was lost by that.
pub(crate) fn not_finite() -> BackendError {
    BackendError::Lost(NOT_FINITE.into())
}

/// As [`run_checked`], of a batch by which a backend proves itself.
fn prove(
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    match run_finite(backend, batch, out, &mut |_| ())? {
        true => Ok(()),
        false => Err(untrusted(backend.description(), NOT_FINITE)),
    }
}

/// As [`run_finite`], where a backend that gives values that are no numbers can't be trusted again either.
pub(crate) fn run_checked(
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    out: &mut [f32],
) -> Result<(), BackendError> {
    match run_finite(backend, batch, out, &mut |_| ())? {
        true => Ok(()),
        false => Err(not_finite()),
    }
}

/// Runs a batch, and tells whether all values are numbers; a backend that panics can't be trusted again.
pub(crate) fn run_finite(
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    out: &mut [f32],
    meanwhile: &mut Meanwhile<'_>,
) -> Result<bool, BackendError> {
    // A row that is not written must not pass for one of an earlier batch.
    let dimensions = out.len() / batch.rows().max(1);
    out.chunks_mut(dimensions.max(1)).for_each(|row| row[0] = f32::NAN);
    catch_unwind(AssertUnwindSafe(|| backend.run_while(batch, out, meanwhile)))
        .unwrap_or_else(|_| Err(BackendError::Lost("it panicked in a batch".into())))?;
    // Without a way out for each value, which the compiler makes vectors of.
    let finite = |part: &[f32]| part.iter().fold(true, |all, value| all & value.is_finite());
    Ok(out.chunks(FINITE_AT_ONCE).all(finite))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_measured_where_the_one_before_says_that_it_is_soon_over() {
        let next = |before: u64, us| next_size_us(Some(&BatchCost { tokens: 12, us: before }), us);
        // Far away, where rows cost nothing.
        assert_eq!((next_size_us(None, 150_000), next(150_000, 150_000)), (600_000, 300_000));
        // Each row costs as much.
        assert_eq!((next_size_us(None, 20_000), next(20_000, 80_000)), (80_000, 640_000));
        assert!(next(80_000, 320_000) > MEASURE_MAX_US);
        assert_eq!((next_size_us(None, 0), next(0, 0)), (0, 0));
    }
}
