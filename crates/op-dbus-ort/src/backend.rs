//! The backend: a loaded session that turns batches into vectors.

use std::io;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use op_dbus_engine::{
    Backend, BackendError, Batch, Buckets, Description, Footprint, Meanwhile, MemoryUse,
    TransferUse, memory,
};
use ort::memory::AllocationDevice;
use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session};

use crate::accelerator::{Accelerator, Memory, Place};
use crate::arena::Arena;
use crate::binding::Buffers;
use crate::feed::{Feed, Transfer};
use crate::placement::Placement;
use crate::recording;
use crate::rows::Rows;
use crate::{Graph, Options, failure, library, session};

/// A model computed by ONNX Runtime, on the CPU or on an accelerator.
pub struct OrtBackend {
    /// How batches are run.
    run: RunOptions,
    /// How one is run after which the arenas give back what they don't use; none where there are none.
    shrink: Option<RunOptions>,
    pub(crate) feed: Feed,
    pub(crate) description: Description,
    /// Whether inputs, and results, are read and written in place; none where that is not known.
    in_place: Option<[bool; 2]>,
    transfers: TransferUse,
    /// Whether the device has memory of its own.
    pub(crate) separate: bool,
    /// Where the session computes, if that is an arena.
    arena: Option<Arena>,
    /// The last batch.
    rows: Rows,
    /// Gone last: allocators of a provider, and what lies in their memory, call into it and don't keep it.
    pub(crate) session: ManuallyDrop<Session>,
}

impl Drop for OrtBackend {
    fn drop(&mut self) {
        let _alone = session::alone(&self.description.provider);
        self.feed = Feed::Compiled;
        self.arena = None;
        // SAFETY: once, and nothing uses it behind this.
        unsafe { ManuallyDrop::drop(&mut self.session) }
    }
}

/// Time for batches that only prepare shapes: beyond it no further one is begun.
pub(crate) const WARM_UP_MAX: Duration = Duration::from_secs(5);

/// Tokens of a batch that a device computes for much longer than it takes to start a thread.
const BESIDE_TOKENS_MIN: usize = 4096;

impl OrtBackend {
    /// Loads the library, unless this process has it already, and makes a session of the graph. An
    /// accelerator has to prove itself: a batch is run, and what of it ran elsewhere is an error.
    ///
    /// # Errors
    /// [`BackendError::Load`]: a library or a provider that can't be used (`ProviderUnavailable`), or not for this
    /// model (`Unfit`, `OutOfMemory`), a damaged graph (`ModelCorrupt`), or one whose inputs and outputs are not understood.
    pub fn load(options: Options) -> Result<Self, BackendError> {
        let start = Instant::now();
        let Options { runtime, threads, accelerator, graph, precision, dimensions, .. } = options;
        let described = || described(start, precision, dimensions);
        let environment = library::environment(&runtime)?;
        let Some(accelerator) = accelerator else {
            let builder = session::builder(&environment, threads.max(1))
                .map_err(|error| failure::load("the CPU provider", error))?;
            let backend = Self::assemble(builder, graph, described())?;
            let places = (None, Some((AllocationDevice::CPU, 0)));
            return Ok(backend.placed(Memory::Same, places, (options.io_binding, options.buckets)));
        };
        let accelerator = recording_or_not(accelerator, &graph, options.io_binding);
        let accelerator = accelerator.computing_in(precision)?;
        let (builder, name, devices) = accelerator.builder(&environment)?;
        let fault = |error: io::Error| {
            accelerator.unavailable(format!("no place to look for what it ran ({error})"))
        };
        // By this name the service knows what a worker has left that was ended meanwhile.
        let folder = tempfile::Builder::new().prefix(".proving-").tempdir().map_err(fault)?;
        let builder = builder
            .with_profiling(folder.path().join("profile"))
            .map_err(|error| accelerator.unavailable(error.to_string()))?;
        let description = Description {
            provider: accelerator.provider.clone(),
            device: format!("{}:{}", accelerator.provider, accelerator.device),
            devices,
            precision: accelerator.precision(precision).to_owned(),
            ..described()
        };
        let (memory, places) = (accelerator.memory(), accelerator.places());
        let alone = session::alone(&accelerator.provider);
        let backend = Self::assemble(builder, graph, description).map_err(|error| match error {
            // What the provider can't compile says nothing about the model's files.
            BackendError::Load { message, .. } => accelerator.unavailable(message),
            error => error,
        })?;
        let mut backend = backend.placed(memory, places, (options.io_binding, options.buckets));
        drop(alone);
        if accelerator.records() {
            // Recordings point into the arenas, which are left as they are.
            recording::skip(&mut backend.run).map_err(refused)?;
        } else {
            backend.shrink =
                session::shrinking(&accelerator.arenas()).map(Some).map_err(refused)?;
        }
        backend.prove(&accelerator, &name)?;
        let unavailable = |error: BackendError| accelerator.unavailable(error.to_string());
        if options.calibrate {
            backend.calibrate(accelerator.compiles_shapes()).map_err(unavailable)?;
        }
        backend.warm_up(&accelerator).map_err(unavailable)?;
        if accelerator.records() {
            match accelerator.reached(&environment, (&name, &runtime)) {
                Ok(place) => backend.record(environment, place),
                Err(error) => tracing::warn!(%error, "no batch is recorded"),
            }
        }
        backend.description.load_ms = milliseconds(start);
        Ok(backend)
    }

