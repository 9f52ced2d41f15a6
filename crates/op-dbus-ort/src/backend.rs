//! The backend: a loaded session that turns batches into vectors.

use std::io;
use std::sync::Arc;
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
use crate::lanes::{Lanes, With};
use crate::placement::Placement;
use crate::recording;
use crate::rows::Rows;
use crate::{Graph, Options, failure, library, session};

/// A model computed by ONNX Runtime, on the CPU or on an accelerator.
pub struct OrtBackend {
    /// Threads that compute have it as well, for as long as they do.
    pub(crate) session: Arc<Session>,
    /// How batches are run.
    run: Arc<RunOptions>,
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
}

/// Time for batches that only prepare shapes: beyond it no further one is begun.
pub(crate) const WARM_UP_MAX: Duration = Duration::from_secs(5);

impl OrtBackend {
    /// Loads the library, unless this process has it already, and makes a session of the graph. An
    /// accelerator has to prove itself: a batch is run, and what of it ran elsewhere is an error.
    ///
    /// # Errors
    /// [`BackendError::Load`]: a library or a provider that can't be used (`ProviderUnavailable`), a
    /// damaged graph (`ModelCorrupt`), or one whose inputs and outputs are not understood.
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
            let asked_for = (options.io_binding, options.buckets);
            return Ok(backend.placed((Memory::Same, false), places, asked_for));
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
        let mut backend =
            Self::assemble(builder, graph, description).map_err(|error| match error {
                // What the provider can't compile says nothing about the model's files.
                BackendError::Load { message, .. } => accelerator.unavailable(message),
                error => error,
            })?;
        let memory = (accelerator.memory(), accelerator.runs_together());
        backend =
            backend.placed(memory, accelerator.places(), (options.io_binding, options.buckets));
        if accelerator.records() {
            // Recordings point into the arenas, which are left as they are.
            let mut run = RunOptions::new().map_err(refused)?;
            recording::skip(&mut run).map_err(refused)?;
            backend.run = Arc::new(run);
        } else {
            backend.shrink =
                session::shrinking(&accelerator.arenas()).map(Some).map_err(refused)?;
        }
        backend.prove(&accelerator, &name)?;
        let unavailable = |error: BackendError| accelerator.unavailable(error.to_string());
        if options.calibrate {
            backend.calibrate(accelerator.compiles_shapes()).map_err(unavailable)?;
        }
        backend.warm_up().map_err(unavailable)?;
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
            let session = Arc::get_mut(&mut self.session).ok_or("it is in use")?;
            Ok(Placement::read(&std::fs::read(session.end_profiling()?)?, name)?)
        };
        let unknown =
            |error| accelerator.unavailable(format!("what it ran can't be read ({error})"));
        match read().map_err(unknown)?.problem() {
            None => Ok(()),
            Some(problem) => Err(accelerator.unavailable(problem)),
        }
    }

    /// A backend of a session that `builder` makes of the graph.
    fn assemble(
        builder: SessionBuilder,
        graph: Graph,
        description: Description,
    ) -> Result<Self, BackendError> {
        let (session, feed) = Feed::load(builder, graph, description.dimensions)?;
        memory::trim();
        let (session, run) = (Arc::new(session), Arc::new(RunOptions::new().map_err(refused)?));
        Ok(Self {
            session,
            run,
            shrink: None,
            feed,
            description,
            in_place: None,
            transfers: TransferUse::default(),
            separate: false,
            arena: None,
        })
    }

    /// With buffers that are kept, if that is asked for or what the device's memory calls for. Graphs of
    /// the user's own are fed as ever. The device computes several batches `together`, or one after the other; the
    /// places are memory that it reaches, and its own.
    fn placed(
        mut self,
        (memory, together): (Memory, bool),
        (staging, own): (Option<Place>, Option<Place>),
        (asked_for, buckets): (Option<bool>, Buckets),
    ) -> Self {
        // What is not bound comes back in a tensor that the runtime has made, and is copied out of it.
        self.in_place = match memory {
            Memory::Same => Some([true, false]),
            Memory::Separate | Memory::Pinned => Some([false, false]),
            Memory::Untold => None,
        };
        self.separate = memory.is_separate();
        match &self.feed {
            Feed::Compiled(rows) if asked_for.unwrap_or(memory.is_separate()) => {
                let dimensions = self.description.dimensions;
                let buffers = || Buffers::new(&self.session, (memory, staging.clone()), dimensions);
                let (packed, first) = (matches!(rows, Rows::Packed(_)), buffers());
                self.in_place = first.is_in_place();
                let mut lanes = Lanes::new(rows.like(), first);
                if memory.is_separate() {
                    lanes.add(buffers(), together);
                    self.description.buckets = Some(Buckets { packed, ..buckets });
                }
                self.feed = Feed::Bound(lanes);
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
    /// time for.
    fn warm_up(&mut self) -> Result<(), BackendError> {
        let shapes = self.description.buckets.map(|buckets| buckets.shapes()).unwrap_or_default();
        let Some(smallest @ [rows, length]) = shapes.last().copied() else { return Ok(()) };
        let began = Instant::now();
        self.run_shape(smallest)?;
        let again = Instant::now();
        self.run_shape(smallest)?;
        // No larger batch costs more for each of its tokens, but for what is prepared.
        let token = again.elapsed() / u32::try_from(rows * length).unwrap_or(u32::MAX);
        let most = |[rows, length]: [usize; 2]| {
            token.saturating_mul(u32::try_from(rows * length).unwrap_or(u32::MAX))
        };
        let quick = |shape: &&[usize; 2]| most(**shape) < WARM_UP_MAX / 10;
        self.prove_beside(*shapes.iter().find(quick).unwrap_or(&smallest))?;
        let mut ready = 0;
        for shape in shapes.iter().copied() {
            if most(shape) > WARM_UP_MAX.saturating_sub(began.elapsed()) {
                continue;
            }
            match self.run_shape_beside(shape) {
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
        if let Some(lanes) = self.lanes() {
            lanes.start_counting();
        }
    }

    /// Computes a batch of this shape without padding.
    pub(crate) fn run_shape(&mut self, shape: [usize; 2]) -> Result<(), BackendError> {
        let (ids, lengths) = full(shape);
        let mut out = vec![0.0; lengths.len() * self.description.dimensions];
        self.compute(&Batch { ids: &ids, lengths: &lengths }, &mut out, false)
    }

    /// As [`run_shape`](Self::run_shape), beside another of the same shape where the device computes two at once;
    /// otherwise what that one needs is made as well.
    fn run_shape_beside(&mut self, shape: [usize; 2]) -> Result<(), BackendError> {
        let (ids, lengths) = full(shape);
        let batch = Batch { ids: &ids, lengths: &lengths };
        let mut out = vec![0.0; lengths.len() * self.description.dimensions];
        if self.lanes().is_some_and(|lanes| lanes.are_together()) {
            return self.compute_beside([&batch, &batch], [&mut out, &mut []]);
        }
        let buckets = self.description.buckets;
        if let Feed::Bound(lanes) = &mut self.feed {
            lanes.prepare(&self.session, &batch, buckets)?;
        }
        self.compute(&batch, &mut out, false)
    }

    /// Computes two batches at once, the second by a thread.
    fn compute_beside(
        &mut self,
        [batch, other]: [&Batch<'_>; 2],
        [out, others]: [&mut [f32]; 2],
    ) -> Result<(), BackendError> {
        let (with, buckets) = (self.with(), self.description.buckets);
        self.lanes().map(|lanes| lanes.begin(&with, other, buckets));
        let result = self.compute(batch, out, false);
        result.and(self.lanes().map_or(Ok(()), |lanes| lanes.finish_begun(others)))
    }

    /// Has the device compute two batches of this shape at once, where it is to, and one at a time from here on if
    /// it has no room for them or makes something else of them.
    fn prove_beside(&mut self, shape: [usize; 2]) -> Result<(), BackendError> {
        if !self.lanes().is_some_and(|lanes| lanes.are_together()) {
            return Ok(());
        }
        let (ids, lengths) = full(shape);
        let others: Vec<i32> = (1..=12).cycle().take(ids.len()).collect();
        let batches = [&ids, &others].map(|ids| Batch { ids, lengths: &lengths });
        let [mut alone, mut beside] =
            [0; 2].map(|_| [0; 2].map(|_| vec![0.0; lengths.len() * self.description.dimensions]));
        let mut prove = || {
            for (batch, out) in batches.iter().zip(&mut alone) {
                self.compute(batch, out, false)?;
            }
            let [one, other] = &mut beside;
            self.compute_beside([&batches[0], &batches[1]], [one, other])?;
            let pairs = alone.iter().zip(&beside);
            pairs.into_iter().try_for_each(|(alone, beside)| recording::compare(alone, beside))
        };
        if let Err(error) = prove() {
            let device = &self.description.device;
            tracing::warn!(%error, "{device} computes one batch at a time: {error}");
            self.lanes().map(Lanes::keep_one);
            self.trim()?;
        }
        Ok(())
    }

    fn lanes(&mut self) -> Option<&mut Lanes> {
        match &mut self.feed {
            Feed::Bound(lanes) => Some(lanes),
            Feed::Compiled(_) | Feed::Own(_) => None,
        }
    }

    /// What threads compute batches with.
    fn with(&self) -> With {
        With { session: Arc::clone(&self.session), options: Arc::clone(&self.run) }
    }

    /// Runs some batch. With `shrink` the arenas give back what they don't use after it.
    fn run_any(&mut self, shrink: bool) -> Result<(), BackendError> {
        // Ids that every vocabulary has; which they are does not matter here.
        let (ids, lengths): (Vec<i32>, [i32; 2]) = ((1..=12).collect(), [8, 4]);
        let mut out = vec![0.0; 2 * self.description.dimensions];
        self.compute(&Batch { ids: &ids, lengths: &lengths }, &mut out, shrink)
    }

    pub(crate) fn compute(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        shrink: bool,
    ) -> Result<(), BackendError> {
        let Self { session, feed, run, shrink: shrinking, .. } = self;
        let options = shrinking.as_ref().filter(|_| shrink).unwrap_or(run);
        let transfer = feed.run((session, options), (batch, self.description.buckets), out)?;
        self.count(transfer);
        Ok(())
    }

    fn count(&mut self, Transfer { inputs, results }: Transfer) {
        if let Some([inputs_in_place, results_in_place]) = self.in_place {
            self.transfers.count(inputs, inputs_in_place);
            self.transfers.count(results, results_in_place);
        }
    }
}

/// Ids, which every vocabulary has, and lengths of a batch of this shape without padding.
fn full([rows, length]: [usize; 2]) -> (Vec<i32>, Vec<i32>) {
    (vec![1; rows * length], vec![i32::try_from(length).unwrap_or(i32::MAX); rows])
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
        self.run_while(batch, out, &mut |_, _| ())
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        // Before native code sees it.
        batch.check()?;
        if batch.rows().checked_mul(self.description.dimensions) != Some(out.len()) {
            let (rows, values) = (batch.rows(), out.len());
            return Err(BackendError::Failed(format!(
                "a batch of {rows} rows has room for {values} values of {} dimensions",
                self.description.dimensions
            )));
        }
        let (with, buckets) = (self.with(), self.description.buckets);
        let running = match &mut self.feed {
            Feed::Bound(lanes) => lanes.start(&with, batch, buckets)?.map(|one| (lanes, one)),
            Feed::Compiled(_) | Feed::Own(_) => None,
        };
        let Some((lanes, running)) = running else {
            drop(with);
            meanwhile(None, &mut |_| false);
            return self.compute(batch, out, false);
        };
        meanwhile(Some(running.done()), &mut |next| lanes.begin(&with, next, buckets));
        let transfer = lanes.finish(running, out)?;
        self.count(transfer);
        Ok(())
    }

    fn forget_begun(&mut self) {
        if let Feed::Bound(lanes) = &mut self.feed {
            // Of a thread that has ended the next batch is told.
            let _ = lanes.finish_begun(&mut []);
        }
    }

    fn begins(&self) -> bool {
        matches!(&self.feed, Feed::Bound(lanes) if lanes.begins())
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        let separate = self.separate;
        let bytes =
            |of: &Self| of.memory().arena.filter(|_| separate).map_or(0, |arena| arena.bytes);
        let before = bytes(self);
        // An arena gives back what nothing lies in.
        self.feed.clear();
        if self.shrink.is_some()
            && let Err(error) = self.run_any(true)
        {
            // A provider without an arena of this kind says so before it runs anything.
            tracing::debug!(%error, "the runtime's arenas did not shrink");
        }
        self.feed.clear();
        let given_back = before.saturating_sub(bytes(self));
        Ok(Footprint { given_back, ..Footprint::default() })
    }

    fn memory(&self) -> MemoryUse {
        let lanes = match &self.feed {
            Feed::Bound(lanes) => Some(lanes),
            Feed::Compiled(_) | Feed::Own(_) => None,
        };
        MemoryUse {
            buffers: lanes.map(Lanes::counts),
            replays: lanes.and_then(Lanes::replays),
            transfers: self.in_place.map(|_| self.transfers),
            arena: self.arena.as_ref().and_then(Arena::read),
        }
    }
}
