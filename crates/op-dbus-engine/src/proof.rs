//! What a backend has to show before it is trusted, and again later: vectors of the right length that
//! are the model's, and what its batches cost where there is a choice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::backend::{Backend, BackendError, BackendFactory, Description, LoadErrorKind};
use crate::batch::Batch;
use crate::config::{ModelShape, Pool};
use crate::dispatch::{Place, Shared};

/// No batch is measured any more once this has gone by since the first.
const MEASURE_MAX: Duration = Duration::from_secs(1);

/// Makes a backend and has it embed a short text before anybody relies on it.
pub(crate) fn load(place: Place, shared: &Shared) -> Result<Box<dyn Backend>, BackendError> {
    let pool = &shared.pools[place.pool];
    let (mut backend, vector) = probed(&pool.factory, place.number, &shared.model, &shared.probe)?;
    trust(pool, backend.description(), &vector)?;
    if shared.pools.len() > 1 && !shared.scheduler.knows_costs(place.pool) {
        measure(backend.as_mut(), place, shared)?;
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
    let Description { provider, device, .. } = made_by;
    let message = format!("{provider} can't be trusted on {device}: {difference}");
    Err(BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message })
}

/// Finds out what batches of growing sizes cost on a backend, so that the first of its callers' go
/// where they should; the rest is learned from those.
///
/// # Errors
/// The backend fails what any caller may ask of it.
fn measure(backend: &mut dyn Backend, place: Place, shared: &Shared) -> Result<(), BackendError> {
    let began = Instant::now();
    let (pool, probe) = (&shared.pools[place.pool].batch, &shared.probe);
    let rows_max = pool.rows_max.min(pool.tokens_max / probe.len().max(1)).max(1);
    let mut rows = 1;
    while rows <= rows_max && began.elapsed() < MEASURE_MAX {
        let lengths = vec![i32::try_from(probe.len()).unwrap_or(i32::MAX); rows];
        let ids = probe.repeat(rows);
        let batch = Batch { ids: &ids, lengths: &lengths };
        let mut out = vec![f32::NAN; rows * shared.model.dimensions];
        // The first of a shape also pays for what a provider prepares for it.
        for counts in [false, true] {
            let started = Instant::now();
            match run_checked(backend, &batch, &mut out, &mut || ()) {
                // Larger ones will be halved.
                Err(BackendError::OutOfMemory(_)) => return Ok(()),
                result => result?,
            }
            if counts {
                shared.scheduler.learn(place.pool, ids.len(), started.elapsed());
            }
        }
        rows *= 4;
    }
    Ok(())
}

/// A backend, and the vector that it makes of the probe.
pub(crate) fn probed(
    factory: &BackendFactory,
    index: usize,
    model: &ModelShape,
    probe: &[i32],
) -> Result<(Box<dyn Backend>, Vec<f32>), BackendError> {
    let mut backend = catch_unwind(AssertUnwindSafe(|| factory(index)))
        .map_err(|_| wrong("the backend panicked while it was loaded; see the log".into()))??;
    let (made, wanted) = (backend.description().dimensions, model.dimensions);
    if made != wanted {
        return Err(wrong(format!(
            "the backend makes vectors of {made} dimensions and the model has {wanted}; \
             check the model's files"
        )));
    }
    let vector = self::probe(backend.as_mut(), model, probe)?;
    Ok((backend, vector))
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
    run_checked(backend, &batch, &mut out, &mut || ())?;
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

/// Runs a batch; a backend that panics or gives values that are no numbers can't be trusted again.
pub(crate) fn run_checked(
    backend: &mut dyn Backend,
    batch: &Batch<'_>,
    out: &mut [f32],
    meanwhile: &mut dyn FnMut(),
) -> Result<(), BackendError> {
    catch_unwind(AssertUnwindSafe(|| backend.run_while(batch, out, meanwhile)))
        .unwrap_or_else(|_| Err(BackendError::Lost("it panicked in a batch".into())))?;
    if out.iter().all(|value| value.is_finite()) {
        return Ok(());
    }
    Err(BackendError::Lost("it returned values that are not finite numbers".into()))
}
