//! The backend: a loaded model and the team of threads that computes with it.

use std::time::Instant;

use op_dbus_engine::{Backend, BackendError, Batch, Description, Footprint, LoadErrorKind};

use crate::arena::Arena;
use crate::encode::{Model, Seat, Text};
use crate::kernels::kernels;
use crate::load::{self, Options, Source, load_error};
use crate::packed::Packed;
use crate::share::{CHUNK_TOKENS, Shares};
use crate::team::{Barrier, Team, keep_on};
use crate::tuning::{self, Tuning};

/// A model on the CPU, computed by our own kernels.
pub struct NativeBackend {
    model: Model,
    team: Team,
    arenas: Vec<Arena>,
    shares: Shares,
    /// Where all members meet, and where one meets itself.
    together: Barrier,
    alone: Barrier,
    tuning: Tuning,
    description: Description,
}

impl NativeBackend {
    /// Loads a model, which the calling thread is to compute with: from the cache, or from `source`, which
    /// leaves it in the cache. A cache that can't be used costs time and memory, and a warning in the log.
    ///
    /// # Errors
    /// [`BackendError::Load`]: an instruction set that this CPU lacks (`ProviderUnavailable`), files
    /// that can't be read as a model (`ModelCorrupt`), a lack of memory or threads (`Other`).
    pub fn load(
        options: Options,
        source: impl FnOnce() -> Result<Source, BackendError>,
    ) -> Result<Self, BackendError> {
        let start = Instant::now();
        let packed = load::packed(&options, source)?;
        let mut backend = Self::assemble(packed, &options)?;
        // This thread is the first of the team; the others were placed when they started. A calibration is
        // true only for threads that are where they will compute.
        if let Some(&cpu) = options.cpus.first() {
            keep_on(cpu);
        }
        if options.calibrate {
            tuning::tune(&mut backend, &options);
        }
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
            // Of both limits the system says the same.
            let message = format!(
                "can't start {threads} compute threads: {error}; set threads lower, or raise the limit of tasks \
                 (TasksMax) or worker_memory_max"
            );
            load_error(LoadErrorKind::Other, message)
        })?;
        let length = options.length_max.min(model.positions());
        let tokens = CHUNK_TOKENS.max(length);
        let arena = || Arena::new(&model.packed.shape, kernels.layout, tokens, length);
        let arenas: Vec<Arena> =
            (0..threads).map(|_| arena()).collect::<Result<_, _>>().map_err(|error| {
                let message = format!(
                    "can't have memory for {threads} compute threads: {error}; set threads lower"
                );
                load_error(LoadErrorKind::Other, message)
            })?;
        let description = Description {
            provider: "cpu".to_owned(),
            device: "cpu:0".to_owned(),
            devices: 1,
            precision: options.precision.to_string(),
            engine: "native".to_owned(),
            isa: options.isa.to_string(),
            dimensions: found,
            batch_tokens: 0,
            buckets: None,
            largest_tokens: 0,
            load_ms: 0,
            pid: std::process::id(),
            sandbox: String::new(),
        };
        Ok(Self {
            model,
            shares: Shares::new(threads),
            together: Barrier::new(threads),
            alone: Barrier::new(1),
            team,
            arenas,
            tuning: Tuning::default(),
            description,
        })
    }

    /// Computes in another way from here on; vectors stay what they are.
    pub(crate) fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.model.strip = tuning.strip;
        self.description.batch_tokens = tuning.batch_tokens * self.team.members();
    }

    /// Computes as if nothing were known of the CPU.
    pub(crate) fn untune(&mut self) {
        self.set_tuning(Tuning::default());
        self.description.batch_tokens = 0;
    }

    /// Threads that compute.
    pub(crate) fn members(&self) -> usize {
        self.team.members()
    }

    /// Tokens of the longest text.
    pub(crate) fn length_max(&self) -> usize {
        self.arenas.first().map_or(0, |arena| arena.length)
    }

    /// Token ids that there are.
    pub(crate) fn vocabulary(&self) -> usize {
        self.model.packed.shape.vocabulary
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
        let longest = self.length_max();
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

impl Backend for NativeBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.check(batch, out)?;
        let Self { model, team, arenas, shares, together, alone, tuning, .. } = self;
        let dimensions = self.description.dimensions;
        shares.plan(batch, team.members(), model.packed.shape.hidden, tuning.together_percent);
        let out = Out(out.as_mut_ptr());
        let (shares, arenas) = (&*shares, &*arenas);
        let text = |row: u32| Text {
            ids: &batch.ids[shares.text(row)],
            // SAFETY: `check` has seen that `out` has a place for each row.
            out: unsafe { out.at(row as usize * dimensions) },
        };
        if shares.is_together() {
            team.run(&|member| {
                let _member = together.member();
                let (own, shared) = (&arenas[member].buffers, &arenas[0].buffers);
                let seat = Seat { member, barrier: together, own, shared };
                for rows in shares.chunks() {
                    encode(model, &seat, rows, &text);
                }
            });
        } else {
            team.run(&|member| {
                let own = &arenas[member].buffers;
                let seat = Seat { member: 0, barrier: alone, own, shared: own };
                while let Some(rows) = shares.take() {
                    encode(model, &seat, rows, &text);
                }
            });
        }
        Ok(())
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        self.shares = Shares::new(self.team.members());
        self.arenas.iter_mut().for_each(Arena::renew);
        Ok(Footprint::default())
    }
}

/// Computes the rows of one chunk.
fn encode<'a>(model: &Model, seat: &Seat<'_>, rows: &[u32], text: &impl Fn(u32) -> Text<'a>) {
    // Texts of one chunk are few enough for the stack; more are taken in turns, by all alike.
    const TEXTS: usize = 64;
    for rows in rows.chunks(TEXTS) {
        let texts: [Text<'a>; TEXTS] =
            std::array::from_fn(|index| text(rows[index.min(rows.len() - 1)]));
        // SAFETY: the instruction set was checked when the model was loaded, ids and lengths by
        // `check`; chunks hold no more tokens than the arenas; members have arenas of their own and
        // share that of member 0, and the backend is borrowed exclusively.
        unsafe { model.encode(seat, &texts[..rows.len()]) }
        // The shared arena is read by all until the last is done.
        seat.barrier.wait();
    }
}

/// The result, for threads that write different rows of it.
#[derive(Clone, Copy)]
struct Out(*mut f32);

// SAFETY: each row is written by one thread (`Model::encode`).
unsafe impl Sync for Out {}

impl Out {
    /// # Safety
    /// `offset` lies within the result.
    unsafe fn at(self, offset: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}
