//! The model in the store: the one that its user has verified, and what is read of it.

use std::path::{Path, PathBuf};

use op_dbus_engine::{BackendError, LoadErrorKind, foreign, with_causes};
use op_dbus_graph::{DenseFiles, Family, ModelFiles, Pooling};
use op_dbus_models::{HookError, Model, Store};
use serde_json::Value;

use super::{Spec, failure};

/// The model, of which only the record has been read.
///
/// # Errors
/// It is not there any more, or another one has taken its place since the daemon verified it.
pub fn get(spec: &Spec) -> Result<Model, BackendError> {
    let model = Store::open(&spec.model_dir).get(&spec.model).map_err(|e| failure::store(&e))?;
    if model.vector_space() == spec.space {
        // Texts are cut to what the record said when it was verified. Weights and padding are of the
        // fingerprint, so there are as many positions as then.
        return Ok(Model { max_input_tokens: spec.max_input_tokens, ..model });
    }
    let message = format!(
        "{} in {} is another model than the service has loaded under this name; reload or \
         restart the service to serve what is there now",
        model.name,
        spec.model_dir.display()
    );
    Err(BackendError::Load { kind: LoadErrorKind::ModelCorrupt, message })
}

/// A file of the model, read whole and compared with its digest.
pub fn read(model: &Model, path: &Path) -> Result<Vec<u8>, BackendError> {
    model.read(path).map_err(|error| failure::store(&error))
}

/// A JSON file of the model.
pub fn read_json(model: &Model, path: &Path) -> Result<Value, BackendError> {
    serde_json::from_slice(&read(model, path)?).map_err(|error| failure::corrupt(path, &error))
}

/// Configuration and weights of each Dense module.
pub fn dense(model: &Model) -> Result<Vec<(Value, Vec<u8>)>, BackendError> {
    let module =
        |[config, weights]: [PathBuf; 2]| Ok((read_json(model, &config)?, read(model, &weights)?));
    model.dense_files().map(module).collect()
}

/// Reads a model of a family as its engines do, without computing anything.
///
/// # Errors
/// A file that can't be read, or tensors that are not what its configuration asks for.
pub fn check(model: &Model) -> Result<(), HookError> {
    let Some(family) = family(model) else { return Ok(()) };
    let (config, weights) = (read_json(model, &model.config())?, read(model, &model.weights())?);
    let dense = dense(model)?;
    let dense = dense.iter().map(|(config, weights)| DenseFiles { config, weights }).collect();
    let files = ModelFiles { family, config: &config, weights: &weights, dense };
    Ok(op_dbus_graph::read(&files).map(drop).map_err(|error| with_causes(&error))?)
}

/// SHA-256 of configuration and weights of each Dense module.
pub fn dense_sha256(model: &Model) -> impl Iterator<Item = [String; 2]> {
    model.dense_files().map(|files| files.map(|path| model.recorded_sha256(&path).to_owned()))
}

/// The architecture as the graph reader names it; nothing for a graph of the user's own.
pub fn family(model: &Model) -> Option<Family> {
    match model.family {
        op_dbus_models::Family::Bert => Some(Family::Bert),
        op_dbus_models::Family::Mpnet => Some(Family::Mpnet),
        op_dbus_models::Family::Roberta => Some(Family::Roberta),
        op_dbus_models::Family::Distilbert => Some(Family::Distilbert),
        op_dbus_models::Family::Onnx => None,
    }
}

/// The pooling as the graph reader names it.
pub fn pooling(model: &Model) -> Pooling {
    match model.pooling {
        op_dbus_models::Pooling::Mean => Pooling::Mean,
        op_dbus_models::Pooling::Cls => Pooling::Cls,
        op_dbus_models::Pooling::Max => Pooling::Max,
    }
}

/// The pooling as the engine names it, for graphs that were not compiled here.
pub fn foreign_pooling(model: &Model) -> foreign::Pooling {
    match model.pooling {
        op_dbus_models::Pooling::Mean => foreign::Pooling::Mean,
        op_dbus_models::Pooling::Cls => foreign::Pooling::Cls,
        op_dbus_models::Pooling::Max => foreign::Pooling::Max,
    }
}
