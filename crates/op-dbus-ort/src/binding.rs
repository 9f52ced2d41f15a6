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
}

/// The buffers of one shape, all of them in the host's memory.
struct Bound {
    shape: [usize; 2],
    binding: IoBinding,
    ids: Tensor<i32>,
    lengths: Tensor<i32>,
    vectors: Tensor<f32>,
}

impl Buffers {
    /// Buffers in memory that the device of `staging` reads and writes by itself, if it can be had;
    /// else in ordinary memory.
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
        Self { bound: Vec::new(), allocator, memory, dimensions, counts }
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
        let Bound { binding, ids, lengths, vectors, .. } = bound;
        ids.extract_tensor_mut().1.copy_from_slice(&padded.ids);
        lengths.extract_tensor_mut().1.copy_from_slice(&padded.lengths);
        if separate {
            binding.bind_input("input_ids", ids)?;
            binding.bind_input("lengths", lengths)?;
        }
        drop(session.run_binding_with_options(binding, options)?);
        let (_, vectors) = vectors.extract_tensor();
        out.copy_from_slice(&vectors[..out.len()]);
        let inputs = size_of_val(&padded.ids[..]) + size_of_val(&padded.lengths[..]);
        Ok(Transfer { inputs, results: size_of_val(vectors) })
    }

    /// Batches by whether there were buffers of their shape.
    pub fn counts(&self) -> BufferUse {
        self.counts
    }

    /// Counts from here on.
    pub fn start_counting(&mut self) {
        self.counts = BufferUse::default();
    }

    /// Whether the device itself reads inputs and writes results where they lie here; none where that is
    /// not known.
    pub fn is_in_place(&self) -> Option<bool> {
        match self.memory {
            Memory::Same | Memory::Pinned => Some(true),
            Memory::Separate => Some(false),
            Memory::Untold => None,
        }
    }

    /// Gives the buffers back.
    pub fn clear(&mut self) {
        self.bound.clear();
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
                if self.bound.len() == SHAPES_MAX {
                    self.bound.remove(0);
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
        let mut vectors = Tensor::<f32>::new(&self.allocator, [rows, self.dimensions])?;
        // Where the device has memory of its own, this copies: each batch does it with its own data.
        if !self.memory.is_separate() {
            binding.bind_input("input_ids", &ids)?;
            binding.bind_input("lengths", &lengths)?;
        }
        binding.bind_output("embedding", &mut vectors)?;
        Ok(Bound { shape, binding, ids, lengths, vectors })
    }
}
