//! Batches that a device has at the same time: while it computes one, the next is filled in, copied and begun, so that
//! between two of them it waits for nobody.

use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use op_dbus_engine::{BackendError, Batch, Buckets, BufferUse};
use ort::session::{RunOptions, Session};

use crate::binding::Buffers;
use crate::failure;
use crate::feed::Transfer;
use crate::rows::Rows;

/// Tokens of a batch that a device computes for much longer than it takes to have another thread wait for it, unless
/// half a full one has less.
const BESIDE_TOKENS_MIN: usize = 4096;

/// The batches of a session.
pub(crate) struct Lanes {
    /// The first one alone records.
    lanes: Vec<Lane>,
    /// The batch that is computed beside another one, or comes next.
    begun: Option<Running>,
    counts: BufferUse,
    /// Held while a batch is copied or computed, where the provider does one thing at a time.
    turn: Option<Arc<Mutex<()>>>,
}

/// What one batch at a time is computed with.
struct Lane {
    /// Not here while its thread computes.
    held: Option<Held>,
    /// Where there is none, batches are computed on the caller's.
    thread: Option<Thread>,
}

/// A batch, and the buffers that it is computed in.
struct Held {
    rows: Rows,
    buffers: Buffers,
}

/// A thread that computes what it is sent.
struct Thread {
    work: Sender<Work>,
    computed: Receiver<(Held, ort::Result<Transfer>)>,
}

/// A batch to compute.
struct Work {
    held: Held,
    with: With,
    turn: Option<Arc<Mutex<()>>>,
    /// Closed when it is done.
    done: PipeWriter,
}

/// What batches are computed with.
#[derive(Clone)]
pub(crate) struct With {
    pub session: Arc<Session>,
    pub options: Arc<RunOptions>,
}

/// A batch that is being computed.
pub(crate) struct Running {
    lane: usize,
    /// Rows and tokens.
    size: [usize; 2],
    done: PipeReader,
}

impl Running {
    /// Can be read from when the batch is done.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }
}

impl Lanes {
    /// One batch at a time, in `buffers`.
    pub fn new(rows: Rows, buffers: Buffers) -> Self {
        Self {
            lanes: vec![Lane::new(rows, buffers)],
            begun: None,
            counts: BufferUse::default(),
            turn: None,
        }
    }

    /// A second batch may be begun while one is computed, in `buffers` of its own; the provider computes them
    /// `together`, or one after the other. Without threads there is none.
    pub fn add(&mut self, buffers: Buffers, together: bool) {
        let rows = self.lanes[0].held.as_ref().map(|held| held.rows.like());
        let lane = rows.map(|rows| Lane::new(rows, buffers));
        self.lanes.extend(lane.filter(|lane| lane.thread.is_some()));
        self.turn = (!together).then(Arc::default);
    }

    /// One batch at a time from here on.
    pub fn keep_one(&mut self) {
        let _ = self.finish_begun(&mut []);
        self.lanes.truncate(1);
    }

    /// Whether a batch can be begun while one is computed.
    pub fn begins(&self) -> bool {
        self.lanes.len() > 1
    }

    /// Whether the device computes both at once.
    pub fn are_together(&self) -> bool {
        self.begins() && self.turn.is_none()
    }

    /// Has a thread compute a batch, unless it was begun before; none where it is not worth a thread.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says, and that it was another batch that was begun.
    pub fn start(
        &mut self,
        with: &With,
        batch: &Batch<'_>,
        buckets: Option<Buckets>,
    ) -> Result<Option<Running>, BackendError> {
        match self.begun.take() {
            Some(begun) if begun.size == [batch.rows(), batch.tokens()] => Ok(Some(begun)),
            Some(begun) => {
                self.finish(begun, &mut [])?;
                Err(BackendError::Lost("another batch was begun".to_owned()))
            }
            None => {
                let full = buckets.map_or(usize::MAX, |buckets| buckets.tokens_max);
                match batch.tokens() < BESIDE_TOKENS_MIN.min(full / 2) {
                    true => Ok(None),
                    false => self.sent(with, batch, buckets).map_err(failure::run),
                }
            }
        }
    }

    /// Begins the batch that comes next; false where there is nothing left to compute it with.
    pub fn begin(&mut self, with: &With, batch: &Batch<'_>, buckets: Option<Buckets>) -> bool {
        if self.begun.is_none() && batch.check().is_ok() {
            // What is wrong with it is told when it is run.
            self.begun = self.sent(with, batch, buckets).unwrap_or_default();
        }
        self.begun.is_some()
    }

