//! From texts to rows in the queue: small calls on the caller's task, large ones in chunks on
//! tokenizer threads, so that the first chunk computes while the next is tokenized.

use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::admission::{Settled, tokens_of_memory, work};
use crate::call::Truncate;
use crate::error::{Error, Excess};
use crate::job::{Job, Slot};
use crate::queue;
use crate::scheduler::{Row, Scheduler};
use crate::tokenizer::{EncodeError, Encoded, Tokenizer};
use crate::tokenizer_threads::{QueuedTask, ROOM, UserTasks};

/// A chunk ends at the first of these bounds: some milliseconds of work for one thread.
const CHUNK_TEXTS_MAX: usize = 64;
const CHUNK_BYTES_MAX: usize = 32 << 10;

/// Texts of a call's first chunk; each later one may have twice as many. Idle workers wait for it.
const CHUNK_TEXTS_FIRST: usize = 16;

/// Work for a tokenizer thread.
pub(crate) type Task = Box<dyn FnOnce(&Preparer) + Send>;

/// Some consecutive inputs of a call.
pub(crate) struct Chunk<T> {
    pub job: Arc<Job>,
    /// Index in the call of the first of them.
    pub first: u32,
    pub inputs: Vec<T>,
}

/// What rows are made from: a text, or a list of token ids.
pub(crate) trait Input: Send + 'static {
    /// Whether its tokens are known before it is looked at.
    const IS_EXACT: bool = false;
    /// The memory that it takes.
    fn bytes(&self) -> usize;
    /// Tokens that are computed of it at most.
    fn work(&self, truncate: Truncate, tokenizer: &Tokenizer) -> usize;
    /// Tokens that it counts as: what is cut off takes memory while it waits.
    fn cost(&self, truncate: Truncate, tokenizer: &Tokenizer) -> usize {
        self.work(truncate, tokenizer).max(tokens_of_memory(self.bytes()))
    }
    /// Hashes all of it, and of which kind it is.
    fn hash(&self, hasher: &mut impl Hasher);
    /// Whether making its rows may take much memory.
    fn is_heavy(&self, tokenizer: &Tokenizer) -> bool;
    /// Whether that is measured, which takes its time.
    fn is_measured(&self, _: &Tokenizer) -> bool {
        false
    }
    /// Its rows.
    fn encode(&self, truncate: Truncate, tokenizer: &Tokenizer) -> Result<Encoded, EncodeError>;
    /// Why a call is refused that has more of these than it may, whose sizes are in bytes.
    fn too_large(excess: Excess, found: usize, limit: usize) -> Error {
        Error::TooLarge { excess, found, limit }
    }
}

impl Input for String {
    fn bytes(&self) -> usize {
        self.len()
    }

    fn work(&self, truncate: Truncate, tokenizer: &Tokenizer) -> usize {
        work(self.len(), truncate, tokenizer.specials(), tokenizer.max_input_tokens())
    }

    fn hash(&self, hasher: &mut impl Hasher) {
        hasher.write_u8(0);
        hasher.write(self.as_bytes());
    }

    fn is_heavy(&self, tokenizer: &Tokenizer) -> bool {
        tokenizer.is_heavy(self, true)
    }

    fn is_measured(&self, tokenizer: &Tokenizer) -> bool {
        tokenizer.is_measured(self, true)
    }

    fn encode(&self, truncate: Truncate, tokenizer: &Tokenizer) -> Result<Encoded, EncodeError> {
        tokenizer.encode(self, truncate)
    }
}

impl Input for Vec<u32> {
    const IS_EXACT: bool = true;

    fn bytes(&self) -> usize {
        size_of_val(self.as_slice())
    }

    fn work(&self, truncate: Truncate, tokenizer: &Tokenizer) -> usize {
        let content = tokenizer.without_specials(self).len();
        work(content, truncate, tokenizer.specials(), tokenizer.max_input_tokens())
    }

