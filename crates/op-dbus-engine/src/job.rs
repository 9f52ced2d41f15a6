//! One call on its way: its options, its own result buffer, and who is told when it is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::admission::{Permit, Settled};
use crate::backend::Description;
use crate::cache::{Cache, CachedVector, Key, NewVector};
use crate::call::{Priority, Reply, RowSink, Truncate};
use crate::error::Error;
use crate::output::{Out, Output};
use crate::tokenizer::Window;
use crate::vector;

/// What does not change while a call is on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub uid: u32,
    pub class: Priority,
    pub truncate: Truncate,
    pub output: Output,
    /// On the engine's clock.
    pub arrived_us: u64,
    pub deadline_us: Option<u64>,
}

/// What was kept of a call's vectors, and where those that are computed are kept.
#[derive(Debug)]
pub(crate) struct Lookup {
    pub cache: Arc<Cache>,
    /// One for each text.
    pub keys: Vec<Key>,
    /// Likewise; none for a text that has to be embedded.
    pub found: Vec<Option<Arc<CachedVector>>>,
}

impl Lookup {
    /// Whether nothing has to be computed.
    pub fn is_whole(&self) -> bool {
        self.found.iter().all(Option::is_some)
    }
}

/// A call between admission and reply.
#[derive(Debug)]
pub(crate) struct Job {
    pub terms: Terms,
    /// None where nothing is kept.
    lookup: Option<Lookup>,
    alive: AtomicBool,
    /// Whether rows of it were queued.
    queued: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What is told in the end, but for the vectors and the times.
    reply: Reply,
    out: Out,
    /// Rows that are still to come; texts that are not tokenized yet count as one.
    pending: usize,
    /// Texts in several windows.
    long: BTreeMap<u32, Long>,
    truncated: BTreeSet<u32>,
    started_us: Option<u64>,
    ended_us: u64,
    done: Option<oneshot::Sender<Result<Reply, Error>>>,
    permit: Option<Permit>,
}

#[derive(Debug)]
struct Long {
    weights: Vec<u32>,
    vectors: Vec<f32>,
    tokens: usize,
    pending: usize,
}

/// Where a row's vector belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Index of the text in its call.
    pub text: u32,
    /// Which window of the text.
    pub window: u32,
}

/// The batch that a vector comes from.
#[derive(Debug)]
pub(crate) struct Ran<'a> {
    pub by: &'a Description,
    pub started_us: u64,
    pub ended_us: u64,
}

/// A call whose last vector has come.
#[derive(Debug)]
pub(crate) struct Finished {
    done: oneshot::Sender<Result<Reply, Error>>,
    reply: Reply,
}

impl Finished {
    /// Wakes the caller's task.
    pub fn tell(self) {
        // The caller may be gone: then nobody wants to know.
        let _ = self.done.send(Ok(self.reply));
    }
}

impl Job {
    pub fn new(
        terms: Terms,
        rows: usize,
        permit: Permit,
        sink: Option<RowSink>,
        lookup: Option<Lookup>,
    ) -> (Arc<Self>, oneshot::Receiver<Result<Reply, Error>>) {
        let (done, result) = oneshot::channel();
        let dimensions = terms.output.dimensions;
        let out = match sink {
            Some(sink) => Out::Sink(sink, vec![0.0; dimensions]),
            None => Out::Reply(vec![0.0; rows * dimensions]),
        };
        let state = State {
            reply: Reply { rows, dimensions, ..Reply::default() },
            out,
            pending: rows,
            long: BTreeMap::new(),
            truncated: BTreeSet::new(),
            started_us: None,
            ended_us: 0,
            done: Some(done),
            permit: Some(permit),
        };
        let ([alive, queued], state) = ([true, false].map(AtomicBool::new), Mutex::new(state));
        let job = Self { terms, lookup, alive, queued, state };
        (Arc::new(job), result)
    }

    /// Whether anybody still waits.
    pub fn is_alive(&self, now_us: u64) -> bool {
        self.alive.load(Ordering::Acquire) && self.terms.deadline_us.is_none_or(|at| now_us < at)
    }

    /// Rows of it are queued.
    pub fn queues(&self) {
        self.queued.store(true, Ordering::Release);
    }

    /// Whether rows of it were queued, be they there still or not.
    pub fn was_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Tokens that it counts for, until its last row is out of the engine.
    pub fn held(&self) -> Option<usize> {
        self.lock().permit.as_ref().map(Permit::held)
    }

    /// Nobody waits any more. The permit stays until the last row of the call is out of the engine.
    pub fn abandon(&self) {
        self.alive.store(false, Ordering::Release);
        let mut state = self.lock();
        state.done = None;
        state.out = Out::NONE;
        state.long.clear();
    }

    /// Ends the call with an error, unless it has ended already.
    pub fn fail(&self, error: Error) {
        let done = self.lock().done.take();
        self.alive.store(false, Ordering::Release);
        if let Some(done) = done {
            // The caller may be gone: then nobody wants to know.
            let _ = done.send(Err(error));
        }
    }

    /// Notes what became of a text: its windows and whether it was cut.
    pub fn tokenized(&self, text: u32, windows: &[Window], truncated: bool) {
        if !truncated {
            return;
        }
        let mut state = self.lock();
        state.truncated.insert(text);
        if windows.len() > 1 {
            state.pending += windows.len() - 1;
            let vectors = vec![0.0; windows.len() * self.terms.output.full];
            let weights = windows.iter().map(|window| window.weight).collect();
            let pending = windows.len();
            state.long.insert(text, Long { weights, vectors, tokens: 0, pending });
        }
    }

