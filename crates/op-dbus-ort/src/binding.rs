//! Buffers that are bound to a session once for each shape of batch, and used again.
//!
//! Without them the runtime makes tensors for every batch, and a driver copies from memory that it
//! first has to pin. Where a device has memory of its own, shapes are rounded up to few: each has
//! buffers, and whatever the provider prepares for a shape.

use std::fmt::Debug;

use op_dbus_engine::Batch;
use op_dbus_engine::foreign::Padded;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::{PrimitiveTensorElementType, Shape, Tensor, TensorRefMut};
use ort::{AsPointer, sys};

use crate::accelerator::{Memory, Place};
use crate::feed::Transfer;
use crate::recording::{Recorder, Recording};
use crate::rows::{Input, Rows};
use crate::session;

/// Shapes whose buffers are kept; beyond them those go that were not used for longest.
const SHAPES_MAX: usize = 192;

/// The buffers of a session.
pub(crate) struct Buffers {
    /// The last one used last.
    bound: Vec<Bound>,
    allocator: Allocator,
    /// Of the device.
    memory: Memory,
    dimensions: usize,
    /// Where the provider records.
    recorder: Option<Recorder>,
    /// Batches that were replayed.
    replays: u64,
}

/// The buffers of one shape, in the host's memory, and what was recorded of it.
struct Bound {
    shape: [usize; 2],
    /// Gone before what it points to.
    binding: IoBinding,
    /// As [`Rows::inputs`] has them.
    inputs: Vec<Staged<i32>>,
    vectors: Staged<f32>,
    recording: Option<Recording>,
}

/// What goes to the device or comes back: in memory that the device reads and writes by itself, or in ordinary
/// memory.
pub(crate) struct Staged<T: PrimitiveTensorElementType + Debug> {
    memory: Tensor<T>,
    pinned: bool,
}

impl<T: PrimitiveTensorElementType + Debug> Staged<T> {
    fn new(pinned: Option<&Allocator>, dims: &[usize]) -> ort::Result<Self> {
        let memory = match pinned {
            Some(allocator) => Tensor::new(allocator, dims)?,
            None => Tensor::new(&Allocator::default(), dims)?,
        };
        Ok(Self { memory, pinned: pinned.is_some() })
    }

    /// The first values of the memory that the device reads and writes by itself, with this shape, as if it were
    /// ordinary. What is said to be the device's ONNX Runtime 1.31 takes for its own: it does not copy an input, so
    /// that each kernel fetches from the host what it reads of it, and takes the buffer of a result for both ends of a
    /// copy, and refuses the batch. What copies is the driver, which knows better, and returns when the data are
    /// there: of an input because what is said to be ordinary is waited for, and of a result because a run does, by
    /// the runtime's default.
    ///
    /// # Errors
    /// A shape of more values than there are.
    fn as_ordinary(&mut self, shape: Shape) -> ort::Result<TensorRefMut<'_, T>> {
        if shape.num_elements() > self.memory.shape().num_elements() {
            return Err(ort::Error::new("a batch is larger than its buffer"));
        }
        let (kind, memory_type) = (AllocatorType::Device, MemoryType::Default);
        let ordinary = MemoryInfo::new(AllocationDevice::CPU, 0, kind, memory_type)?;
        let data = self.memory.data_ptr_mut();
        // SAFETY: the CPU reads and writes this memory as any other; it has the room of this shape, and is
        // borrowed for as long as the view. A binding keeps the view for longer: of a result that goes after the
        // binding, and of an input, which has been copied by then, until the next batch binds another.
        unsafe { TensorRefMut::from_raw(ordinary, data, shape) }
    }

    /// Has `binding`, which must not be used for longer than this is there, put its results here.
    fn bind_output(&mut self, binding: &mut IoBinding) -> ort::Result<()> {
        let shape = self.memory.shape().clone();
        match self.pinned {
            true => binding.bind_output("embedding", self.as_ordinary(shape)?),
            false => binding.bind_output("embedding", &mut self.memory),
        }
    }

    /// Has `binding`, which must not be used for longer than this is there, take an input of this shape from here:
    /// with a copy where the device has memory of its own.
    fn bind_input(
        &mut self,
        binding: &mut IoBinding,
        (name, shape): (&str, Shape),
    ) -> ort::Result<()> {
        match self.pinned || *self.memory.shape() != shape {
            true => binding.bind_input(name, &*self.as_ordinary(shape)?),
            false => binding.bind_input(name, &self.memory),
        }
    }

    /// As ONNX Runtime knows it.
    pub fn ptr(&self) -> *const sys::OrtValue {
        self.memory.ptr()
    }

    /// Has `copy` put a result here.
    ///
    /// # Errors
    /// Those of `copy`.
    pub fn filled_by(
        &mut self,
        copy: impl FnOnce(*const sys::OrtValue) -> ort::Result<()>,
    ) -> ort::Result<()> {
        match self.pinned {
            true => copy(self.as_ordinary(self.memory.shape().clone())?.ptr()),
            false => copy(self.memory.ptr()),
        }
    }
}