    fn hash(&self, hasher: &mut impl Hasher) {
        hasher.write_u8(1);
        self.iter().for_each(|id| hasher.write_u32(*id));
    }

    fn is_heavy(&self, _: &Tokenizer) -> bool {
        false
    }

    fn encode(&self, truncate: Truncate, tokenizer: &Tokenizer) -> Result<Encoded, EncodeError> {
        tokenizer.encode_tokens(self, truncate)
    }

    fn too_large(excess: Excess, found: usize, limit: usize) -> Error {
        // Who sent no text is told of ids, and counts them.
        let (excess, bytes) = match excess {
            Excess::Texts => (Excess::Lists, 1),
            Excess::TextBytes { index } => (Excess::ListIds { index }, size_of::<u32>()),
            Excess::CallBytes => (Excess::CallIds, size_of::<u32>()),
            other => (other, 1),
        };
        Error::TooLarge { excess, found: found / bytes, limit: limit / bytes }
    }
}

/// Whether inputs are few and short enough to be tokenized where they are.
pub(crate) fn is_small<T: Input>(inputs: &[T], tokenizer: &Tokenizer) -> bool {
    inputs.len() <= CHUNK_TEXTS_MAX && tokenizer.is_quick(inputs.iter().map(T::bytes).sum())
}

