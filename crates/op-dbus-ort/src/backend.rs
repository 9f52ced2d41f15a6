//! The backend: a loaded session that turns batches into vectors.

use std::io;
use std::time::Instant;

use op_dbus_engine::foreign::{self, Filled, Output, Padded, Pooling};
use op_dbus_engine::{Backend, BackendError, Batch, Description, Footprint, memory};
use ort::memory::AllocationDevice;
use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session, SessionInputValue};
use ort::value::TensorRef;

use crate::accelerator::Accelerator;
use crate::binding::Buffers;
use crate::own::Input;
use crate::placement::Placement;
use crate::{Graph, Options, failure, library, own, session};

/// A model computed by ONNX Runtime, on the CPU or on an accelerator.
pub struct OrtBackend {
    session: Session,
    /// How batches are run.
    run: RunOptions,
    /// How one is run after which the arenas give back what they don't use; none where there are none.
    shrink: Option<RunOptions>,
    feed: Feed,
    description: Description,
    padded: Padded,
    /// Tokens of the longest row up to which shapes are rounded; none where batches keep theirs.
    rounded: Option<usize>,
}

/// How batches go into the graph and vectors come out of it.
enum Feed {
    Compiled,
    /// As `Compiled`, by buffers that are kept.
    Bound(Buffers),
    Own(OwnFeed),
}

