//! ONNX Runtime: a graph compiled from the model's weights, or the user's own.

use std::path::Path;

use op_dbus_engine::{Backend, BackendError, BatchLimits, Buckets};
use op_dbus_graph::cache::{CacheKey, load_or_compile};
use op_dbus_graph::{
    DenseFiles, Dialect, Family, ModelFiles, Precision as Computed, Recipe, Target,
};
use op_dbus_models::Model;
use op_dbus_models::manifest::halves_by_itself;
use op_dbus_ort::{Accelerator, Graph, Options, OrtBackend, is_on};

use super::{Precision, Spec, failure, model};

/// Loads the library and a session of the model.
pub fn load(spec: &Spec) -> Result<Box<dyn Backend>, BackendError> {
    let (computed, mut precision) = precision(spec)?;
    let model = model::get(spec)?;
    let graph = match model::family(&model) {
        Some(family) if spec.precision.is_none() && halves_by_itself(&spec.provider) => {
            let graph;
            (graph, precision) = halves(|computed| compiled(&model, (family, computed), spec))?;
            Graph::Compiled(graph)
        }
        Some(family) => Graph::Compiled(compiled(&model, (family, computed), spec)?),
        None if computed == Computed::F16 => {
            return Err(failure::unfit(format!(
                "precision is f16, and {} is an ONNX graph, which is computed as it is; set \
                 precision to auto",
                model.name
            )));
        }
        None => own(&model)?,
    };
    let buckets = Buckets {
        tokens_max: spec.batch_tokens_max,
        attention_max: BatchLimits::accelerator(Some(spec.batch_tokens_max)).attention_max,
        rows_max: spec.batch_rows_max,
        length_max: model.max_input_tokens,
        packed: false,
    };
    session(spec, (graph, precision), (buckets, model.dimensions))
}

/// Why there is no graph.
struct Refusal {
    error: BackendError,
    /// Whether 16 bits are too few for the model.
    is_precision: bool,
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self { error, is_precision: false }
    }
}

impl From<Refusal> for BackendError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// The graph in 16 bits, or in 32 where those are too few for the model; and which it is.
fn halves(
    mut compile: impl FnMut(Computed) -> Result<Vec<u8>, Refusal>,
) -> Result<(Vec<u8>, &'static str), BackendError> {
    match compile(Computed::F16) {
        Err(Refusal { error, is_precision: true }) => {
            tracing::warn!("the model is computed in f32: {error}");
            Ok((compile(Computed::F32)?, "f32"))
        }
        graph => Ok((graph?, "f16")),
    }
}

/// Loads what multiplies matrices of `side` × `side` where and in what the model of `spec` would be
/// computed by ONNX Runtime, and nothing else: `count` times for a batch of `side` tokens, whose ids are
/// below 64. Vectors have `side` dimensions.
///
/// # Errors
/// What is to compute it can't be used.
pub fn products(spec: &Spec, side: usize, count: usize) -> Result<Box<dyn Backend>, BackendError> {
    let (computed, precision) = match spec.precision {
        None if halves_by_itself(&spec.provider) => (Computed::F16, "f16"),
        _ => precision(spec)?,
    };
    let graph = op_dbus_graph::products(side, count, computed);
    let graph = graph.map_err(|error| BackendError::Failed(error.to_string()))?;
    // Batches are computed as they are.
    let buckets =
        Buckets { tokens_max: 0, attention_max: 0, rows_max: 0, length_max: 0, packed: false };
    session(spec, (Graph::Compiled(graph), precision), (buckets, side))
}

/// What the graph is written in, and what is computed in.
fn precision(spec: &Spec) -> Result<(Computed, &'static str), BackendError> {
    match spec.precision {
        None | Some(Precision::F32) => Ok((Computed::F32, "f32")),
        Some(Precision::F16) => Ok((Computed::F16, "f16")),
        // Where a provider has it, it rounds by itself.
        Some(Precision::Bf16) if spec.provider != super::CPU => Ok((Computed::F32, "bf16")),
        Some(Precision::Bf16 | Precision::Int8) => {
            let message = match spec.provider.as_str() {
                super::CPU => "precision is neither f32 nor f16, which is all that ONNX Runtime \
                               computes in here; set precision to auto, or cpu_engine to native"
                    .to_owned(),
                // Whatever `cpu_engine` says.
                provider => format!(
                    "{provider} does not work here: it does not compute in int8; set precision to auto, \
                     f32 or f16"
                ),
            };
            Err(failure::unavailable(message))
        }
    }
}

