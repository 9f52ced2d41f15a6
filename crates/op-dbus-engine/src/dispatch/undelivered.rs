//! What a worker has computed and not handed out yet.

use crate::backend::Description;
use crate::job::{Finished, Ran};
use crate::scheduler::{Entry, Row};

/// A batch whose vectors are there; empty once they are delivered.
#[derive(Default)]
pub(super) struct Undelivered {
    pub entries: Vec<Entry>,
    /// Those of the entries come first.
    pub vectors: Vec<f32>,
    pub started_us: u64,
    pub ended_us: u64,
    finished: Vec<Finished>,
}

impl Undelivered {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Hands the rows to their calls, those of one call that follow one another at once.
    pub fn deliver(&mut self, by: &Description) {
        let Self { entries, vectors, finished, .. } = self;
        let ran = Ran { by, started_us: self.started_us, ended_us: self.ended_us };
        let mut vectors = vectors.as_slice();
        for run in entries.chunk_by(|row, next| row.item.is_followed_by(&next.item)) {
            let Row { job, slot, .. } = &run[0].item;
            let tokens = run.iter().map(|entry| entry.tokens);
            let (of_run, rest) = vectors.split_at(run.len() * by.dimensions);
            finished.extend(job.deliver(*slot, of_run, tokens, &ran));
            vectors = rest;
        }
        // All at once: the thread that is woken by the first finds the others there.
        finished.drain(..).for_each(Finished::tell);
        entries.clear();
    }
}