    /// What some of the texts have and hold of what the permit has for them.
    pub fn settle(&self, settled: Settled) {
        if let Some(permit) = self.lock().permit.as_mut() {
            permit.settle(settled);
        }
    }

    /// Takes the vectors of rows that follow one another, each with so many tokens. If one was the last
    /// the caller is to be told.
    pub fn deliver(
        &self,
        slot: Slot,
        vectors: &[f32],
        tokens: impl Iterator<Item = usize> + Clone,
        ran: &Ran<'_>,
    ) -> Option<Finished> {
        let mut guard = self.lock();
        let state = &mut *guard;
        // Nobody waits any more.
        state.done.as_ref()?;
        let (output, full) = (self.terms.output, self.terms.output.full.max(1));
        state.started_us = Some(state.started_us.map_or(ran.started_us, |t| t.min(ran.started_us)));
        state.ended_us = state.ended_us.max(ran.ended_us);
        state.reply.computed_by(&ran.by.provider, &ran.by.device, &ran.by.precision);
        let computed = tokens.clone().sum::<usize>();
        state.reply.tokens += computed as u64;
        if state.long.is_empty() && self.lookup.is_none() {
            state.out.vectors(slot.text, vectors, output);
        } else {
            for (row, text) in vectors.chunks_exact(full).zip(tokens).zip(slot.text..) {
                self.deliver_one(state, Slot { text, ..slot }, row, ran.by);
            }
        }
        state.pending -= vectors.len() / full;
        if let Some(permit) = state.permit.as_mut().filter(|_| state.pending > 0) {
            // The last of a call gives all back.
            permit.computed(computed);
        }
        self.delivered(guard)
    }

    /// Takes the vector of one row of so many tokens, which may be a window of its text, and may be kept.
    fn deliver_one(
        &self,
        state: &mut State,
        slot: Slot,
        (vector, mut tokens): (&[f32], usize),
        by: &Description,
    ) {
        let output = self.terms.output;
        let mean;
        let vector = match state.long.get_mut(&slot.text) {
            None => Some(state.out.vector(slot.text, vector, output)),
            Some(long) => {
                long.tokens += tokens;
                tokens = long.tokens;
                let start = slot.window as usize * output.full;
                long.vectors[start..start + output.full].copy_from_slice(vector);
                long.pending -= 1;
                if long.pending == 0 {
                    mean = vector::weighted_mean(&long.vectors, &long.weights, output.full);
                    state.long.remove(&slot.text);
                    Some(state.out.mean(slot.text, &mean, output))
                } else {
                    None
                }
            }
        };
        if let (Some(vector), Some(lookup)) = (vector, &self.lookup) {
            let truncated = state.truncated.contains(&slot.text);
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            let new = NewVector { vector, tokens, truncated, by };
            lookup.cache.keep(self.terms.uid, lookup.keys[slot.text as usize], &new);
        }
    }

    /// Whether all its vectors were kept.
    pub fn is_kept(&self) -> bool {
        self.lookup.as_ref().is_some_and(Lookup::is_whole)
    }

    /// The vector of a text that need not be computed.
    pub fn kept(&self, text: u32) -> Option<&CachedVector> {
        self.lookup.as_ref()?.found.get(text as usize)?.as_deref()
    }

    /// Takes the vector of a text that was kept. If it was the last the caller is to be told.
    pub fn deliver_kept(&self, text: u32, cached: &CachedVector, now_us: u64) -> Option<Finished> {
        let mut guard = self.lock();
        let state = &mut *guard;
        // Nobody waits any more.
        state.done.as_ref()?;
        let origin = &cached.origin;
        state.reply.computed_by(&origin.provider, &origin.device, &origin.precision);
        state.out.kept(text, &cached.vector, self.terms.output);
        if cached.truncated {
            state.truncated.insert(text);
        }
        state.reply.tokens += u64::from(cached.tokens);
        state.reply.cached += 1;
        if state.reply.cached == state.reply.rows {
            (state.started_us, state.ended_us) = (Some(now_us), now_us);
        }
        state.pending -= 1;
        self.delivered(guard)
    }

    /// What there is to tell after a delivery.
    fn delivered(&self, state: MutexGuard<'_, State>) -> Option<Finished> {
        if state.out.is_broken() {
            drop(state);
            let sentence = "the sink of the call panicked; mend what it does with vectors";
            self.fail(Error::InvalidArgument(sentence.to_owned()));
            return None;
        }
        if state.pending == 0 { self.finish(state) } else { None }
    }

    fn finish(&self, mut state: MutexGuard<'_, State>) -> Option<Finished> {
        let done = state.done.take()?;
        let started_us = state.started_us.unwrap_or(state.ended_us);
        let mut reply = std::mem::take(&mut state.reply);
        if let Out::Reply(vectors) = std::mem::replace(&mut state.out, Out::NONE) {
            reply.vectors = vectors;
        }
        reply.truncated.extend(&std::mem::take(&mut state.truncated));
        reply.queue_us = started_us.saturating_sub(self.terms.arrived_us);
        reply.compute_us = state.ended_us.saturating_sub(started_us);
        // Before the caller hears of it, so that its next call finds the budget free.
        drop(state.permit.take());
        Some(Finished { done, reply })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
