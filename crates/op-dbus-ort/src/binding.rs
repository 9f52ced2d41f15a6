//! Buffers that are bound to a session once for each shape of batch, and used again.
//!
//! Without them the runtime makes tensors for every batch, and a driver copies from memory that it
//! first has to pin. Where a device has memory of its own, shapes are rounded up to few: each has
//! buffers, and whatever the provider prepares for a shape.

use op_dbus_engine::BufferUse;
use op_dbus_engine::foreign::Padded;
use ort::memory::{Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::Tensor;

use crate::accelerator::{Memory, Place};
use crate::feed::Transfer;
use crate::recording::{Recorder, Recording};

/// Shapes whose buffers are kept; beyond them those go that were not used for longest.
const SHAPES_MAX: usize = 128;

/// The buffers of a session.
pub(crate) struct Buffers {
    /// The last one used last.
    bound: Vec<Bound>,
    allocator: Allocator,
    /// Of the device.
    memory: Memory,
    dimensions: usize,
    counts: BufferUse,
    /// Where the provider records.
    recorder: Option<Recorder>,
    /// Batches that were replayed.
    replays: u64,
}

/// The buffers of one shape, in the host's memory, and what was recorded of it. Results are in ordinary memory:
/// into what the device writes by itself ONNX Runtime 1.31 can't put what CUDA has computed (it takes the buffer
/// for both ends of a copy, and refuses the batch).
struct Bound {
    shape: [usize; 2],
    binding: IoBinding,
    ids: Tensor<i32>,
    lengths: Tensor<i32>,
    vectors: Tensor<f32>,
    recording: Option<Recording>,
}

impl Buffers {
    /// Buffers for inputs in memory that the device of `staging` reads by itself, if it can be had; else in
    /// ordinary memory.
    pub fn new(
        session: &Session,
        (memory, staging): (Memory, Option<Place>),
        dimensions: usize,
    ) -> Self {
        let pinned = |(device, number)| {
            let info =
                MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::CPUOutput);
            Allocator::new(session, info?)
        };
        let (allocator, memory) = match staging.map(pinned) {
            Some(Ok(allocator)) => (allocator, memory),
            Some(Err(error)) => {
                tracing::warn!(%error, "no pinned memory for batches; they go through ordinary memory");
                (Allocator::default(), Memory::Separate)
            }
            None => (Allocator::default(), memory),
        };
        let counts = BufferUse::default();
        let (bound, recorder) = (Vec::new(), None);
        Self { bound, allocator, memory, dimensions, counts, recorder, replays: 0 }
    }

    /// Makes recordings with `recorder` from here on.
    pub fn record_with(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Has the provider record a run of this shape, which others of the shape then replay. Without a
    /// recorder nothing happens.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says; then nothing is replayed.
    pub fn record(&mut self, session: &mut Session, shape: [usize; 2]) -> ort::Result<()> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        let mut recording = recorder.prepare(session, shape, self.dimensions)?;
        let Bound { ids, lengths, vectors, recording: recorded, .. } = self.of(session, shape)?;
        let [_, length] = shape;
        ids.extract_tensor_mut().1.fill(1);
        lengths.extract_tensor_mut().1.fill(i32::try_from(length).unwrap_or(i32::MAX));
        recording.run(session, (ids, lengths), vectors)?;
        *recorded = Some(recording);
        Ok(())
    }

    /// Runs of this shape are not replayed any more.
    pub fn forget(&mut self, shape: [usize; 2]) {
        for bound in self.bound.iter_mut().filter(|bound| bound.shape == shape) {
            bound.recording = None;
        }
    }

    /// Computes a batch, of which the caller wants the first rows: as many as `out` has room for. Tells
    /// what went to the device and came back.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        padded: &Padded,
        out: &mut [f32],
    ) -> ort::Result<Transfer> {
        let separate = self.memory.is_separate();
        let bound = self.of(session, padded.shape())?;
        let Bound { binding, ids, lengths, vectors, recording, .. } = bound;
        ids.extract_tensor_mut().1.copy_from_slice(&padded.ids);
        lengths.extract_tensor_mut().1.copy_from_slice(&padded.lengths);
        if let Some(recording) = recording {
            recording.run(session, (ids, lengths), vectors)?;
        } else {
            if separate {
                binding.bind_input("input_ids", ids)?;
                binding.bind_input("lengths", lengths)?;
            }
            drop(session.run_binding_with_options(binding, options)?);
        }
        let replayed = recording.is_some();
        let (_, vectors) = vectors.extract_tensor();
        out.copy_from_slice(&vectors[..out.len()]);
        let inputs = size_of_val(&padded.ids[..]) + size_of_val(&padded.lengths[..]);
        let results = size_of_val(vectors);
        self.replays += u64::from(replayed);
        Ok(Transfer { inputs, results })
    }

    /// Batches that were replayed; none where nothing is recorded.
    pub fn replays(&self) -> Option<u64> {
        self.recorder.as_ref().map(|_| self.replays)
    }

    /// Batches by whether there were buffers of their shape.
    pub fn counts(&self) -> BufferUse {
        self.counts
    }

    /// Counts from here on.
    pub fn start_counting(&mut self) {
        self.counts = BufferUse::default();
        self.replays = 0;
    }

    /// Whether the device itself reads inputs, and writes results, where they lie here; none where that is
    /// not known.
    pub fn is_in_place(&self) -> Option<[bool; 2]> {
        match self.memory {
            Memory::Same => Some([true; 2]),
            Memory::Pinned => Some([true, false]),
            Memory::Separate => Some([false; 2]),
            Memory::Untold => None,
        }
    }

    /// Gives the buffers back, but for those of shapes that are recorded: what the provider keeps for a
    /// recording would be made a second time.
    pub fn clear(&mut self) {
        self.bound.retain(|bound| bound.recording.is_some());
    }

    /// The buffers of a shape.
    fn of(&mut self, session: &Session, shape: [usize; 2]) -> ort::Result<&mut Bound> {
        let bound = match self.bound.iter().position(|bound| bound.shape == shape) {
            Some(at) => {
                self.counts.found += 1;
                self.bound.remove(at)
            }
            None => {
                self.counts.made += 1;
                if self.bound.len() >= SHAPES_MAX {
                    let oldest = self.bound.iter().position(|bound| bound.recording.is_none());
                    self.bound.remove(oldest.unwrap_or(0));
                }
                self.bind(session, shape)?
            }
        };
        self.bound.push(bound);
        self.bound.last_mut().ok_or_else(|| ort::Error::new("no buffers are bound"))
    }

    fn bind(&self, session: &Session, shape: [usize; 2]) -> ort::Result<Bound> {
        let [rows, _] = shape;
        let mut binding = session.create_binding()?;
        let ids = Tensor::<i32>::new(&self.allocator, shape)?;
        let lengths = Tensor::<i32>::new(&self.allocator, [rows])?;
        let mut vectors = Tensor::<f32>::new(&Allocator::default(), [rows, self.dimensions])?;
        // Where the device has memory of its own, this copies: each batch does it with its own data.
        if !self.memory.is_separate() {
            binding.bind_input("input_ids", &ids)?;
            binding.bind_input("lengths", &lengths)?;
        }
        binding.bind_output("embedding", &mut vectors)?;
        Ok(Bound { shape, binding, ids, lengths, vectors, recording: None })
    }
}
