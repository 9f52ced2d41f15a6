//! The threads of an engine: started together, or not at all.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

use crate::backend::{BackendError, BackendFactory, Description, LoadErrorKind};
use crate::call::Truncate;
use crate::config::{ModelShape, Pool};
use crate::dispatch::{self, Report, Shared, WORKER_LOST_MESSAGE_ID, WorkerId};
use crate::proof;
use crate::reference::{Reference, Sample, SampleText};
use crate::status::WorkerState;
use crate::tokenizer::Tokenizer;

/// What health checks embed.
pub(crate) const CANARY: &str = "The quick brown fox jumps over the lazy dog.";
/// What a long text is made of: words of one token each, and one that its last quarter has alone, so that
/// it is another text without its end.
const WORDS: &str = "one red house stands by the old river and two green boats go to the sea ";
const LAST_WORD: &str = "music ";

/// Token ids of `text`, which each backend embeds before it is trusted.
///
/// # Errors
/// A tokenizer that can't make a row of it.
pub(crate) fn probe(tokenizer: &Tokenizer, text: &str) -> Result<Box<[i32]>, BackendError> {
    let encoded = tokenizer.encode(text, Truncate::End).ok();
    let window = encoded.and_then(|encoded| encoded.windows.into_iter().next());
    window.map(|window| window.ids).ok_or_else(|| BackendError::Load {
        kind: LoadErrorKind::ModelCorrupt,
        message:
            "the tokenizer can't tokenize a plain sentence; install the model with one that can"
                .into(),
    })
}

/// Tries a tokenizer as an engine does before it starts.
///
/// # Errors
/// One that can't tokenize a plain sentence, with which no engine starts.
pub fn try_tokenizer(tokenizer: &Tokenizer) -> Result<(), BackendError> {
    probe(tokenizer, CANARY).map(drop)
}

/// What a backend of `factory`, which is gone afterwards, makes of the engine's own texts: other backends of the
/// same model come near it to `cosine_min`, or are not trusted.
///
/// # Errors
/// The backend could not be loaded or failed.
pub fn reference(
    tokenizer: &Tokenizer,
    model: &ModelShape,
    factory: &BackendFactory,
    cosine_min: f32,
) -> Result<Reference, BackendError> {
    let tokens_max = tokenizer.max_input_tokens();
    let words = WORDS.split_whitespace().count();
    let long = WORDS.repeat(tokens_max * 3 / 4 / words) + &LAST_WORD.repeat(tokens_max);
    let texts = [CANARY, LAST_WORD, &WORDS.repeat(4), &long].map(|text| probe(tokenizer, text));
    let texts: Vec<Box<[i32]>> = texts.into_iter().collect::<Result<_, _>>()?;
    let vectors = computed(model, factory, &texts)?;
    let vector = vectors.first().cloned().unwrap_or_default();
    let known = texts.into_iter().zip(vectors).map(|(ids, vector)| SampleText { ids, vector });
    let mut known: Vec<SampleText> = known.collect();
    // Alone: beside it the others would be padded to its length, which takes a slow device seconds.
    let longest = known.split_off(known.len() - 1);
    Ok(Reference { vector, sample: Sample(vec![known, longest]), cosine_min })
}

/// The vectors of some texts, each computed alone.
fn computed(
    model: &ModelShape,
    factory: &BackendFactory,
    texts: &[Box<[i32]>],
) -> Result<Vec<Vec<f32>>, BackendError> {
    let compute = || {
        let mut backend = proof::made(factory, 0, model)?;
        let mut vector = |ids: &[i32]| {
            proof::probe(backend.as_mut(), model, ids).map_err(|error| match error {
                // What others are measured against: there is nothing to take in its place.
                BackendError::Load { kind: LoadErrorKind::Untrusted, message } => {
                    BackendError::Lost(message)
                }
                error => error,
            })
        };
        texts.iter().map(|ids| vector(ids)).collect()
    };
    let compute = || proof::once_more(compute);
    // On a thread of its own, which the backend may bind to a CPU.
    std::thread::scope(|scope| {
        let thread = Builder::new().spawn_scoped(scope, compute);
        let thread = thread.map_err(|error| no_thread(&error))?;
        thread.join().unwrap_or_else(|_| Err(BackendError::Lost("it panicked".into())))
    })
}

