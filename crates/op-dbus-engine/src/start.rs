//! The threads of an engine: started together, or not at all.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use crate::backend::{BackendError, BackendFactory, LoadErrorKind};
use crate::call::Truncate;
use crate::config::ModelShape;
use crate::dispatch::{self, Shared};
use crate::tokenizer::Tokenizer;

/// What health checks embed.
pub(crate) const CANARY: &str = "The quick brown fox jumps over the lazy dog.";

/// Token ids of `text`, which each backend embeds before it is trusted.
///
/// # Errors
/// A tokenizer that can't make a row of it.
pub(crate) fn probe(tokenizer: &Tokenizer, text: &str) -> Result<Box<[i32]>, BackendError> {
    let encoded = tokenizer.encode(text, Truncate::End).ok();
    let window = encoded.and_then(|encoded| encoded.windows.into_iter().next());
    window.map(|window| window.ids).ok_or_else(|| BackendError::Load {
        kind: LoadErrorKind::ModelCorrupt,
        message: "the tokenizer can't tokenize a plain sentence; install the model again".into(),
    })
}

/// The vector that a backend of `factory` makes of the engine's own text: what other backends of the
/// same model are compared with. The backend is gone afterwards.
///
/// # Errors
/// The backend could not be loaded or failed.
pub fn reference(
    tokenizer: &Tokenizer,
    model: &ModelShape,
    factory: &BackendFactory,
) -> Result<Vec<f32>, BackendError> {
    let probe = probe(tokenizer, CANARY)?;
    dispatch::probed(factory, 0, model, &probe).map(|(_, vector)| vector)
}

/// Starts the worker threads and waits until each has loaded its backend; then they begin.
///
/// # Errors
/// That of a worker that could not be loaded; the others have ended.
pub(crate) fn start_workers(shared: &Arc<Shared>, workers: usize) -> Result<(), BackendError> {
    let (ready, reports) = sync_channel(workers);
    let (mut threads, mut begins) = (Vec::new(), Vec::new());
    let mut result = Ok(());
    for index in 0..workers {
        let (begin, begun) = sync_channel(0);
        let (shared, ready) = (Arc::clone(shared), ready.clone());
        let thread = spawn(format!("embed-worker-{index}"), move || {
            dispatch::work(index, shared, ready, begun);
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => result = Err(error),
        }
        begins.push(begin);
    }
    drop(ready);
    let mut loaded = Vec::new();
    for (index, report) in reports {
        match report {
            Ok(description) => loaded.push((index, description)),
            Err(error) => result = Err(error),
        }
    }
    loaded.sort_by_key(|(index, _)| *index);
    shared.scheduler.add_workers(loaded.into_iter().map(|(_, worker)| worker).collect());
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

/// Starts a thread.
///
/// # Errors
/// When the system has no room for one more.
pub(crate) fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, BackendError> {
    std::thread::Builder::new().name(name).spawn(body).map_err(|error: io::Error| {
        BackendError::Load {
            kind: LoadErrorKind::Other,
            message: format!("a thread could not be started ({error}); raise the limit of tasks"),
        }
    })
}
