//! The backend: a loaded model and the team of threads that computes with it.

use std::path::PathBuf;
use std::time::Instant;

use op_dbus_engine::{Backend, BackendError, Batch, Description, LoadErrorKind};
use op_dbus_graph::encoder::Encoder;
use op_dbus_graph::{DenseFiles, Family, ModelFiles, Pooling};

use crate::arena::{Arena, Buffers};
use crate::encode::{Model, Text};
use crate::isa::Isa;
use crate::kernels::kernels;
use crate::packed::{Miss, Packed, Place};
use crate::precision::Precision;
use crate::reach::{Reaches, Recorder};
use crate::share::Shares;
use crate::team::{Barrier, Team};

/// Tokens that one thread takes through the encoder at once, unless a single text is longer: few
/// enough that they stay in the caches, many enough that the weights are worth their way.
const CHUNK_TOKENS: usize = 512;

/// How a model is loaded and computed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the service's caches.
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
    /// CPU of each thread but the first, which is the caller's; empty leaves them unbound.
    pub cpus: Vec<usize>,
    /// Tokens of the longest text.
    pub length_max: usize,
    /// How token vectors become one vector.
    pub pooling: Pooling,
    /// Whether vectors are divided by their length.
    pub normalize: bool,
    /// Length of one vector, as the model's record says.
    pub dimensions: usize,
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

/// A model on the CPU, computed by our own kernels.
pub struct NativeBackend {
    model: Model,
    team: Team,
    arenas: Vec<Arena>,
    buffers: Vec<Buffers>,
    shares: Shares,
    /// Where all members meet, and where one meets itself.
    together: Barrier,
    alone: Barrier,
    description: Description,
}

impl NativeBackend {
    /// Loads a model: from the cache, or from `source`, which leaves it in the cache. A cache that
    /// can't be used costs time and memory, and a warning in the log.
    ///
    /// # Errors
    /// [`BackendError::Load`]: an instruction set that this CPU lacks (`ProviderUnavailable`), files
    /// that can't be read as a model (`ModelCorrupt`), a lack of memory or threads (`Other`).
    pub fn load(
        options: Options,
        source: impl FnOnce() -> Result<Source, BackendError>,
    ) -> Result<Self, BackendError> {
        let start = Instant::now();
        let Options { isa, precision, .. } = options;
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
        let packed = match Packed::open(&place, kernels.layout) {
            Ok(packed) => packed,
            Err(miss) => {
                if !matches!(miss, Miss::Absent) {
                    let path = place.path();
                    tracing::warn!(?path, %miss, "the cached weights can't be used; packing anew");
                }
                pack(&place, isa, precision, &source()?)?
            }
        };
        let mut backend = Self::assemble(packed, &options)?;
        backend.description.load_ms =
            u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(backend)
    }

    /// A backend of weights that were packed for the instruction set and precision of `options`,
    /// which is available.
    pub(crate) fn assemble(packed: Packed, options: &Options) -> Result<Self, BackendError> {
        let kernels = kernels(options.isa, options.precision);
        let model = Model::new(packed, kernels, options.pooling, options.normalize);
        let found = model.packed.shape.dimensions();
        if found != options.dimensions {
            return Err(load_error(
                LoadErrorKind::ModelCorrupt,
                format!(
                    "the model's weights give vectors of {found} dimensions, but its record says {}",
                    options.dimensions
                ),
            ));
        }
        let threads = options.threads.max(1);
        let team = Team::new(threads, &options.cpus).map_err(|error| {
            let message = format!("can't start {threads} compute threads: {error}");
            load_error(LoadErrorKind::Other, message)
        })?;
        let length = options.length_max.min(model.positions());
        let tokens = CHUNK_TOKENS.max(length);
        let arena = || Arena::new(&model.packed.shape, kernels.layout, tokens, length);
        let mut arenas: Vec<Arena> = (0..threads).map(|_| arena()).collect();
        let buffers = arenas.iter_mut().map(Arena::buffers).collect();
        let description = Description {
            provider: "cpu".to_owned(),
            device: "cpu:0".to_owned(),
            precision: options.precision.to_string(),
            engine: "native".to_owned(),
            isa: options.isa.to_string(),
            dimensions: found,
            load_ms: 0,
            pid: std::process::id(),
        };
        Ok(Self {
            model,
            shares: Shares::new(threads),
            together: Barrier::new(threads),
            alone: Barrier::new(1),
            team,
            arenas,
            buffers,
            description,
        })
    }