    /// Waits for a batch, of which the caller wants the first rows: as many as `out` has room for.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn finish(&mut self, running: Running, out: &mut [f32]) -> Result<Transfer, BackendError> {
        let lane = &mut self.lanes[running.lane];
        let computed = lane.thread.as_ref().and_then(|thread| thread.computed.recv().ok());
        let panicked = || BackendError::Lost("it panicked in a batch".to_owned());
        let (held, result) = computed.ok_or_else(panicked)?;
        let held = lane.held.insert(held);
        let transfer = result.map_err(failure::run)?;
        held.buffers.take(out);
        Ok(transfer)
    }

    /// Waits for the batch that was begun, if there is one, of which the caller wants the first rows.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn finish_begun(&mut self, out: &mut [f32]) -> Result<(), BackendError> {
        let begun = self.begun.take();
        begun.map_or(Ok(()), |begun| self.finish(begun, out).map(drop))
    }

    /// Computes a batch on the caller's thread.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn run(
        &mut self,
        (session, options): (&Session, &RunOptions),
        (batch, buckets): (&Batch<'_>, Option<Buckets>),
        out: &mut [f32],
    ) -> Result<Transfer, BackendError> {
        let Self { lanes, counts, turn, .. } = self;
        let lane = lanes.iter_mut().find_map(|lane| lane.held.as_mut());
        let held = lane.ok_or_else(|| BackendError::Lost("a thread of it has ended".to_owned()))?;
        let mut run = || {
            let _turn = lock(turn.as_deref());
            held.fill(session, (batch, buckets), counts)?;
            held.buffers.compute((session, options), &held.rows)
        };
        let transfer = run().map_err(failure::run)?;
        held.buffers.take(out);
        Ok(transfer)
    }

    /// Makes whatever a batch of this kind needs in all that nothing is computed with.
    ///
    /// # Errors
    /// Whatever ONNX Runtime says.
    pub fn prepare(
        &mut self,
        session: &Session,
        batch: &Batch<'_>,
        buckets: Option<Buckets>,
    ) -> Result<(), BackendError> {
        let Self { lanes, counts, turn, .. } = self;
        let _turn = lock(turn.as_deref());
        let mut idle = lanes.iter_mut().filter_map(|lane| lane.held.as_mut());
        let fill = |held: &mut Held| held.fill(session, (batch, buckets), counts);
        idle.try_for_each(fill).map_err(failure::run)
    }

    /// The buffers that recordings are made of; none where their thread has ended.
    pub fn first(&mut self) -> Option<&mut Buffers> {
        self.lanes[0].held.as_mut().map(|held| &mut held.buffers)
    }

    /// Gives up what is kept of batches.
    pub fn clear(&mut self) {
        let _ = self.finish_begun(&mut []);
        for held in self.lanes.iter_mut().filter_map(|lane| lane.held.as_mut()) {
            held.rows.clear();
            held.buffers.clear();
        }
    }

    /// Counts from here on.
    pub fn start_counting(&mut self) {
        self.counts = BufferUse::default();
        if let Some(buffers) = self.first() {
            buffers.start_counting();
        }
    }

    /// Batches by whether there were buffers for all that they have.
    pub fn counts(&self) -> BufferUse {
        self.counts
    }

    /// Batches that were replayed; none where nothing is recorded.
    pub fn replays(&self) -> Option<u64> {
        self.lanes[0].held.as_ref().and_then(|held| held.buffers.replays())
    }

    /// Sends a batch to an idle thread, if there is one.
    fn sent(
        &mut self,
        with: &With,
        batch: &Batch<'_>,
        buckets: Option<Buckets>,
    ) -> ort::Result<Option<Running>> {
        let Self { lanes, counts, turn, .. } = self;
        let idle = lanes.iter_mut().enumerate().find_map(|(number, lane)| {
            let thread = lane.thread.as_ref()?;
            Some((number, lane.held.take()?, &mut lane.held, thread))
        });
        let Some((lane, mut held, place, thread)) = idle else { return Ok(None) };
        // By the thread that has loaded the session: another one would first have to choose the device.
        let _turn = lock(turn.as_deref());
        let filled = held.fill(&with.session, (batch, buckets), counts);
        // Without descriptors the batch is computed on this thread.
        let (Ok(()), Ok((reader, done))) = (&filled, pipe()) else {
            *place = Some(held);
            return filled.map(|()| None);
        };
        let work = Work { held, with: with.clone(), turn: turn.clone(), done };
        if let Err(unsent) = thread.work.send(work) {
            *place = Some(unsent.0.held);
            return Ok(None);
        }
        Ok(Some(Running { lane, size: [batch.rows(), batch.tokens()], done: reader }))
    }
}

impl Lane {
    fn new(rows: Rows, buffers: Buffers) -> Self {
        Self { held: Some(Held { rows, buffers }), thread: Thread::start() }
    }
}

impl Held {
    fn fill(
        &mut self,
        session: &Session,
        (batch, buckets): (&Batch<'_>, Option<Buckets>),
        counts: &mut BufferUse,
    ) -> ort::Result<()> {
        self.rows.fill(batch, buckets);
        let found = self.buffers.fill(session, &self.rows)?;
        counts.found += u64::from(found);
        counts.made += u64::from(!found);
        Ok(())
    }
}

impl Thread {
    /// None where the system has no room for one more. It ends when this is gone.
    fn start() -> Option<Self> {
        let (work, works) = channel::<Work>();
        let (told, computed) = channel();
        let compute = move || {
            for Work { mut held, with, turn, done } in works {
                let _turn = lock(turn.as_deref());
                let result = held.buffers.compute((&with.session, &with.options), &held.rows);
                // Whoever hears of it may want the session for itself.
                drop(with);
                if told.send((held, result)).is_err() {
                    return;
                }
                drop(done);
            }
        };
        Builder::new().name("batch".to_owned()).spawn(compute).ok()?;
        Some(Self { work, computed })
    }
}

/// Waits for the turn, where there is one to wait for.
fn lock(turn: Option<&Mutex<()>>) -> Option<MutexGuard<'_, ()>> {
    turn.map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner))
}