    /// Runs one batch under the runtime's profiler and reads where the operators ran.
    fn prove(&mut self, accelerator: &Accelerator, name: &str) -> Result<(), BackendError> {
        let failed = |error: BackendError| accelerator.unavailable(error.to_string());
        self.run_any(false).map_err(failed)?;
        let mut read = || -> Result<Placement, Box<dyn std::error::Error>> {
            let alone = session::alone(&accelerator.provider);
            let profile = self.session.end_profiling()?;
            drop(alone);
            Ok(Placement::read(&std::fs::read(profile)?, name)?)
        };
        let unknown =
            |error| accelerator.unavailable(format!("what it ran can't be read ({error})"));
        match read().map_err(unknown)?.problem() {
            None => Ok(()),
            Some(problem) => Err(failure::unfit(&accelerator.provider, &problem)),
        }
    }

    /// A backend of a session that `builder` makes of the graph.
    fn assemble(
        builder: SessionBuilder,
        graph: Graph,
        description: Description,
    ) -> Result<Self, BackendError> {
        let (session, feed, rows) = Feed::load(builder, graph, description.dimensions)?;
        memory::trim();
        let run = RunOptions::new().map_err(refused)?;
        Ok(Self {
            session: ManuallyDrop::new(session),
            run,
            shrink: None,
            feed,
            description,
            in_place: None,
            transfers: TransferUse::default(),
            separate: false,
            arena: None,
            rows,
        })
    }

    /// With buffers that are kept, if that is asked for or what the device's memory calls for. Graphs of
    /// the user's own are fed as ever. `places` are memory that the device reaches, and its own.
    fn placed(
        mut self,
        memory: Memory,
        (staging, own): (Option<Place>, Option<Place>),
        (asked_for, buckets): (Option<bool>, Buckets),
    ) -> Self {
        self.in_place = memory.is_in_place(false);
        self.separate = memory.is_separate();
        match self.feed {
            Feed::Compiled if asked_for.unwrap_or(memory.is_separate()) => {
                let dimensions = self.description.dimensions;
                let buffers = Buffers::new(&self.session, (memory, staging), dimensions);
                self.in_place = buffers.is_in_place();
                self.feed = Feed::Bound(buffers);
                let buckets = Buckets { packed: matches!(self.rows, Rows::Packed(_)), ..buckets };
                self.description.buckets = memory.is_separate().then_some(buckets);
            }
            Feed::Own(_) if asked_for == Some(true) => {
                tracing::warn!(
                    "io_binding is on, which has no effect on an ONNX graph of your own"
                );
            }
            _ => {}
        }
        self.arena = own.and_then(|own| Arena::of(&self.session, own));
        self
    }

    /// Computes a batch of each shape, the largest first: so memory is as much as it will ever be when
    /// the first caller's batch comes, and whatever is prepared for a shape is there. As many as there is
    /// time for; before them those that the provider has to compile for, whatever that takes.
    fn warm_up(&mut self, accelerator: &Accelerator) -> Result<(), BackendError> {
        let mut shapes =
            self.description.buckets.map(|buckets| buckets.shapes()).unwrap_or_default();
        let Some(smallest @ [rows, length]) = shapes.last().copied() else { return Ok(()) };
        let must = accelerator.first_compiled(&shapes);
        shapes.sort_by_key(|shape| !must.contains(shape));
        let began = Instant::now();
        self.run_shape(smallest)?;
        let again = Instant::now();
        self.run_shape(smallest)?;
        // No larger batch costs more for each of its tokens, but for what is prepared.
        let token = again.elapsed() / u32::try_from(rows * length).unwrap_or(u32::MAX);
        let mut ready = 0;
        for shape @ [rows, length] in shapes.iter().copied() {
            let most = token.saturating_mul(u32::try_from(rows * length).unwrap_or(u32::MAX));
            if most > WARM_UP_MAX.saturating_sub(began.elapsed()) && !must.contains(&shape) {
                continue;
            }
            match self.run_shape(shape) {
                // The engine will halve such a batch; what there was of the device's memory goes back.
                Err(BackendError::OutOfMemory(_)) => drop(self.trim()?),
                result => {
                    result?;
                    ready += 1;
                }
            }
        }
        self.start_counting();
        let (shapes, warm_up_ms) = (shapes.len(), milliseconds(began));
        tracing::info!(shapes, ready, warm_up_ms, "shapes of batches are ready");
        Ok(())
    }

    /// Counts what becomes of batches from here on.
    pub(crate) fn start_counting(&mut self) {
        self.transfers = TransferUse::default();
        if let Feed::Bound(buffers) = &mut self.feed {
            buffers.start_counting();
        }
    }

