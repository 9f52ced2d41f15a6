//! How batches go into a graph and vectors come out of it.

use op_dbus_engine::foreign::{self, Filled, Input, Output, Padded, Pooling};
use op_dbus_engine::{BackendError, Batch};
use ort::session::builder::SessionBuilder;
use ort::session::{RunOptions, Session, SessionInputValue};
use ort::value::TensorRef;

use crate::binding::Buffers;
use crate::rows::{self, Rows};
use crate::{Graph, failure, own};

/// Bytes of a batch that went to the device and came back, padding included.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub inputs: usize,
    pub results: usize,
}

/// How batches go into the graph and vectors come out of it.
pub(crate) enum Feed {
    /// Tensors are made for each batch.
    Compiled,
    /// As `Compiled`, by buffers that are kept.
    Bound(Buffers),
    /// A graph of the user's own.
    Own(OwnFeed),
}

pub(crate) struct OwnFeed {
    inputs: Vec<Input>,
    /// The data of each input.
    filled: Vec<Filled>,
    output: Output,
    pooling: Pooling,
    normalize: bool,
}

impl Feed {
    /// Makes a session of the graph, and finds out how it is fed, and with rows in which form.
    ///
    /// # Errors
    /// [`BackendError::Load`]: a damaged graph, or one whose inputs and outputs are not understood.
    pub fn load(
        mut builder: SessionBuilder,
        graph: Graph,
        dimensions: usize,
    ) -> Result<(Session, Self, Rows), BackendError> {
        let (path, pooling, normalize) = match graph {
            Graph::Compiled(bytes) => return compiled(builder, &bytes, dimensions),
            Graph::Own { path, pooling, normalize } => (path, pooling, normalize),
        };
        let session = builder
            .commit_from_file(&path)
            .map_err(|error| failure::load(&path.display().to_string(), error))?;
        let refused = |reason| failure::unusable(format!("{}: {reason}", path.display()));
        let inputs = own::inputs(&session).map_err(refused)?;
        let output = own::output(&session, dimensions).map_err(refused)?;
        let filled = inputs.iter().map(|input| Filled::new(input.integers)).collect();
        let own = OwnFeed { inputs, filled, output, pooling, normalize };
        Ok((session, Self::Own(own), Rows::Padded(Padded::default())))
    }

    /// Computes a batch, which `rows` has taken over.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        rows: &Rows,
        batch: &Batch<'_>,
        out: &mut [f32],
    ) -> Result<Transfer, BackendError> {
        match (self, rows) {
            (Self::Own(feed), Rows::Padded(padded)) => {
                feed.run((session, options), padded, batch.lengths, out)
            }
            (Self::Bound(buffers), _) => {
                buffers.run((session, options), rows, out).map_err(failure::run)
            }
            (Self::Compiled | Self::Own(_), _) => run_compiled((session, options), rows, out),
        }
    }
}

fn compiled(
    mut builder: SessionBuilder,
    bytes: &[u8],
    dimensions: usize,
) -> Result<(Session, Feed, Rows), BackendError> {
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
    let rows = Rows::of(&session).map_err(|error| failure::load("the compiled graph", error))?;
    Ok((session, Feed::Compiled, rows))
}

fn run_compiled(
    (session, options): (&mut Session, &RunOptions),
    rows: &Rows,
    out: &mut [f32],
) -> Result<Transfer, BackendError> {
    let mut run = || -> ort::Result<Transfer> {
        let mut values: Vec<(_, SessionInputValue<'_>)> = Vec::new();
        let mut inputs = 0;
        for rows::Input { name, dims, data } in rows.inputs() {
            values.push((name, TensorRef::from_array_view((dims, data))?.into()));
            inputs += size_of_val(data);
        }
        let outputs = session.run_with_options(values, options)?;
        let (_, vectors) = outputs["embedding"].try_extract_tensor::<f32>()?;
        copy(vectors, out)?;
        Ok(Transfer { inputs, results: size_of_val(vectors) })
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
    /// Gives back what the data of the last batch take.
    pub fn clear(&mut self) {
        self.filled = self.inputs.iter().map(|input| Filled::new(input.integers)).collect();
    }

    fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        padded: &Padded,
        lengths: &[i32],
        out: &mut [f32],
    ) -> Result<Transfer, BackendError> {
        for (input, data) in self.inputs.iter().zip(&mut self.filled) {
            data.fill(input.content, padded, lengths);
        }
        let inputs = self.filled.iter().map(Filled::bytes).sum();
        let mut run = || -> ort::Result<Transfer> {
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
            self.take(found, (padded.sequence_length, lengths), out)?;
            Ok(Transfer { inputs, results: size_of_val(found) })
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
        // The engine takes a worker for lost that gives what is not finite; here the text is at fault.
        let usable = match self.normalize {
            true => foreign::normalize(dimensions, out),
            false => foreign::finite(out),
        };
        usable.map_err(|why| ort::Error::new(format!("the graph's answer is of no use: {why}")))
    }
}
