//! What a backend is given of a batch, in memory that is used again for the next.

use crate::batch::Batch;
use crate::scheduler::Entry;

/// The ids of all rows, one behind the other, and how many each row has.
#[derive(Default)]
pub(super) struct BatchBuffer {
    ids: Vec<i32>,
    lengths: Vec<i32>,
}

impl BatchBuffer {
    /// Takes over the rows of a batch in place of those before.
    pub fn fill(&mut self, entries: &[Entry]) {
        self.ids.clear();
        self.lengths.clear();
        for entry in entries {
            let ids = &entry.item.ids;
            self.ids.extend_from_slice(ids);
            self.lengths.push(i32::try_from(ids.len()).unwrap_or(i32::MAX));
        }
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch { ids: &self.ids, lengths: &self.lengths }
    }
}