    /// Computes a batch of this shape without padding.
    pub(crate) fn run_shape(&mut self, [rows, length]: [usize; 2]) -> Result<(), BackendError> {
        let (ids, lengths) =
            (vec![1; rows * length], vec![i32::try_from(length).unwrap_or(i32::MAX); rows]);
        let mut out = vec![0.0; rows * self.description.dimensions];
        self.compute(&Batch { ids: &ids, lengths: &lengths }, &mut out, false)?;
        let largest = &mut self.description.largest_tokens;
        *largest = (*largest).max(rows * length);
        Ok(())
    }

    /// Runs some batch. With `shrink` the arenas give back what they don't use after it.
    fn run_any(&mut self, shrink: bool) -> Result<(), BackendError> {
        // Ids that every vocabulary has; which they are does not matter here.
        let (ids, lengths): (Vec<i32>, [i32; 2]) = ((1..=12).collect(), [8, 4]);
        let mut out = vec![0.0; 2 * self.description.dimensions];
        self.compute(&Batch { ids: &ids, lengths: &lengths }, &mut out, shrink)
    }

    /// Gives up what is kept of batches.
    fn let_go(&mut self) {
        let _alone = session::alone(&self.description.provider);
        self.rows.clear();
        match &mut self.feed {
            Feed::Compiled => {}
            Feed::Bound(buffers) => buffers.clear(),
            Feed::Own(feed) => feed.clear(),
        }
    }

    pub(crate) fn compute(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        shrink: bool,
    ) -> Result<(), BackendError> {
        self.rows.fill(batch, self.description.buckets);
        let _alone = session::alone(&self.description.provider);
        let Self { session, feed, rows, run, shrink: shrinking, .. } = self;
        let options = shrinking.as_ref().filter(|_| shrink).unwrap_or(run);
        let Transfer { inputs, results } = feed.run((session, options), rows, batch, out)?;
        if let Some([inputs_in_place, results_in_place]) = self.in_place {
            self.transfers.count(inputs, inputs_in_place);
            self.transfers.count(results, results_in_place);
        }
        Ok(())
    }
}

/// The accelerator, which records only where batches have buffers of their own.
fn recording_or_not(
    accelerator: Accelerator,
    graph: &Graph,
    io_binding: Option<bool>,
) -> Accelerator {
    let bound = matches!(graph, Graph::Compiled(_)) && io_binding != Some(false);
    if bound || !accelerator.records() {
        return accelerator;
    }
    tracing::warn!(
        "no batch is recorded: an ONNX graph of your own is not, nor anything without io_binding"
    );
    accelerator.without_recording()
}

/// The runtime has no room for what says how a batch is run.
fn refused(error: ort::Error) -> BackendError {
    failure::load("the options of a run", error)
}

/// What is said of a backend on the CPU that has been loading since `start`.
fn described(start: Instant, precision: &str, dimensions: usize) -> Description {
    Description {
        provider: "cpu".to_owned(),
        device: "cpu:0".to_owned(),
        devices: 1,
        precision: precision.to_owned(),
        engine: "ort".to_owned(),
        dimensions,
        load_ms: milliseconds(start),
        pid: std::process::id(),
        ..Description::default()
    }
}

pub(crate) fn milliseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Backend for OrtBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        // Before native code sees it.
        batch.check()?;
        if batch.rows().checked_mul(self.description.dimensions) != Some(out.len()) {
            let (rows, values) = (batch.rows(), out.len());
            return Err(BackendError::Failed(format!(
                "a batch of {rows} rows has room for {values} values of {} dimensions",
                self.description.dimensions
            )));
        }
        self.compute(batch, out, false)
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        if self.description.buckets.is_none() || batch.tokens() < BESIDE_TOKENS_MIN {
            meanwhile(&mut |_| false);
            return self.run(batch, out);
        }
        // A run returns when the device is done.
        std::thread::scope(|scope| {
            // Where there is no thread to be had, the engine does it when this returns.
            let _ = std::thread::Builder::new().spawn_scoped(scope, || meanwhile(&mut |_| false));
            self.run(batch, out)
        })
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        let separate = self.separate;
        let bytes =
            |of: &Self| of.memory().arena.filter(|_| separate).map_or(0, |arena| arena.bytes);
        let before = bytes(self);
        // An arena gives back what nothing lies in.
        self.let_go();
        if self.shrink.is_some()
            && let Err(error) = self.run_any(true)
        {
            // A provider without an arena of this kind says so before it runs anything.
            tracing::debug!(%error, "the runtime's arenas did not shrink");
        }
        self.let_go();
        let given_back = before.saturating_sub(bytes(self));
        Ok(Footprint { given_back, ..Footprint::default() })
    }

    fn memory(&self) -> MemoryUse {
        let buffers = match &self.feed {
            Feed::Bound(buffers) => Some(buffers),
            Feed::Compiled | Feed::Own(_) => None,
        };
        MemoryUse {
            buffers: buffers.map(Buffers::counts),
            replays: buffers.and_then(Buffers::replays),
            transfers: self.in_place.map(|_| self.transfers),
            arena: self.arena.as_ref().and_then(Arena::read),
        }
    }
}
