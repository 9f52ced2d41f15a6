//! Buffers that are bound to a session once for each shape of batch, and used again.
//!
//! Without them the runtime makes tensors for every batch, and a driver copies from memory that it
//! first has to pin. Where a device has memory of its own, shapes are rounded up to few: each has
//! buffers, and whatever the provider prepares for a shape.

use op_dbus_engine::foreign::Padded;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::Tensor;

/// Shapes whose buffers are kept; beyond them those go that were not used for longest.
const SHAPES_MAX: usize = 64;

/// The buffers of a session.
pub(crate) struct Buffers {
    /// The last one used last.
    bound: Vec<Bound>,
    allocator: Allocator,
    /// Whether the device has memory of its own, to which inputs are copied when they are bound.
    separate: bool,
    dimensions: usize,
    /// Batches that found their buffers, and those that had them made.
    found: u64,
    made: u64,
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
        (separate, staging): (bool, Option<(AllocationDevice<'static>, i32)>),
        dimensions: usize,
    ) -> Self {
        let pinned = |(device, number)| {
            let info =
                MemoryInfo::new(device, number, AllocatorType::Device, MemoryType::CPUOutput);
            Allocator::new(session, info?)
        };
        let allocator = match staging.map(pinned) {
            Some(Ok(allocator)) => allocator,
            Some(Err(error)) => {
                tracing::warn!(%error, "no pinned memory for batches; they go through ordinary memory");
                Allocator::default()
            }
            None => Allocator::default(),
        };
        Self { bound: Vec::new(), allocator, separate, dimensions, found: 0, made: 0 }
    }

    /// Computes a batch, of which the caller wants the first rows: as many as `out` has room for.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        padded: &Padded,
        out: &mut [f32],
    ) -> ort::Result<()> {
        let separate = self.separate;
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
        Ok(())
    }

    /// Share of the batches that found their buffers, and shapes that have some.
    pub fn reuse(&self) -> (f64, usize) {
        (self.found as f64 / (self.found + self.made).max(1) as f64, self.bound.len())
    }

    /// Gives the buffers back.
    pub fn clear(&mut self) {
        self.bound.clear();
    }

    /// The buffers of a shape.
    fn of(&mut self, session: &Session, shape: [usize; 2]) -> ort::Result<&mut Bound> {
        let bound = match self.bound.iter().position(|bound| bound.shape == shape) {
            Some(at) => {
                self.found += 1;
                self.bound.remove(at)
            }
            None => {
                self.made += 1;
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
        if !self.separate {
            binding.bind_input("input_ids", &ids)?;
            binding.bind_input("lengths", &lengths)?;
        }
        binding.bind_output("embedding", &mut vectors)?;
        Ok(Bound { shape, binding, ids, lengths, vectors })
    }
}