    /// Refuses a batch that contradicts itself or the model, before a kernel sees it.
    fn check(&self, batch: &Batch<'_>, out: &[f32]) -> Result<(), BackendError> {
        batch.check()?;
        let shape = &self.model.packed.shape;
        let refuse = |what: String| Err(BackendError::Failed(what));
        let rows = batch.rows();
        if rows.checked_mul(self.description.dimensions) != Some(out.len()) {
            return refuse(format!("{rows} rows have room for {} values", out.len()));
        }
        let longest = self.arenas.first().map_or(0, Arena::length);
        for ids in batch.texts() {
            if ids.is_empty() || ids.len() > longest {
                let length = ids.len();
                return refuse(format!("a row has {length} tokens; 1 to {longest} are possible"));
            }
            let known = |id: &&i32| usize::try_from(**id).is_ok_and(|id| id < shape.vocabulary);
            if let Some(id) = ids.iter().find(|id| !known(id)) {
                let size = shape.vocabulary;
                return refuse(format!("token id {id} is not in the vocabulary of {size}"));
            }
        }
        Ok(())
    }
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
        .map_err(|error| load_error(LoadErrorKind::ModelCorrupt, chain(&error)))?;
    let layout = kernels(isa, precision).layout;
    let failed = |error: std::io::Error| {
        load_error(LoadErrorKind::Other, format!("can't pack the model's weights: {error}"))
    };
    let reaches = match precision {
        Precision::Int8 => Some(calibrate(&encoder, isa, &source.calibration).map_err(failed)?),
        Precision::F32 | Precision::Bf16 => None,
    };
    let packed = Packed::build(&encoder, layout, reaches.as_ref()).map_err(failed)?;
    if let Err(error) = packed.save(place) {
        let path = place.path();
        tracing::warn!(?path, %error, "the packed weights can't be cached for the next start");
        return Ok(packed);
    }
    // From here on the file's pages, which all workers share, and not a copy of our own.
    match Packed::open(place, layout) {
        Ok(mapped) => Ok(mapped),
        Err(miss) => {
            tracing::warn!(%miss, "the packed weights just cached can't be used");
            Ok(packed)
        }
    }
}

/// Computes `texts` in 32-bit floats and notes how large the inputs of the products get.
fn calibrate(encoder: &Encoder<'_>, isa: Isa, texts: &[Vec<i32>]) -> std::io::Result<Reaches> {
    let kernels = kernels(isa, Precision::F32);
    let packed = Packed::build(encoder, kernels.layout, None)?;
    let shape = packed.shape.clone();
    let mut model = Model::new(packed, kernels, Pooling::Mean, false);
    let recorder = Recorder::new(shape.layers, shape.hidden, shape.inner);
    model.recorder = Some(recorder);
    let mut arena = Arena::new(&shape, kernels.layout, shape.positions, shape.positions);
    let buffers = arena.buffers();
    let mut out = vec![0.0; shape.dimensions()];
    let known = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < shape.vocabulary);
    for ids in texts {
        if ids.is_empty() || ids.len() > shape.positions || !ids.iter().all(known) {
            continue;
        }
        let text = Text { ids, out: out.as_mut_ptr() };
        // SAFETY: the instruction set is available; the arena was made for this model and holds one
        // text of any length; ids and length were just checked; one member has it all.
        unsafe { model.encode(0, &Barrier::new(1), &buffers, &buffers, &[text]) }
    }
    let reaches = model.recorder.as_ref().map(Recorder::reaches);
    reaches.ok_or_else(|| std::io::Error::other("nothing was recorded"))
}

impl Backend for NativeBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.check(batch, out)?;
        let Self { model, team, buffers, shares, together, alone, .. } = self;
        let dimensions = self.description.dimensions;
        shares.plan(batch, team.members(), model.packed.shape.hidden);
        let out = Out(out.as_mut_ptr());
        let (shares, buffers) = (&*shares, &*buffers);
        let text = |row: u32| Text {
            ids: &batch.ids[shares.text(row)],
            // SAFETY: `check` has seen that `out` has a place for each row.
            out: unsafe { out.at(row as usize * dimensions) },
        };
        if shares.is_split() {
            team.run(&|member| {
                for rows in shares.chunks(member, CHUNK_TOKENS) {
                    encode(model, 0, alone, [&buffers[member]; 2], rows, &text);
                }
            });
        } else {
            team.run(&|member| {
                for rows in shares.chunks(0, CHUNK_TOKENS) {
                    let arenas = [&buffers[member], &buffers[0]];
                    encode(model, member, together, arenas, rows, &text);
                    // The arena of member 0 is read by all until the last is done.
                    together.wait();
                }
            });
        }
        Ok(())
    }
}

fn encode<'a>(
    model: &Model,
    member: usize,
    barrier: &Barrier,
    [own, shared]: [&Buffers; 2],
    rows: &[u32],
    text: &impl Fn(u32) -> Text<'a>,
) {
    // Texts of one chunk are few enough for the stack; more are taken in turns, by all alike.
    const TEXTS: usize = 64;
    for rows in rows.chunks(TEXTS) {
        let texts: [Text<'a>; TEXTS] =
            std::array::from_fn(|index| text(rows[index.min(rows.len() - 1)]));
        // SAFETY: the instruction set was checked when the model was loaded, ids and lengths by
        // `check`; chunks hold no more tokens than the arenas; members have arenas of their own and
        // share that of member 0, and the backend is borrowed exclusively.
        unsafe { model.encode(member, barrier, own, shared, &texts[..rows.len()]) }
        barrier.wait();
    }
}

/// The result, for threads that write different rows of it.
#[derive(Clone, Copy)]
struct Out(*mut f32);

// SAFETY: each row is written by one thread (`Model::encode`).
unsafe impl Sync for Out {}
// SAFETY: as above.
unsafe impl Send for Out {}

impl Out {
    /// # Safety
    /// `offset` lies within the result.
    unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

fn load_error(kind: LoadErrorKind, message: String) -> BackendError {
    BackendError::Load { kind, message }
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let reason = error.to_string();
        if !text.contains(&reason) {
            text = format!("{text}: {reason}");
        }
        source = error.source();
    }
    text
}