fn session(
    spec: &Spec,
    (graph, precision): (Graph, &'static str),
    (buckets, dimensions): (Buckets, usize),
) -> Result<Box<dyn Backend>, BackendError> {
    let accelerator = (spec.provider != super::CPU).then(|| Accelerator {
        provider: spec.provider.clone(),
        library: spec.provider_library.clone(),
        device: spec.device,
        options: spec.provider_options.clone(),
    });
    Ok(Box::new(OrtBackend::load(Options {
        runtime: spec.runtime.clone(),
        threads: spec.threads,
        accelerator,
        graph,
        precision,
        buckets,
        calibrate: spec.calibrate,
        io_binding: spec.io_binding,
        dimensions,
    })?))
}

/// The operators that a provider has kernels for, in the forms that are written. What is recorded has shapes that
/// are few, with their padding.
fn dialect(provider: &str, options: &[(String, String)], io_binding: Option<bool>) -> Dialect {
    // Without the buffers that a recording points to nothing is recorded.
    let records = io_binding != Some(false) && is_on(options, "enable_cuda_graph");
    match provider {
        super::CPU => Dialect::OnnxRuntime,
        "cuda" if records => Dialect::OnnxRuntime,
        "cuda" => Dialect::Packed,
        _ => Dialect::Onnx,
    }
}

/// The model's graph for the provider, from the cache or compiled now.
fn compiled(
    model: &Model,
    (family, precision): (Family, Computed),
    spec: &Spec,
) -> Result<Vec<u8>, Refusal> {
    let recipe = Recipe {
        pooling: model::pooling(model),
        normalize: model.normalize,
        max_input_tokens: model.max_input_tokens,
        target: Target {
            precision,
            dialect: dialect(&spec.provider, &spec.provider_options, spec.io_binding),
        },
    };
    let (weights, config) = (model.weights(), model.config());
    let key = CacheKey {
        weights_sha256: model.recorded_sha256(&weights).to_owned(),
        config_sha256: model.recorded_sha256(&config).to_owned(),
        dense_sha256: model::dense_sha256(model).collect(),
        family,
        recipe,
    };
    let build = || {
        let (config, bytes) = (model::read_json(model, &config)?, model::read(model, &weights)?);
        let dense = model::dense(model)?;
        let dense = dense.iter().map(|(config, weights)| DenseFiles { config, weights }).collect();
        let files = ModelFiles { family, config: &config, weights: &bytes, dense };
        let graph = op_dbus_graph::compile(&recipe, &files);
        graph.map_err(|error| refused(&spec.provider, &weights, &error))
    };
    let (graph, built) = load_or_compile(&spec.cache_dir, &key, build)?;
    // One out of the cache is there at each start of a worker.
    match built {
        true => tracing::info!(model = model.name, built, "graph ready"),
        false => tracing::debug!(model = model.name, built, "graph ready"),
    }
    Ok(graph)
}

/// Why no graph was made of the weights. That they need another precision is no damage, nor is that there are too many
/// of them: our own kernels need no graph.
fn refused(provider: &str, weights: &Path, error: &op_dbus_graph::Error) -> Refusal {
    let told = format!("{}: {error}", weights.display());
    match error {
        op_dbus_graph::Error::Unsupported { what: "precision", .. } => {
            Refusal { error: failure::unfit(told), is_precision: true }
        }
        op_dbus_graph::Error::TooLarge { .. } if provider == super::CPU => {
            failure::unavailable(format!("{told}; or set cpu_engine to native")).into()
        }
        op_dbus_graph::Error::TooLarge { .. } => {
            failure::unfit(format!("{provider} does not work here: {told}")).into()
        }
        error => failure::corrupt(weights, error).into(),
    }
}

/// A user's own graph, if all its tensors are inside. The library reads its files itself,
/// so all of them are compared with their digests here.
fn own(model: &Model) -> Result<Graph, BackendError> {
    model.verify().map_err(|error| failure::store(&error))?;
    let path = model.weights();
    let graph = std::fs::read(&path).map_err(|error| failure::unreadable(&path, &error))?;
    op_dbus_graph::inspect::inspect(&graph).map_err(|error| failure::corrupt(&path, &error))?;
    let pooling = model::foreign_pooling(model);
    Ok(Graph::Own { path, pooling, normalize: model.normalize })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidias_batches_have_padding_where_they_are_recorded() {
        let of = |io_binding, word: &str| {
            dialect("cuda", &[("enable_cuda_graph".to_owned(), word.to_owned())], io_binding)
        };
        assert_eq!(of(None, "1"), Dialect::OnnxRuntime);
        assert_eq!(of(Some(true), "True"), Dialect::OnnxRuntime);
        assert_eq!(of(None, "0"), Dialect::Packed);
        assert_eq!(of(Some(false), "1"), Dialect::Packed);
    }

    #[test]
    fn only_what_needs_another_precision_is_compiled_again() {
        let beyond = || op_dbus_graph::Error::Unsupported {
            what: "precision",
            found: "f16 with the value 70000 in a tensor".to_owned(),
            supported: "f16 up to ±65504; f32 takes this model".to_owned(),
        };
        let missing = || op_dbus_graph::Error::MissingTensor { name: "a tensor".to_owned() };
        let too_large = |what| op_dbus_graph::Error::TooLarge {
            what,
            found: "much".to_owned(),
            supported: "little".to_owned(),
        };
        let tried = |error: Option<op_dbus_graph::Error>| {
            let mut tries = Vec::new();
            let graph = halves(|computed| {
                tries.push(computed);
                match (&error, computed) {
                    (Some(error), Computed::F16) => {
                        Err(refused("cuda", Path::new("weights"), error))
                    }
                    _ => Ok(Vec::new()),
                }
            });
            (graph.map(|(_, precision)| precision), tries)
        };
        assert_eq!(tried(None), (Ok("f16"), vec![Computed::F16]));
        assert_eq!(tried(Some(beyond())), (Ok("f32"), vec![Computed::F16, Computed::F32]));
        let (damaged, tries) = tried(Some(missing()));
        let corrupt = failure::corrupt(Path::new("weights"), &missing());
        assert_eq!((damaged, tries), (Err(corrupt), vec![Computed::F16]));
        // The next provider may do with these, and 32 bits are no fewer.
        for what in ["the compiled graph", "the table of relative position biases"] {
            let told = format!("weights: {what} would be too large: much; supported: little");
            let unfit = failure::unfit(format!("cuda does not work here: {told}"));
            assert_eq!(tried(Some(too_large(what))), (Err(unfit), vec![Computed::F16]));
            let on_the_cpu = refused(super::super::CPU, Path::new("weights"), &too_large(what));
            let unavailable = failure::unavailable(format!("{told}; or set cpu_engine to native"));
            assert_eq!(on_the_cpu.error, unavailable);
        }
    }
}
