//! Runs of one shape of batch that a provider records once and replays: the device is told once for a batch
//! what to do, and not once for each operator.
//!
//! What is recorded are addresses. So inputs and results have places of their own in the device's memory,
//! and are copied there and back outside of the run. The provider records the first run under a number and
//! replays that in all others under it.

use std::time::Instant;

use op_dbus_engine::{BackendError, Batch};
use ort::environment::Environment;
use ort::memory::{Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::Tensor;
use ort::{AsPointer, sys};

use crate::accelerator::Place;
use crate::backend::{OrtBackend, WARM_UP_MAX, milliseconds};
use crate::binding::Staged;
use crate::feed::Feed;
use crate::{failure, session};

/// Tokens of the largest shape that is recorded, padding included. With more, a device computes for longer
/// than it takes to tell it what; and each recording keeps memory.
const TOKENS_MAX: usize = 256;

/// By how much, of the largest number, a replay may differ from a run: the same operators may sum in
/// another order, where a provider chooses among several.
const DIFFERENCE_MAX: f32 = 1e-3;

/// The option of a run that has its number.
const NUMBER: &str = "gpu_graph_id";

/// Says that runs with these options are neither recorded nor replayed.
///
/// # Errors
/// Whatever ONNX Runtime says.
pub(crate) fn skip(options: &mut RunOptions) -> ort::Result<()> {
    options.set(NUMBER, "-1")
}

/// Whether what was replayed is what an ordinary run has made.
///
/// # Errors
/// It is not.
fn compare(expected: &[f32], found: &[f32]) -> Result<(), BackendError> {
    let largest = expected.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= DIFFERENCE_MAX * largest;
    match expected.iter().zip(found).all(near) {
        true => Ok(()),
        false => Err(BackendError::Failed("what was replayed differs from a run".to_owned())),
    }
}

impl OrtBackend {
    /// Has the provider record batches of the small shapes, the smallest first, of which the least time
    /// goes into computing: as many as there is time for.
    pub(crate) fn record(&mut self, environment: Environment, place: Place) {
        let Feed::Bound(buffers) = &mut self.feed else { return };
        let alone = session::alone(&self.description.provider);
        let recorder = Recorder::new(environment, &self.session, place);
        drop(alone);
        match recorder {
            Ok(recorder) => buffers.record_with(recorder),
            Err(error) => return tracing::warn!(%error, "no batch is recorded"),
        }
        let shapes = self.description.buckets.map(|buckets| buckets.shapes()).unwrap_or_default();
        let is_small = |[rows, length]: &[usize; 2]| rows * length <= TOKENS_MAX;
        let (began, mut recorded) = (Instant::now(), 0);
        for [rows, length] in shapes.into_iter().rev().filter(is_small) {
            if began.elapsed() > WARM_UP_MAX {
                break;
            }
            if let Err(error) = self.record_shape([rows, length]) {
                tracing::warn!(%error, rows, length, "batches of this shape are not replayed");
                break;
            }
            recorded += 1;
        }
        self.start_counting();
        tracing::info!(recorded, record_ms = milliseconds(began), "shapes of batches are recorded");
    }

    /// Records a shape, with one batch, and compares what is replayed of another with what an ordinary run
    /// makes of it.
    fn record_shape(&mut self, shape @ [rows, length]: [usize; 2]) -> Result<(), BackendError> {
        let lengths: Vec<i32> = (0..rows)
            .map(|row| i32::try_from(length.saturating_sub(row % 3).max(1)).unwrap_or(1))
            .collect();
        let tokens = lengths.iter().map(|&length| length as usize).sum();
        let ids: Vec<i32> = (1..=12).cycle().take(tokens).collect();
        let batch = Batch { ids: &ids, lengths: &lengths };
        let mut expected = vec![0.0; rows * self.description.dimensions];
        let mut found = expected.clone();
        self.compute(&batch, &mut expected, false)?;
        let Feed::Bound(buffers) = &mut self.feed else { return Ok(()) };
        let alone = session::alone(&self.description.provider);
        let recorded = buffers.record(&mut self.session, shape).map_err(failure::run);
        drop(alone);
        let replayed = recorded.and_then(|()| self.compute(&batch, &mut found, false));
        let result = replayed.and_then(|()| compare(&expected, &found));
        if let (Err(_), Feed::Bound(buffers)) = (&result, &mut self.feed) {
            let _alone = session::alone(&self.description.provider);
            buffers.forget(shape);
        }
        result
    }
}

/// What recordings are made with.
pub(crate) struct Recorder {
    environment: Environment,
    /// Of the device's memory.
    allocator: Allocator,
    /// Recordings so far. A number is never used again: its recording points to what may be gone.
    made: usize,
}

impl Recorder {
    /// For a session that computes in the memory of a device.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn new(
        environment: Environment,
        session: &Session,
        (device, number): Place,
    ) -> ort::Result<Self> {
        let info = MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::Default)?;
        Ok(Self { environment, allocator: Allocator::new(session, info)?, made: 0 })
    }

    /// Places for a recording of this shape, which the first run makes.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn prepare(
        &mut self,
        session: &Session,
        shape: [usize; 2],
        dimensions: usize,
    ) -> ort::Result<Recording> {
        self.made += 1;
        let mut run = RunOptions::new()?;
        run.set(NUMBER, self.made.to_string())?;
        let [rows, _] = shape;
        let ids = Tensor::<i32>::new(&self.allocator, shape)?;
        let lengths = Tensor::<i32>::new(&self.allocator, [rows])?;
        let mut vectors = Tensor::<f32>::new(&self.allocator, [rows, dimensions])?;
        let mut binding = session.create_binding()?;
        binding.bind_input("input_ids", &ids)?;
        binding.bind_input("lengths", &lengths)?;
        binding.bind_output("embedding", &mut vectors)?;
        let environment = self.environment.clone();
        Ok(Recording { environment, run, binding, ids, lengths, vectors })
    }
}

