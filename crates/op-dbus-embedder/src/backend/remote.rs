//! A fleet that others run: of the model only the record is read, which says what is wanted of it, and
//! the tokenizer where texts are sent.

use op_dbus_engine::{Backend, BackendError, Tokenizer};
use op_dbus_remote::{Options, RemoteBackend, Shape};

use super::{Precision, Spec, failure, model};

/// Finds the fleet of the options.
pub fn load(spec: &Spec) -> Result<Box<dyn Backend>, BackendError> {
    if !matches!(spec.precision, None | Some(Precision::F32)) {
        let message = "precision is not f32, which is what a fleet is compared with; set precision to \
                       auto";
        return Err(failure::unavailable(message.to_owned()));
    }
    let model = model::get(spec)?;
    let shape = Shape {
        dimensions: model.dimensions,
        pooling: model::foreign_pooling(&model),
        normalize: model.normalize,
        max_input_tokens: model.max_input_tokens,
    };
    let options = Options::read(&spec.provider_options, spec.device, &model.name, shape);
    let options = options.map_err(|why| failure::unavailable(format!("remote: {why}")))?;
    let tokenizer = || {
        let path = model.tokenizer();
        let tokenizer = Tokenizer::from_bytes(&model::read(&model, &path)?, model.max_input_tokens);
        tokenizer.map_err(|error| failure::corrupt(&path, &error))
    };
    Ok(Box::new(RemoteBackend::load(options, tokenizer)?))
}
