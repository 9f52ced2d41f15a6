//! One call on its way: its options, its own result buffer, and who is told when it is done.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::admission::Permit;
use crate::backend::Description;
use crate::call::{Priority, Reply, RowSink, Truncate};
use crate::error::Error;
use crate::tokenizer::Window;
use crate::vector;

/// What the vectors of a call look like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Length of the backend's vectors.
    pub full: usize,
    /// Length of the caller's vectors.
    pub dimensions: usize,
    /// Whether a vector is normalised again after a cut or a mean.
    pub normalise: bool,
    /// Whether the backend's own vectors need normalising.
    pub normalise_all: bool,
}

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

/// A call between admission and reply.
#[derive(Debug)]
pub(crate) struct Job {
    pub terms: Terms,
    alive: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    out: Out,
    rows: usize,
    /// Rows that are still to come; texts that are not tokenized yet count as one.
    pending: usize,
    /// Texts in several windows.
    long: BTreeMap<u32, Long>,
    truncated: Vec<u32>,
    tokens: u64,
    started_us: Option<u64>,
    /// What computed, each once, with commas in between.
    providers: String,
    devices: String,
    done: Option<oneshot::Sender<Result<Reply, Error>>>,
    permit: Option<Permit>,
}

/// Where the vectors go.
#[derive(Debug)]
enum Out {
    /// Into the reply, `[rows, dimensions]`.
    Reply(Vec<f32>),
    /// To the caller at once. The buffer holds a vector that is made of the backend's.
    Sink(RowSink, Vec<f32>),
}

#[derive(Debug)]
struct Long {
    weights: Vec<u32>,
    vectors: Vec<f32>,
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
    ) -> (Arc<Self>, oneshot::Receiver<Result<Reply, Error>>) {
        let (done, result) = oneshot::channel();
        let dimensions = terms.output.dimensions;
        let out = match sink {
            Some(sink) => Out::Sink(sink, vec![0.0; dimensions]),
            None => Out::Reply(vec![0.0; rows * dimensions]),
        };
        let state = State {
            out,
            rows,
            pending: rows,
            long: BTreeMap::new(),
            truncated: Vec::new(),
            tokens: 0,
            started_us: None,
            providers: String::new(),
            devices: String::new(),
            done: Some(done),
            permit: Some(permit),
        };
        let job = Self { terms, alive: AtomicBool::new(true), state: Mutex::new(state) };
        (Arc::new(job), result)
    }

    /// Whether anybody still waits.
    pub fn is_alive(&self, now_us: u64) -> bool {
        self.alive.load(Ordering::Acquire) && self.terms.deadline_us.is_none_or(|at| now_us < at)
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
        state.truncated.push(text);
        if windows.len() > 1 {
            state.pending += windows.len() - 1;
            let vectors = vec![0.0; windows.len() * self.terms.output.full];
            let weights = windows.iter().map(|window| window.weight).collect();
            state.long.insert(text, Long { weights, vectors, pending: windows.len() });
        }
    }

    /// Gives tokens of the permit back: the texts were shorter than they might have been.
    pub fn give_back(&self, tokens: usize) {
        if let Some(permit) = self.lock().permit.as_mut() {
            permit.give_back(tokens);
        }
    }

    /// Takes the vector of one row of `tokens` tokens. If it was the last the caller is to be told.
    pub fn deliver(
        &self,
        slot: Slot,
        vector: &[f32],
        tokens: usize,
        ran: &Ran<'_>,
    ) -> Option<Finished> {
        let mut guard = self.lock();
        let state = &mut *guard;
        // Nobody waits any more.
        state.done.as_ref()?;
        let output = self.terms.output;
        state.tokens += tokens as u64;
        state.started_us = Some(state.started_us.map_or(ran.started_us, |t| t.min(ran.started_us)));
        note(&mut state.devices, &ran.by.device);
        note(&mut state.providers, &ran.by.provider);
        match state.long.get_mut(&slot.text) {
            None => state.out.vector(slot.text, vector, output),
            Some(long) => {
                let start = slot.window as usize * output.full;
                long.vectors[start..start + output.full].copy_from_slice(vector);
                long.pending -= 1;
                if long.pending == 0 {
                    let mean = vector::weighted_mean(&long.vectors, &long.weights, output.full);
                    state.long.remove(&slot.text);
                    state.out.mean(slot.text, &mean, output);
                }
            }
        }
        state.pending -= 1;
        if state.pending == 0 { self.finish(guard, ran) } else { None }
    }

    fn finish(&self, mut state: MutexGuard<'_, State>, ran: &Ran<'_>) -> Option<Finished> {
        let done = state.done.take()?;
        let vectors = match std::mem::replace(&mut state.out, Out::NONE) {
            Out::Reply(vectors) => vectors,
            Out::Sink(..) => Vec::new(),
        };
        let dimensions = self.terms.output.dimensions;
        let mut truncated = std::mem::take(&mut state.truncated);
        truncated.sort_unstable();
        let started_us = state.started_us.unwrap_or(ran.started_us);
        let reply = Reply {
            rows: state.rows,
            vectors,
            dimensions,
            tokens: state.tokens,
            truncated,
            queue_us: started_us.saturating_sub(self.terms.arrived_us),
            compute_us: ran.ended_us.saturating_sub(started_us),
            provider: std::mem::take(&mut state.providers),
            device: std::mem::take(&mut state.devices),
            precision: ran.by.precision.clone(),
        };
        // Before the caller hears of it, so that its next call finds the budget free.
        drop(state.permit.take());
        Some(Finished { done, reply })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a name to the list, unless it is there.
fn note(list: &mut String, name: &str) {
    if list == name || list.split(',').any(|known| known == name) {
        return;
    }
    if !list.is_empty() {
        list.push(',');
    }
    list.push_str(name);
}

impl Out {
    const NONE: Self = Self::Reply(Vec::new());

    /// The backend's vector of a text. A sink that wants it as it is gets that very one.
    fn vector(&mut self, text: u32, vector: &[f32], output: Output) {
        match self {
            Self::Reply(all) => output.write(vector, row(all, text, output)),
            Self::Sink(sink, _) if output.is_as_computed() => sink.take(text, vector),
            Self::Sink(sink, own) => {
                output.write(vector, own);
                sink.take(text, own);
            }
        }
    }

    /// The mean of a text's windows.
    fn mean(&mut self, text: u32, mean: &[f32], output: Output) {
        match self {
            Self::Reply(all) => output.write_mean(mean, row(all, text, output)),
            Self::Sink(sink, own) => {
                output.write_mean(mean, own);
                sink.take(text, own);
            }
        }
    }
}

fn row(all: &mut [f32], text: u32, output: Output) -> &mut [f32] {
    let start = text as usize * output.dimensions;
    &mut all[start..start + output.dimensions]
}

impl Output {
    /// Whether the caller's vectors are the backend's.
    fn is_as_computed(self) -> bool {
        self.dimensions == self.full && !self.normalise_all
    }

    fn write(self, vector: &[f32], target: &mut [f32]) {
        target.copy_from_slice(&vector[..self.dimensions]);
        let cut = self.dimensions < self.full;
        if self.normalise_all || (cut && self.normalise) {
            vector::normalise(target);
        }
    }

    fn write_mean(self, mean: &[f32], target: &mut [f32]) {
        target.copy_from_slice(&mean[..self.dimensions]);
        if self.normalise {
            vector::normalise(target);
        }
    }
}