/// Whether any of `inputs`, which come back, may take much memory. Where that is to be measured, a tokenizer thread
/// does so while somebody waits for it, and has what is `held` for them as long as it has them.
pub(crate) async fn weighed<T: Input>(
    (tokenizer, tasks): (&Tokenizer, &UserTasks<'_>),
    inputs: Vec<T>,
    is_measured: impl Fn(&T, &Tokenizer) -> bool,
    is_heavy: impl Fn(&T, &Tokenizer) -> bool + Send + 'static,
    held: impl Send + 'static,
) -> Result<(Vec<T>, bool), Error> {
    let weigh = move |inputs: Vec<T>, tokenizer: &Tokenizer| {
        let is_heavy = inputs.iter().any(|input| is_heavy(input, tokenizer));
        (inputs, is_heavy)
    };
    if !inputs.iter().any(|input| is_measured(input, tokenizer)) {
        return Ok(weigh(inputs, tokenizer));
    }
    let (done, result) = oneshot::channel();
    let task = move |preparer: &Preparer| {
        // The caller may be gone, or go meanwhile: then nobody wants to know.
        if !done.is_closed() {
            let _ = done.send(weigh(inputs, &preparer.tokenizer));
        }
        drop(held);
    };
    // In a box, since every call has room for what is awaited here and few come to it.
    Box::pin(tasks.send(Box::new(task), false)).await?;
    result.await.map_err(|_| Error::ShuttingDown)
}

/// Splits inputs into chunks, each with the index of its first.
pub(crate) fn chunks<T: Input>(inputs: Vec<T>) -> impl Iterator<Item = (u32, Vec<T>)> {
    let mut texts = inputs.into_iter().peekable();
    let (mut first, mut texts_max) = (0, CHUNK_TEXTS_FIRST);
    std::iter::from_fn(move || {
        let mut chunk = vec![texts.next()?];
        let mut bytes = chunk[0].bytes();
        while let Some(next) = texts.peek() {
            bytes += next.bytes();
            if chunk.len() >= texts_max || bytes > CHUNK_BYTES_MAX {
                break;
            }
            chunk.extend(texts.next());
        }
        let start = first;
        first += chunk.len() as u32;
        texts_max = CHUNK_TEXTS_MAX.min(2 * texts_max);
        Some((start, chunk))
    })
}

/// Tokenizes and queues.
#[derive(Clone, Debug)]
pub(crate) struct Preparer {
    pub tokenizer: Tokenizer,
    pub scheduler: Arc<Scheduler>,
}

impl Preparer {
    /// Tokenizes a chunk and queues its rows, but for inputs whose vectors are there already; a text
    /// that can't be tokenized fails its call.
    pub fn embed<T: Input>(&self, Chunk { job, first, inputs }: &Chunk<T>) {
        let clock = self.scheduler.clock;
        let truncate = job.terms.truncate;
        let mut entries = Vec::with_capacity(inputs.len());
        let mut finished = None;
        let mut settled = Settled { is_exact: T::IS_EXACT, ..Settled::default() };
        for (input, index) in inputs.iter().zip(*first..) {
            let now_us = clock.now_us();
            if !job.is_alive(now_us) {
                return;
            }
            if let Some(cached) = job.kept(index) {
                finished = finished.or(job.deliver_kept(index, cached, now_us));
                continue;
            }
            let encoded = match input.encode(truncate, &self.tokenizer) {
                Ok(encoded) => encoded,
                Err(error) => return job.fail(error.of_text(index as usize)),
            };
            let real: usize = encoded.windows.iter().map(|w| w.ids.len()).sum();
            let work = input.work(truncate, &self.tokenizer);
            let memory = tokens_of_memory(input.bytes());
            let cost = work.max(memory);
            settled.work += work;
            settled.real += real.min(work);
            settled.room += cost;
            // Whoever calls keeps a text that was cut, in the message that it came with, until the reply.
            settled.held += real.max(memory).min(cost);
            job.tokenized(index, &encoded.windows, encoded.truncated);
            for (window, at) in encoded.windows.into_iter().zip(0..) {
                entries.push(queue::Entry {
                    uid: job.terms.uid,
                    class: job.terms.class,
                    tokens: window.ids.len(),
                    enqueued_us: now_us,
                    failed_on: None,
                    lost: false,
                    missed: 0,
                    item: Row {
                        job: Arc::clone(job),
                        slot: Slot { text: index, window: at },
                        ids: window.ids,
                    },
                });
            }
        }
        job.settle(settled);
        // A push has unloaded workers load again, which nothing needs.
        if !entries.is_empty() {
            self.scheduler.push(entries);
            // Whoever gave the call up meanwhile has not seen them.
            if !job.is_alive(clock.now_us()) {
                self.scheduler.cancelled(job);
            }
        }
        if let Some(finished) = finished {
            finished.tell();
        }
    }

    /// The body of a tokenizer thread; ends when the engine is gone.
    pub fn serve(&self, tasks: &Mutex<mpsc::Receiver<QueuedTask>>) {
        loop {
            // One idle thread waits for a task, the others for the lock.
            let next = tasks.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
            let Some(QueuedTask { task, permit, heavy }) = next else { return };
            ROOM.notify_waiters();
            task(self);
            drop((permit, heavy));
        }
    }
}

/// What `one` makes of each text, while that is `wanted`; the first is number `first` of its call.
pub(crate) fn look<T>(
    tokenizer: &Tokenizer,
    first: u32,
    texts: &[String],
    one: fn(&Tokenizer, &str) -> Result<T, EncodeError>,
    wanted: impl Fn() -> bool,
) -> Result<Vec<T>, Error> {
    let mut found = Vec::with_capacity(texts.len());
    for (text, index) in texts.iter().zip(first..) {
        if !wanted() {
            return Err(Error::Cancelled);
        }
        found.push(one(tokenizer, text).map_err(|error| error.of_text(index as usize))?);
    }
    Ok(found)
}

impl EncodeError {
    fn of_text(self, index: usize) -> Error {
        match self {
            Self::TooLong { tokens, limit } => Error::TooLong { index, tokens, limit },
            Self::Unknown { id, vocabulary } => {
                let why = if id < vocabulary {
                    "which the vocabulary of this model leaves out".to_owned()
                } else {
                    format!("and the ids of this model are below {vocabulary}")
                };
                Error::InvalidArgument(format!(
                    "text {index} has the token id {id}, {why}; send ids of its own tokenizer, or \
                     the text itself"
                ))
            }
            Self::Failed(reason) => Error::Untokenizable { index, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};
    use std::time::Duration;

    use super::*;
    use crate::config::{Limits, ModelShape};
    use crate::registry::Registry;
    use crate::tokenizer_threads::TokenizerThreads;

    #[test]
    fn chunks_keep_all_texts_in_order() {
        let sizes = [0, 10, CHUNK_BYTES_MAX, 5, CHUNK_BYTES_MAX + 1, 7];
        let mut texts: Vec<String> = sizes.iter().map(|size| "x".repeat(*size)).collect();
        texts.extend((0..200).map(|n| n.to_string()));
        let mut again = Vec::new();
        for (number, (first, chunk)) in chunks(texts.clone()).enumerate() {
            assert_eq!(first as usize, again.len());
            assert!(chunk.len() <= CHUNK_TEXTS_MAX.min(CHUNK_TEXTS_FIRST << number));
            let bytes: usize = chunk.iter().map(String::len).sum();
            assert!(chunk.len() == 1 || bytes <= CHUNK_BYTES_MAX);
            again.extend(chunk);
        }
        assert_eq!(again, texts);
    }

    /// One that no worker takes anything of.
    fn preparer() -> Preparer {
        let registry = Registry::new(&[], &ModelShape::new(8, 8));
        let hour = Duration::from_secs(3600);
        let scheduler = Scheduler::new(&Limits::default(), hour, registry, Arc::default());
        Preparer { tokenizer: Tokenizer::bytes(8), scheduler: Arc::new(scheduler) }
    }

    /// Who comes and leaves again and again would keep the threads busy, with texts that count for nobody.
    #[test]
    fn nothing_is_weighed_for_a_caller_who_is_gone() {
        let preparer = preparer();
        for is_gone in [false, true] {
            let (threads, mut queued) = TokenizerThreads::new(1);
            let (held, looks) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
            let counts = Arc::clone(&looks);
            let is_heavy = move |_: &String, _: &Tokenizer| {
                counts.fetch_add(1, Ordering::Relaxed);
                false
            };
            let (tasks, texts) = (threads.of_user(1), vec!["a".to_owned()]);
            let to = (&preparer.tokenizer, &tasks);
            let weighed = weighed(to, texts, |_, _| true, is_heavy, Arc::clone(&held));
            let mut weighed = Box::pin(weighed);
            let mut context = Context::from_waker(Waker::noop());
            assert!(weighed.as_mut().poll(&mut context).is_pending());
            assert_eq!(Arc::strong_count(&held), 2, "the text waits on");
            let waits = (!is_gone).then_some(weighed);
            (queued.try_recv().unwrap().task)(&preparer);
            assert_eq!(looks.load(Ordering::Relaxed), usize::from(!is_gone));
            assert_eq!(Arc::strong_count(&held), 1);
            let told = waits.map(|mut weighed| weighed.as_mut().poll(&mut context).is_ready());
            assert_ne!(told, Some(false));
        }
    }

    /// By this a deadline is kept or refused, whether a list brings the special tokens or not.
    #[test]
    fn the_work_of_a_list_is_what_is_computed_of_it() {
        let tokenizer = Tokenizer::bytes(8);
        for content in [0, 1, 5, 6, 7, 12, 13].map(|length| vec![7_u32; length]) {
            let whole = [&[256], &content[..], &[257]].concat();
            for truncate in [Truncate::End, Truncate::Start, Truncate::Mean] {
                for ids in [&content, &whole] {
                    let windows = tokenizer.encode_tokens(ids, truncate).unwrap().windows;
                    let computed: usize = windows.iter().map(|window| window.ids.len()).sum();
                    assert_eq!(ids.work(truncate, &tokenizer), computed, "{truncate:?}: {ids:?}");
                }
            }
        }
    }

    #[test]
    fn a_token_id_that_is_not_there_is_told_from_one_that_is_too_large() {
        let told = |id| EncodeError::Unknown { id, vocabulary: 6 }.of_text(1).to_string();
        assert!(told(3).starts_with("text 1 has the token id 3, which the vocabulary of this"));
        assert!(told(6).contains("token id 6, and the ids of this model are below 6; send ids"));
    }
}
