//! From texts to rows in the queue: small calls on the caller's task, large ones in chunks on
//! tokenizer threads, so that the first chunk computes while the next is tokenized.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::admission::cost;
use crate::error::Error;
use crate::job::{Job, Slot};
use crate::queue;
use crate::scheduler::{Row, Scheduler};
use crate::tokenizer::{EncodeError, Tokenizer};

/// A chunk ends at the first of these bounds: some milliseconds of work for one thread.
const CHUNK_TEXTS_MAX: usize = 64;
const CHUNK_BYTES_MAX: usize = 32 << 10;

/// Texts of a call's first chunk; each later one may have twice as many. Idle workers wait for it.
const CHUNK_TEXTS_FIRST: usize = 16;

/// Up to here tokenizing takes about a millisecond at most and is not worth a change of threads.
const INLINE_BYTES_MAX: usize = 2 << 10;

/// Work for a tokenizer thread.
pub(crate) enum Task {
    Embed(Chunk),
    Count {
        /// Index in the call of the first of the texts.
        first: u32,
        texts: Vec<String>,
        counts: oneshot::Sender<Result<Vec<u32>, Error>>,
    },
}

/// Some consecutive texts of a call.
pub(crate) struct Chunk {
    pub job: Arc<Job>,
    /// Index in the call of the first of them.
    pub first: u32,
    pub texts: Vec<String>,
}

/// Whether texts are few and short enough to be tokenized where they are.
pub(crate) fn is_small(texts: &[String]) -> bool {
    texts.len() <= CHUNK_TEXTS_MAX
        && texts.iter().map(String::len).sum::<usize>() <= INLINE_BYTES_MAX
}

/// Splits texts into chunks, each with the index of its first text.
pub(crate) fn chunks(texts: Vec<String>) -> impl Iterator<Item = (u32, Vec<String>)> {
    let mut texts = texts.into_iter().peekable();
    let (mut first, mut texts_max) = (0, CHUNK_TEXTS_FIRST);
    std::iter::from_fn(move || {
        let mut chunk = vec![texts.next()?];
        let mut bytes = chunk[0].len();
        while let Some(next) = texts.peek() {
            bytes += next.len();
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
    /// Tokenizes a chunk and queues its rows; a text that can't be tokenized fails its call.
    pub fn embed(&self, Chunk { job, first, texts }: Chunk) {
        let clock = self.scheduler.clock;
        let (specials, limit) = (self.tokenizer.specials(), self.tokenizer.max_input_tokens());
        let mut entries = Vec::with_capacity(texts.len());
        let mut saved = 0;
        for (text, index) in texts.iter().zip(first..) {
            let now_us = clock.now_us();
            if !job.is_alive(now_us) {
                return;
            }
            let encoded = match self.tokenizer.encode(text, job.terms.truncate) {
                Ok(encoded) => encoded,
                Err(error) => return job.fail(error.of_text(index as usize)),
            };
            let tokens: usize = encoded.windows.iter().map(|w| w.ids.len()).sum();
            saved += cost(text.len(), job.terms.truncate, specials, limit).saturating_sub(tokens);
            job.tokenized(index, &encoded.windows, encoded.truncated);
            for (window, at) in encoded.windows.into_iter().zip(0..) {
                entries.push(queue::Entry {
                    uid: job.terms.uid,
                    class: job.terms.class,
                    tokens: window.ids.len(),
                    enqueued_us: now_us,
                    alone: false,
                    item: Row {
                        job: Arc::clone(&job),
                        slot: Slot { text: index, window: at },
                        ids: window.ids,
                    },
                });
            }
        }
        job.give_back(saved);
        self.scheduler.push(entries);
    }

    /// Tokens of each text before truncation; the first text is number `first` of its call.
    pub fn count(
        &self,
        first: u32,
        texts: &[String],
        wanted: impl Fn() -> bool,
    ) -> Result<Vec<u32>, Error> {
        let mut counts = Vec::with_capacity(texts.len());
        for (text, index) in texts.iter().zip(first..) {
            if !wanted() {
                return Err(Error::Cancelled);
            }
            let count =
                self.tokenizer.count(text).map_err(|error| error.of_text(index as usize))?;
            counts.push(u32::try_from(count).unwrap_or(u32::MAX));
        }
        Ok(counts)
    }

    /// The body of a tokenizer thread; ends when the engine is gone.
    pub fn serve(&self, tasks: &Mutex<mpsc::Receiver<Task>>) {
        loop {
            // One idle thread waits for a task, the others for the lock.
            let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).blocking_recv();
            match task {
                None => return,
                Some(Task::Embed(chunk)) => self.embed(chunk),
                Some(Task::Count { first, texts, counts }) => {
                    let result = self.count(first, &texts, || !counts.is_closed());
                    // The caller may be gone: then nobody wants to know.
                    let _ = counts.send(result);
                }
            }
        }
    }
}

impl EncodeError {
    fn of_text(self, index: usize) -> Error {
        match self {
            Self::TooLong { tokens, limit } => Error::TooLong { index, tokens, limit },
            Self::Failed(reason) => {
                Error::InvalidArgument(format!("text {index} can't be tokenized: {reason}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