impl Buffers {
    /// Buffers in memory that the device of `staging` reads and writes by itself, if it can be had; else in
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
        let (bound, recorder) = (Vec::new(), None);
        Self { bound, allocator, memory, dimensions, recorder, replays: 0 }
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
    pub fn record(&mut self, session: &Session, shape: [usize; 2]) -> ort::Result<()> {
        let Some(recorder) = &mut self.recorder else { return Ok(()) };
        let mut recording = recorder.prepare(session, shape, self.dimensions)?;
        let [rows, length] = shape;
        let mut padded = Padded::default();
        let lengths = vec![i32::try_from(length).unwrap_or(i32::MAX); rows];
        padded.fill(&Batch { ids: &vec![1; rows * length], lengths: &lengths });
        self.fill(session, &Rows::Padded(padded))?;
        let Bound { inputs, vectors, recording: recorded, .. } = self.filled()?;
        recording.run(session, inputs, vectors)?;
        *recorded = Some(recording);
        Ok(())
    }

    /// Runs of this shape are not replayed any more.
    pub fn forget(&mut self, shape: [usize; 2]) {
        for bound in self.bound.iter_mut().filter(|bound| bound.shape == shape) {
            bound.recording = None;
        }
    }

    /// Computes the batch that is filled in, which `rows` has. Tells what goes to the device and comes back.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn compute(
        &mut self,
        (session, options): (&Session, &RunOptions),
        rows: &Rows,
    ) -> ort::Result<Transfer> {
        let Bound { binding, inputs, vectors, recording, .. } = self.filled()?;
        let replayed = recording.is_some();
        match recording {
            Some(recording) => recording.run(session, inputs, vectors)?,
            None => session::run(session, binding, options)?,
        }
        let inputs = rows.inputs().iter().map(|input| size_of_val(input.data)).sum();
        let results = size_of_val(vectors.memory.extract_tensor().1);
        self.replays += u64::from(replayed);
        Ok(Transfer { inputs, results })
    }

    /// Copies the first rows of what was computed last out: as many as `out` has room for.
    pub fn take(&self, out: &mut [f32]) {
        if let Some(bound) = self.bound.last() {
            let (_, vectors) = bound.vectors.memory.extract_tensor();
            out.copy_from_slice(&vectors[..out.len()]);
        }
    }

    /// Batches that were replayed; none where nothing is recorded.
    pub fn replays(&self) -> Option<u64> {
        self.recorder.as_ref().map(|_| self.replays)
    }

    /// Counts from here on.
    pub fn start_counting(&mut self) {
        self.replays = 0;
    }

    /// Whether the device itself reads inputs, and writes results, where they lie here; none where that is
    /// not known.
    pub fn is_in_place(&self) -> Option<[bool; 2]> {
        match self.memory {
            Memory::Same | Memory::Pinned => Some([true; 2]),
            Memory::Separate => Some([false; 2]),
            Memory::Untold => None,
        }
    }

    /// Gives the buffers back, but for those of shapes that are recorded: what the provider keeps for a
    /// recording would be made a second time.
    pub fn clear(&mut self) {
        self.bound.retain(|bound| bound.recording.is_some());
    }

    /// Fills a batch in, and copies it to a device with memory of its own. Tells whether there were buffers for all
    /// that it has.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn fill(&mut self, session: &Session, rows: &Rows) -> ort::Result<bool> {
        let (shape, given) = (rows.shape(), rows.inputs());
        let at = self.bound.iter().position(|bound| bound.shape == shape);
        let mut bound = match at {
            Some(at) => self.bound.remove(at),
            None => {
                if self.bound.len() >= SHAPES_MAX {
                    let oldest = self.bound.iter().position(|bound| bound.recording.is_none());
                    self.bound.remove(oldest.unwrap_or(0));
                }
                self.bind(session, (shape, &given))?
            }
        };
        let Bound { binding, inputs, recording, .. } = &mut bound;
        for (Input { name, dims, data, .. }, staged) in given.iter().zip(inputs) {
            staged.memory.extract_tensor_mut().1[..data.len()].copy_from_slice(data);
            if self.memory.is_separate() && recording.is_none() {
                staged.bind_input(binding, (name, dims[..].into()))?;
            }
        }
        self.bound.push(bound);
        Ok(at.is_some())
    }

    /// The buffers that were filled last.
    fn filled(&mut self) -> ort::Result<&mut Bound> {
        self.bound.last_mut().ok_or_else(|| ort::Error::new("no buffers are bound"))
    }

    fn bind(
        &self,
        session: &Session,
        (shape @ [rows, _], given): ([usize; 2], &[Input<'_>]),
    ) -> ort::Result<Bound> {
        let mut binding = session.create_binding()?;
        let mut inputs = Vec::with_capacity(given.len());
        for Input { name, dims, room, data } in given {
            // Rows that are not padded have as many tokens as they have.
            let mut staged =
                if *room > data.len() { self.staged(&[*room])? } else { self.staged(dims)? };
            // Where the device has memory of its own, this copies: each batch does it with its own data.
            if !self.memory.is_separate() {
                staged.bind_input(&mut binding, (name, dims[..].into()))?;
            }
            inputs.push(staged);
        }
        let mut vectors = self.staged(&[rows, self.dimensions])?;
        vectors.bind_output(&mut binding)?;
        Ok(Bound { shape, binding, inputs, vectors, recording: None })
    }

    fn staged<T: PrimitiveTensorElementType + Debug>(
        &self,
        dims: &[usize],
    ) -> ort::Result<Staged<T>> {
        Staged::new((self.memory == Memory::Pinned).then_some(&self.allocator), dims)
    }
}