struct OwnFeed {
    inputs: Vec<Input>,
    /// The data of each input.
    filled: Vec<Filled>,
    output: Output,
    pooling: Pooling,
    normalize: bool,
}

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
            return Ok(backend.bound((false, None), options.io_binding, options.length_max));
        };
        let (builder, name, devices) = accelerator.builder(&environment)?;
        let fault = |error: io::Error| {
            accelerator.unavailable(format!("no place to look for what it ran ({error})"))
        };
        let folder = tempfile::tempdir().map_err(fault)?;
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
        backend = backend.bound(accelerator.memory(), options.io_binding, options.length_max);
        backend.shrink = session::shrinking(&accelerator.arenas()).map(Some).map_err(refused)?;
        backend.prove(&accelerator, &name)?;
        backend.description.load_ms = milliseconds(start);
        Ok(backend)
    }

    /// Runs one batch under the runtime's profiler and reads where the operators ran.
    fn prove(&mut self, accelerator: &Accelerator, name: &str) -> Result<(), BackendError> {
        let failed = |error: BackendError| accelerator.unavailable(error.to_string());
        self.run_any(false).map_err(failed)?;
        let mut read = || -> Result<Placement, Box<dyn std::error::Error>> {
            Ok(Placement::read(&std::fs::read(self.session.end_profiling()?)?, name)?)
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
        let dimensions = description.dimensions;
        let (session, feed) = match graph {
            Graph::Compiled(bytes) => compiled(builder, &bytes, dimensions)?,
            Graph::Own { path, pooling, normalize } => {
                let mut builder = builder;
                let session = builder
                    .commit_from_file(&path)
                    .map_err(|error| failure::load(&path.display().to_string(), error))?;
                let refused = |reason| failure::unusable(format!("{}: {reason}", path.display()));
                let inputs = own::inputs(&session).map_err(refused)?;
                let output = own::output(&session, dimensions).map_err(refused)?;
                let filled = inputs.iter().map(|input| Filled::new(input.integers)).collect();
                (session, Feed::Own(OwnFeed { inputs, filled, output, pooling, normalize }))
            }
        };
        memory::trim();
        let run = RunOptions::new().map_err(refused)?;
        let padded = Padded::default();
        Ok(Self { session, run, shrink: None, feed, description, padded, rounded: None })
    }

    /// With buffers that are kept, if that is asked for or what the device's memory calls for. Graphs of
    /// the user's own are fed as ever.
    fn bound(
        mut self,
        memory: (bool, Option<(AllocationDevice<'static>, i32)>),
        asked_for: Option<bool>,
        length_max: usize,
    ) -> Self {
        let (separate, _) = memory;
        match self.feed {
            Feed::Compiled if asked_for.unwrap_or(separate) => {
                let dimensions = self.description.dimensions;
                self.feed = Feed::Bound(Buffers::new(&self.session, memory, dimensions));
                self.rounded = separate.then_some(length_max);
            }
            Feed::Own(_) if asked_for == Some(true) => {
                tracing::warn!(
                    "io_binding is on, which has no effect on an ONNX graph of your own"
                );
            }
            _ => {}
        }
        self
    }

    /// Runs some batch. With `shrink` the arenas give back what they don't use after it.
    fn run_any(&mut self, shrink: bool) -> Result<(), BackendError> {
        // Ids that every vocabulary has; which they are does not matter here.
        let (ids, lengths): (Vec<i32>, [i32; 2]) = ((1..=12).collect(), [8, 4]);
        let mut out = vec![0.0; 2 * self.description.dimensions];
        self.compute(&Batch { ids: &ids, lengths: &lengths }, &mut out, shrink)
    }

    fn compute(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        shrink: bool,
    ) -> Result<(), BackendError> {
        match self.rounded {
            Some(length_max) => self.padded.fill_rounded(batch, length_max),
            None => self.padded.fill(batch),
        }
        let Self { session, feed, padded, run, shrink: shrinking, .. } = self;
        let options = shrinking.as_ref().filter(|_| shrink).unwrap_or(run);
        match feed {
            Feed::Compiled => run_compiled((session, options), padded, out),
            Feed::Bound(buffers) => {
                buffers.run((session, options), padded, out).map_err(failure::run)
            }
            Feed::Own(feed) => feed.run((session, options), padded, batch.lengths, out),
        }
    }
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
        isa: String::new(),
        dimensions,
        batch_tokens: 0,
        load_ms: milliseconds(start),
        pid: std::process::id(),
        sandbox: String::new(),
    }
}

fn milliseconds(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn compiled(
    mut builder: SessionBuilder,
    bytes: &[u8],
    dimensions: usize,
) -> Result<(Session, Feed), BackendError> {
    let session = builder
        .commit_from_memory(bytes)
        .map_err(|error| failure::load("the compiled graph", error))?;
    let shape = session.outputs().first().and_then(|output| output.dtype().tensor_shape());
    let found = shape.and_then(|shape| shape.last().copied()).unwrap_or(0);
    if usize::try_from(found) != Ok(dimensions) {
        return Err(failure::unusable(format!(
            "the compiled graph gives vectors of {found} dimensions, but the model's record says \
             {dimensions}"
        )));
    }
    Ok((session, Feed::Compiled))
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

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        if self.shrink.is_some()
            && let Err(error) = self.run_any(true)
        {
            // A provider without an arena of this kind says so before it runs anything.
            tracing::debug!(%error, "the runtime's arenas did not shrink");
        }
        self.padded = Padded::default();
        match &mut self.feed {
            Feed::Compiled => {}
            Feed::Bound(buffers) => {
                let (share, shapes) = buffers.reuse();
                tracing::info!(share, shapes, "batches that found their buffers");
                buffers.clear();
            }
            Feed::Own(feed) => {
                feed.filled = feed.inputs.iter().map(|input| Filled::new(input.integers)).collect();
            }
        }
        Ok(Footprint::default())
    }
}

fn run_compiled(
    (session, options): (&mut Session, &RunOptions),
    padded: &Padded,
    out: &mut [f32],
) -> Result<(), BackendError> {
    let mut run = || -> ort::Result<()> {
        let ids = TensorRef::from_array_view((padded.shape(), &padded.ids[..]))?;
        let lengths = TensorRef::from_array_view(([padded.rows], &padded.lengths[..]))?;
        let outputs = session
            .run_with_options(ort::inputs!["input_ids" => ids, "lengths" => lengths], options)?;
        let (_, vectors) = outputs["embedding"].try_extract_tensor::<f32>()?;
        copy(vectors, out)
    };
    run().map_err(failure::run)
}

/// Copies a result of exactly the expected size.
fn copy(vectors: &[f32], out: &mut [f32]) -> ort::Result<()> {
    if vectors.len() != out.len() {
        return Err(wrong_size(vectors.len(), out.len()));
    }
    out.copy_from_slice(vectors);
    Ok(())
}

fn wrong_size(found: usize, expected: usize) -> ort::Error {
    ort::Error::new(format!("the graph gave {found} values instead of {expected}"))
}

impl OwnFeed {
    fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        padded: &Padded,
        lengths: &[i32],
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        for (input, data) in self.inputs.iter().zip(&mut self.filled) {
            data.fill(input.content, padded, lengths);
        }
        let mut run = || -> ort::Result<()> {
            let shape = padded.shape();
            let mut values = Vec::with_capacity(self.filled.len());
            for (input, data) in self.inputs.iter().zip(&self.filled) {
                let value: SessionInputValue<'_> = match data {
                    Filled::I32(data) => TensorRef::from_array_view((shape, &data[..]))?.into(),
                    Filled::I64(data) => TensorRef::from_array_view((shape, &data[..]))?.into(),
                };
                values.push((input.name.as_str(), value));
            }
            let outputs = session.run_with_options(values, options)?;
            let (_, found) = outputs[self.output.name.as_str()].try_extract_tensor::<f32>()?;
            self.take(found, (padded.sequence_length, lengths), out)
        };
        run().map_err(failure::run)
    }

    /// From what the graph gave to one vector per row.
    fn take(
        &self,
        found: &[f32],
        (sequence_length, lengths): (usize, &[i32]),
        out: &mut [f32],
    ) -> ort::Result<()> {
        let dimensions = out.len() / lengths.len();
        if self.output.per_token {
            let expected = out.len() * sequence_length;
            if found.len() != expected {
                return Err(wrong_size(found.len(), expected));
            }
            foreign::pool(self.pooling, (sequence_length, lengths), dimensions, found, out);
        } else {
            copy(found, out)?;
        }
        if self.normalize {
            foreign::normalize(dimensions, out);
        }
        Ok(())
    }
}