/// Starts the worker threads and waits until each has loaded its backend, or failed to, however long it takes for
/// that, but for those in reserve; then they begin.
///
/// # Errors
/// That of a pool none of whose workers could be loaded, or of one that is not done without; all have ended.
pub(crate) fn start_workers(shared: &Arc<Shared>) -> Result<(), BackendError> {
    let ids = worker_ids(&shared.pools);
    let (ready, reports) = sync_channel(ids.len());
    let (mut threads, mut begins) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    for id in ids {
        let (begin, begun) = sync_channel(0);
        let (shared, ready) = (Arc::clone(shared), ready.clone());
        let kind = if id.reserved { "reserve" } else { "worker" };
        let thread = spawn(format!("embed-{kind}-{}", id.index), move || {
            dispatch::work(id, shared, ready, begun);
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => result = Err(error),
        }
        begins.push(begin);
    }
    drop(ready);
    let reports = reports.into_iter().collect();
    let result = result.and_then(|()| introduce(shared, reports));
    if result.is_err() {
        shared.scheduler.stop();
    }
    drop(begins);
    if result.is_err() {
        for thread in threads {
            // A worker that panicked has said so; the error that is returned came first.
            let _ = thread.join();
        }
    }
    result
}

/// Makes the workers known to all, also those that could not be loaded while another of their pool was: they are tried
/// again, as if they had been lost.
///
/// # Errors
/// That of the first worker of a pool of which none was loaded, or of one that is not done without: all of its pool are
/// to load, or its provider tells that it has no such device, or its vectors are not trusted, so that all of its pool
/// have to compute in another precision.
fn introduce(shared: &Shared, mut reports: Vec<Report>) -> Result<(), BackendError> {
    reports.sort_by_key(|(id, _)| id.index);
    let loaded_in = |pool: usize| {
        let mut of_pool = reports.iter().filter(|(id, _)| id.pool == pool);
        of_pool.find_map(|(_, report)| report.as_ref().ok())
    };
    let mut workers = Vec::new();
    for (id, report) in &reports {
        let told = match (report, loaded_in(id.pool)) {
            (Ok(told), _) => told.clone(),
            (Err(error), None) => return Err(error.clone()),
            (Err(error), Some(like)) => {
                let pool = &shared.pools[id.pool];
                let absent = like.absent(pool.device(id.number));
                if pool.whole || is_untrusted(error) || is_missing(&absent.description) {
                    return Err(error.clone());
                }
                absent
            }
        };
        workers.push((id.pool, told));
    }
    shared.scheduler.registry(|registry| registry.add(workers));
    for (id, report) in &reports {
        let (Err(error), worker) = (report, id.index) else { continue };
        let like = shared.scheduler.registry(|registry| {
            registry.set(worker, WorkerState::Restarting);
            registry.load_failed(worker, error, 0);
            registry.description(worker).unwrap_or_default()
        });
        let Description { provider, device, .. } = like;
        tracing::warn!(
            MESSAGE_ID = WORKER_LOST_MESSAGE_ID,
            worker,
            provider,
            %error,
            "a worker could not be loaded on {device}, others compute while it is tried again: {error}"
        );
    }
    Ok(())
}

fn is_untrusted(error: &BackendError) -> bool {
    matches!(error, BackendError::Load { kind: LoadErrorKind::Untrusted, .. })
}

/// Whether a device is more than ill: its provider tells of none of that number.
fn is_missing(Description { device, devices, .. }: &Description) -> bool {
    let number = device.rsplit(':').next().and_then(|number| number.parse::<usize>().ok());
    number.is_some_and(|number| *devices > 0 && number >= *devices)
}

/// The workers of the pools, one pool after another; behind all of them come those in reserve.
pub(crate) fn worker_ids(pools: &[Pool]) -> Vec<WorkerId> {
    let numbers = |of: &Pool, reserved| {
        let workers = of.workers.max(1);
        if reserved { workers..workers + of.reserved } else { 0..workers }
    };
    let mut ids = Vec::new();
    for reserved in [false, true] {
        for (pool, of) in pools.iter().enumerate() {
            for number in numbers(of, reserved) {
                ids.push(WorkerId { index: ids.len(), pool, number, reserved });
            }
        }
    }
    ids
}

/// Starts a thread.
///
/// # Errors
/// When the system has no room for one more.
pub(crate) fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, BackendError> {
    Builder::new().name(name).spawn(body).map_err(|error| no_thread(&error))
}

fn no_thread(error: &io::Error) -> BackendError {
    BackendError::Load {
        kind: LoadErrorKind::Other,
        message: format!("a thread could not be started ({error}); raise the limit of tasks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_not_there_is_not_one_that_is_ill() {
        let of = |device: &str, devices| {
            let device = device.to_owned();
            Description { device, devices, ..Description::default() }
        };
        assert!(is_missing(&of("cuda:2", 2)));
        assert!(!is_missing(&of("cuda:1", 2)));
        assert!(!is_missing(&of("cuda:9", 0)), "nobody tells how many there are");
    }
}
