//! Whether a model that is imported is one that the service could load.

use std::path::Path;

use op_dbus_embedder::backend;
use op_dbus_engine::with_causes;
use op_dbus_models::{HookError, Model};
use serde_json::Value;

/// Tries what there is of a model: its configuration while it has no weights, which may be gigabytes, and then all of
/// it.
///
/// # Errors
/// A file that can't be read, what no engine computes, or tensors that are not what the configuration asks for.
pub(super) fn check(model: &Model) -> Result<(), HookError> {
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