/// A recording of one shape, and the places in the device's memory that it points to.
pub(crate) struct Recording {
    environment: Environment,
    run: RunOptions,
    binding: IoBinding,
    ids: Tensor<i32>,
    lengths: Tensor<i32>,
    vectors: Tensor<f32>,
}

impl Recording {
    /// Computes a batch of the shape, from memory of the host into such memory.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        session: &mut Session,
        inputs: &[Staged<i32>],
        vectors: &mut Staged<f32>,
    ) -> ort::Result<()> {
        let [ids, lengths] = inputs else {
            return Err(ort::Error::new("only padded batches are recorded"));
        };
        // SAFETY: these are pairs of one shape and type, and all of them borrowed until it is done; nobody
        // else has the device's, as a run reads them that is waited for.
        unsafe {
            copy(&self.environment, ids.ptr(), self.ids.ptr())?;
            copy(&self.environment, lengths.ptr(), self.lengths.ptr())?;
        }
        drop(session.run_binding_with_options(&self.binding, &self.run)?);
        let from = self.vectors.ptr();
        // SAFETY: as above; that into which it is copied is borrowed for it alone.
        vectors.filled_by(|to| unsafe { copy(&self.environment, from, to) })
    }
}

/// Copies a tensor from one memory into another, and waits for it.
///
/// # Safety
/// Both are there and of one shape and type, and nobody writes to the first nor has a reference to the data
/// of the second, until this returns.
unsafe fn copy(
    environment: &Environment,
    from: *const sys::OrtValue,
    mut to: *const sys::OrtValue,
) -> ort::Result<()> {
    let (environment, in_order) = (environment.ptr().cast_mut(), std::ptr::null_mut());
    // SAFETY: the runtime has this function, which is older than the version that the binding asks of it;
    // it reads one pointer behind each, and without a stream it returns when the data are there.
    let status =
        unsafe { (ort::api().CopyTensors)(environment, &raw const from, &raw mut to, in_order, 1) };
    // SAFETY: the status is the runtime's own, and nobody else has it.
    unsafe { ort::Error::result_from_status(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replayed_of_another_batch_is_told() {
        let expected = [0.5, -0.25, 0.0];
        assert!(compare(&expected, &[0.5001, -0.25, 0.0002]).is_ok());
        for found in [[0.5, 0.25, 0.0], [0.0, 0.0, 0.0], [0.5, -0.25, f32::NAN]] {
            assert!(compare(&expected, &found).is_err(), "{found:?}");
        }
    }
}
