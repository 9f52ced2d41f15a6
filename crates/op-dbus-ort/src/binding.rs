//! Buffers that are bound to a session once for each shape of batch, and used again.
//!
//! Without them the runtime makes tensors for every batch, and a driver copies from memory that it
//! first has to pin. Where a device has memory of its own, shapes are rounded up to few: each has
//! buffers, and whatever the provider prepares for a shape.

use std::fmt::Debug;

use op_dbus_engine::foreign::Padded;
use op_dbus_engine::{Batch, BufferUse};
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::{IoBinding, RunOptions, Session};
use ort::value::{PrimitiveTensorElementType, Tensor, TensorRefMut};
use ort::{AsPointer, sys};

use crate::accelerator::{Memory, Place};
use crate::feed::Transfer;
use crate::recording::{Recorder, Recording};
use crate::rows::{Input, Rows};

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
    counts: BufferUse,
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

    /// The memory that the device reads and writes by itself, as if it were ordinary. What is said to be the
    /// device's ONNX Runtime 1.31 takes for its own: it does not copy an input, so that each kernel fetches
    /// from the host what it reads of it, and takes the buffer of a result for both ends of a copy, and refuses
    /// the batch. What copies is the driver, which knows better, and returns when the data are there: of an input
    /// because what is said to be ordinary is waited for, and of a result because a run does, by the runtime's
    /// default.
    fn as_ordinary(&mut self) -> ort::Result<TensorRefMut<'_, T>> {
        let (kind, memory_type) = (AllocatorType::Device, MemoryType::Default);
        let ordinary = MemoryInfo::new(AllocationDevice::CPU, 0, kind, memory_type)?;
        let shape = self.memory.shape().clone();
        let data = self.memory.data_ptr_mut();
        // SAFETY: the CPU reads and writes this memory as any other; it has the room of its own shape, and is
        // borrowed for as long as the view. A binding keeps the view for longer: of a result that goes after the
        // binding, and of an input, which has been copied by then, until the next batch binds another.
        unsafe { TensorRefMut::from_raw(ordinary, data, shape) }
    }

    /// Has `binding`, which must not be used for longer than this is there, put its results here.
    fn bind_output(&mut self, binding: &mut IoBinding) -> ort::Result<()> {
        match self.pinned {
            true => binding.bind_output("embedding", self.as_ordinary()?),
            false => binding.bind_output("embedding", &mut self.memory),
        }
    }

    /// Has `binding`, which must not be used for longer than this is there, take an input from here: with a copy
    /// where the device has memory of its own.
    fn bind_input(&mut self, binding: &mut IoBinding, name: &str) -> ort::Result<()> {
        match self.pinned {
            true => binding.bind_input(name, &*self.as_ordinary()?),
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
            true => copy(self.as_ordinary()?.ptr()),
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
        let [rows, length] = shape;
        let mut padded = Padded::default();
        let lengths = vec![i32::try_from(length).unwrap_or(i32::MAX); rows];
        padded.fill(&Batch { ids: &vec![1; rows * length], lengths: &lengths });
        let rows = Rows::Padded(padded);
        let given = (rows.shape(), &rows.inputs()[..]);
        let Bound { inputs, vectors, recording: recorded, .. } = self.filled(session, given)?;
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

    /// Computes a batch, of which the caller wants the first rows: as many as `out` has room for. Tells
    /// what went to the device and came back.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        (session, options): (&mut Session, &RunOptions),
        rows: &Rows,
        out: &mut [f32],
    ) -> ort::Result<Transfer> {
        let memory = self.memory;
        let given = rows.inputs();
        let bound = self.filled(session, (rows.shape(), &given))?;
        let Bound { binding, inputs, vectors, recording, .. } = bound;
        if let Some(recording) = recording {
            recording.run(session, inputs, vectors)?;
        } else {
            if memory.is_separate() {
                for (Input { name, .. }, staged) in given.iter().zip(inputs) {
                    staged.bind_input(binding, name)?;
                }
            }
            drop(session.run_binding_with_options(binding, options)?);
        }
        let replayed = recording.is_some();
        let (_, vectors) = vectors.memory.extract_tensor();
        out.copy_from_slice(&vectors[..out.len()]);
        let inputs = given.iter().map(|input| size_of_val(input.data)).sum();
        let results = size_of_val(vectors);
        self.replays += u64::from(replayed);
        Ok(Transfer { inputs, results })
    }

    /// Batches that were replayed; none where nothing is recorded.
    pub fn replays(&self) -> Option<u64> {
        self.recorder.as_ref().map(|_| self.replays)
    }

    /// Batches by whether there were buffers for all that they have.
    pub fn counts(&self) -> BufferUse {
        self.counts
    }

    /// Counts from here on.
    pub fn start_counting(&mut self) {
        self.counts = BufferUse::default();
        self.replays = 0;
    }

    /// As [`Memory::is_in_place`] has it.
    pub fn is_in_place(&self) -> Option<[bool; 2]> {
        self.memory.is_in_place(true)
    }

    /// Gives the buffers back, but for those of shapes that are recorded: what the provider keeps for a
    /// recording would be made a second time.
    pub fn clear(&mut self) {
        self.bound.retain(|bound| bound.recording.is_some());
    }

    /// The buffers of a batch's shape, with what it gives the inputs.
    fn filled(
        &mut self,
        session: &Session,
        (shape, given): ([usize; 2], &[Input<'_>]),
    ) -> ort::Result<&mut Bound> {
        let at = self.bound.iter().position(|bound| bound.shape == shape);
        let mut found = at.is_some();
        let mut bound = match at {
            Some(at) => self.bound.remove(at),
            None => {
                if self.bound.len() >= SHAPES_MAX {
                    let oldest = self.bound.iter().position(|bound| bound.recording.is_none());
                    self.bound.remove(oldest.unwrap_or(0));
                }
                self.bind(session, (shape, given))?
            }
        };
        for (Input { name, dims, data }, staged) in given.iter().zip(&mut bound.inputs) {
            // Rows that are not padded have as many tokens as they have.
            if staged.memory.extract_tensor().1.len() != data.len() {
                found = false;
                *staged = self.staged(dims)?;
                if !self.memory.is_separate() {
                    staged.bind_input(&mut bound.binding, name)?;
                }
            }
            staged.memory.extract_tensor_mut().1.copy_from_slice(data);
        }
        self.counts.found += u64::from(found);
        self.counts.made += u64::from(!found);
        self.bound.push(bound);
        self.bound.last_mut().ok_or_else(|| ort::Error::new("no buffers are bound"))
    }

    fn bind(
        &self,
        session: &Session,
        (shape @ [rows, _], given): ([usize; 2], &[Input<'_>]),
    ) -> ort::Result<Bound> {
        let mut binding = session.create_binding()?;
        let mut inputs = Vec::with_capacity(given.len());
        for Input { name, dims, .. } in given {
            let mut staged = self.staged(dims)?;
            // Where the device has memory of its own, this copies: each batch does it with its own data.
            if !self.memory.is_separate() {
                staged.bind_input(&mut binding, name)?;
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
