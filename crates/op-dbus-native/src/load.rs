//! How a model gets ready: from packed weights in the cache, or from its own files.

use std::io;
use std::path::PathBuf;

use op_dbus_engine::{BackendError, LoadErrorKind, with_causes};
use op_dbus_graph::encoder::Encoder;
use op_dbus_graph::{DenseFiles, Family, ModelFiles, Pooling};

use crate::arena::Arena;
use crate::encode::{Model, Seat, Text};
use crate::isa::Isa;
use crate::kernels::kernels;
use crate::maxima::{Maxima, Recorder};
use crate::packed::{Packed, Place};
use crate::precision::Precision;
use crate::team::Barrier;

/// How a model is loaded and computed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The model's own folder in the cache.
    pub cache_dir: PathBuf,
    /// Identifies the model's files and how its vectors are made: packed weights are reused for the
    /// same key.
    pub key: String,
    /// Instruction set.
    pub isa: Isa,
    /// Precision of the arithmetic.
    pub precision: Precision,
    /// Threads that compute; at least 1.
    pub threads: usize,
    /// CPU of each thread, the first of which is the caller's; empty leaves them unbound.
    pub cpus: Vec<usize>,
    /// Tokens of the longest text.
    pub length_max: usize,
    /// How token vectors become one vector.
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalize: bool,
    /// Length of one vector, as the model's record says.
    pub dimensions: usize,
    /// Whether to measure how this CPU computes batches best, unless the cache says; else batches are
    /// computed as suits an ordinary CPU.
    pub calibrate: bool,
}

/// The files of a model.
#[derive(Clone, Debug)]
pub struct Source {
    /// Encoder architecture.
    pub family: Family,
    /// The model's own `config.json`.
    pub config: serde_json::Value,
    /// The bytes of `model.safetensors`.
    pub weights: Vec<u8>,
    /// `config.json` and `model.safetensors` of each Dense module, in their order.
    pub dense: Vec<(serde_json::Value, Vec<u8>)>,
    /// Token ids of the [calibration texts](crate::calibration_texts), special tokens included; used
    /// where weights become integers, which they do less well without.
    pub calibration: Vec<Vec<i32>>,
}

/// The packed weights that `options` ask for: from the cache, or made of `source` and left there. A
/// cache that can't be used costs time and memory, and a warning in the log.
///
/// # Errors
/// An instruction set that this CPU lacks, files that can't be read as a model, or no memory.
pub(crate) fn packed(
    options: &Options,
    source: impl FnOnce() -> Result<Source, BackendError>,
) -> Result<Packed, BackendError> {
    let Options { isa, precision, .. } = *options;
    if !isa.is_available() {
        let names: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
        return Err(load_error(
            LoadErrorKind::ProviderUnavailable,
            format!(
                "this CPU has no {isa}, which cpu_isa asks for; it has {}; write one of these, \
                 or auto",
                names.join(", ")
            ),
        ));
    }
    let kernels = kernels(isa, precision);
    let place = Place::new(&options.cache_dir, &options.key, kernels.layout);
    let open = || Packed::open(&place, kernels.layout);
    if let Ok(Some(packed)) = open() {
        return Ok(packed);
    }
    // Of workers that start together one packs, and the others map what it leaves. Where there are no locks each
    // packs.
    let _alone = place.lock();
    match open() {
        Ok(Some(packed)) => return Ok(packed),
        Ok(None) => {}
        Err(error) => {
            let path = place.path();
            tracing::warn!(?path, %error, "the cached weights can't be used; packing anew");
        }
    }
    pack(&place, isa, precision, &source()?)
}

/// Packs the weights of `source` and leaves them in the cache.
fn pack(
    place: &Place,
    isa: Isa,
    precision: Precision,
    source: &Source,
) -> Result<Packed, BackendError> {
    let dense = source.dense.iter();
    let files = ModelFiles {
        family: source.family,
        config: &source.config,
        weights: &source.weights,
        dense: dense.map(|(config, weights)| DenseFiles { config, weights }).collect(),
    };
    let encoder = op_dbus_graph::read(&files)
        .map_err(|error| load_error(LoadErrorKind::ModelCorrupt, with_causes(&error)))?;
    let layout = kernels(isa, precision).layout;
    let failed = |error: io::Error| {
        load_error(LoadErrorKind::Other, format!("can't pack the model's weights: {error}"))
    };
    let maxima = match precision {
        Precision::Int8 => Some(input_maxima(&encoder, isa, &source.calibration).map_err(failed)?),
        Precision::F32 | Precision::Bf16 => None,
    };
    let packed = Packed::build(&encoder, layout, maxima.as_ref()).map_err(failed)?;
    if let Err(error) = packed.save(place) {
        let path = place.path();
        tracing::warn!(?path, %error, "the packed weights can't be cached for the next start");
        return Ok(packed);
    }
    // From here on the file's pages, which all workers share, and not a copy of our own.
    let mapped = Packed::open(place, layout).unwrap_or_else(|error| {
        tracing::warn!(%error, "the packed weights just cached can't be used");
        None
    });
    Ok(mapped.unwrap_or(packed))
}

/// Computes `texts` in 32-bit floats and notes how large the inputs of the products get.
fn input_maxima(encoder: &Encoder<'_>, isa: Isa, texts: &[Vec<i32>]) -> io::Result<Maxima> {
    let kernels = kernels(isa, Precision::F32);
    let packed = Packed::build(encoder, kernels.layout, None)?;
    let shape = packed.shape.clone();
    let mut model = Model::new(packed, kernels, Pooling::Mean, false);
    model.recorder = Some(Recorder::new(shape.layers, shape.hidden, shape.inner));
    let known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < shape.vocabulary);
    let is_usable =
        |ids: &&Vec<i32>| (1..=shape.positions).contains(&ids.len()) && ids.iter().all(known);
    let longest = texts.iter().filter(is_usable).map(Vec::len).max().unwrap_or(1);
    let arena = Arena::new(&shape, kernels.layout, longest, longest)?;
    let mut out = vec![0.0; shape.dimensions()];
    for ids in texts.iter().filter(is_usable) {
        let text = Text { ids, out: out.as_mut_ptr() };
        // SAFETY: the instruction set is available; the arena was made for this model and holds the
        // longest of these texts; ids and lengths are checked; one member has it all.
        unsafe {
            let (own, shared) = (&arena.buffers, &arena.buffers);
            model.encode(&Seat { member: 0, barrier: &Barrier::new(1), own, shared }, &[text]);
        }
    }
    let maxima = model.recorder.as_ref().map(Recorder::maxima);
    maxima.ok_or_else(|| io::Error::other("nothing was recorded"))
}

/// A failure to load.
pub(crate) fn load_error(kind: LoadErrorKind, message: String) -> BackendError {
    BackendError::Load { kind, message }
}
