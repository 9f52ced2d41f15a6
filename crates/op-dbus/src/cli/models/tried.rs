//! Whether a model that is imported is one that the service could load, and its tokenizer one that it can use.

use std::panic;
use std::path::Path;

use op_dbus_embedder::backend;
use op_dbus_engine::{Tokenizer, try_tokenizer, with_causes};
use op_dbus_models::{HookError, Model};
use serde_json::Value;

/// Tries a `tokenizer.json` for a model that reads so many tokens of a text. Its library asserts in places: what
/// that writes to standard error says less than the refusal, and is not shown.
///
/// # Errors
/// One with which no engine starts.
pub(super) fn tokenizer(json: &[u8], tokens: usize) -> Result<(), HookError> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let tried = panic::catch_unwind(|| {
        let tokenizer = Tokenizer::from_bytes(json, tokens).map_err(|error| with_causes(&error))?;
        Ok(try_tokenizer(&tokenizer)?)
    });
    panic::set_hook(hook);
    tried.unwrap_or_else(|_| Err("reading it panicked".into()))
}

/// Tries what there is of a model: its configuration while it has no weights, which may be gigabytes, and then all of
/// it.
///
/// # Errors
/// A file that can't be read, what no engine computes, or tensors that are not what the configuration asks for.
pub(super) fn model(model: &Model) -> Result<(), HookError> {
    if !model.recorded_sha256(&model.weights()).is_empty() {
        return backend::check(model);
    }
    let Some(family) = backend::family(model) else { return Ok(()) };
    let read = |path: &Path| -> Result<Value, HookError> {
        Ok(serde_json::from_slice(&model.read(path)?)?)
    };
    let dense = model.dense_files().map(|[config, _]| read(&config));
    let dense = dense.collect::<Result<Vec<_>, _>>()?;
    let checked = op_dbus_graph::check(family, &read(&model.config())?, &dense);
    Ok(checked.map_err(|error| with_causes(&error))?)
}
