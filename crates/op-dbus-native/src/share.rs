//! Who computes what of a batch: whole texts for each thread, or all threads on each text.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_engine::Batch;

use crate::tuning::Together;

/// Most tokens that one thread takes through the encoder at once, unless a single text is longer:
/// enough that the weights are worth their way from memory.
pub(crate) const CHUNK_TOKENS: usize = 512;

/// Fewest tokens of a chunk, as long as there are more: a strip of rows that is worth its weights'
/// way from the third level cache.
const CHUNK_TOKENS_MIN: usize = 64;

/// The rows of a batch in chunks, which are taken one after another by whoever is free. They get
/// smaller towards the end, so that nobody waits long for the last.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Row numbers, those of the longest texts first.
    rows: Vec<u32>,
    /// Where each row's ids begin and end.
    texts: Vec<Range<usize>>,
    /// Where in `rows` the chunks are.
    chunks: Vec<Range<usize>>,
    /// Chunks that were taken.
    taken: AtomicUsize,
    /// Work of each member, if members took texts instead of chunks.
    loads: Vec<u64>,
    split: bool,
}

impl Shares {
    pub fn new(members: usize) -> Self {
        Self {
            rows: Vec::new(),
            texts: Vec::new(),
            chunks: Vec::new(),
            taken: AtomicUsize::new(0),
            loads: vec![0; members],
            split: false,
        }
    }

    /// Divides `batch` into chunks. If the longest texts would leave some of `members` idle for longer
    /// than it costs to share every matrix, all members are to compute each chunk together.
    pub fn plan(&mut self, batch: &Batch<'_>, members: usize, hidden: usize, together: Together) {
        let rows = batch.rows();
        self.texts.clear();
        let mut end = 0;
        for text in batch.texts() {
            self.texts.push(end..end + text.len());
            end += text.len();
        }
        let texts = &self.texts;
        let tokens = |row: u32| texts[row as usize].len();
        let cost = |row: u32| {
            let length = tokens(row) as u64;
            // The products grow with the length, attention with its square: six matrices of
            // hidden × hidden each way (a feed-forward network four times as wide), two of
            // length × hidden.
            length * (6 * hidden as u64 + length)
        };
        self.rows.clear();
        self.rows.extend(0..u32::try_from(rows).unwrap_or(u32::MAX));
        self.rows.sort_unstable_by_key(|&row| (std::cmp::Reverse(tokens(row)), row));
        self.loads.fill(0);
        for &row in &self.rows {
            if let Some(least) = self.loads.iter_mut().min() {
                *least += cost(row);
            }
        }
        let total: u64 = self.loads.iter().sum();
        let longest = self.loads.iter().max().copied().unwrap_or(0);
        // Shared matrices have the rows of a whole chunk.
        let percent = together.of(end.min(CHUNK_TOKENS));
        let shared = (total / members as u64).saturating_mul(percent) / 100;
        self.split = members == 1 || longest <= shared;
        self.chunks.clear();
        let (mut start, mut left) = (0, end);
        while start < rows {
            let most = if self.split && members > 1 {
                (left / (2 * members)).clamp(CHUNK_TOKENS_MIN, CHUNK_TOKENS)
            } else {
                CHUNK_TOKENS
            };
            let (mut sum, mut end) = (tokens(self.rows[start]), start + 1);
            while end < rows && sum + tokens(self.rows[end]) <= most {
                sum += tokens(self.rows[end]);
                end += 1;
            }
            self.chunks.push(start..end);
            left -= sum;
            start = end;
        }
        *self.taken.get_mut() = 0;
    }

    /// Where the ids of a row are.
    pub fn text(&self, row: u32) -> Range<usize> {
        self.texts[row as usize].clone()
    }

    /// Whether each chunk is for one member; else all members compute all of them together.
    pub fn is_split(&self) -> bool {
        self.split
    }

    /// The rows of a chunk that nobody has taken before.
    pub fn take(&self) -> Option<&[u32]> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        Some(&self.rows[self.chunks.get(number)?.clone()])
    }

    /// The rows of all chunks, one chunk after another.
    pub fn chunks(&self) -> impl Iterator<Item = &[u32]> {
        self.chunks.iter().map(|chunk| &self.rows[chunk.clone()])
    }
}

#[cfg(test)]
mod tests {
    use op_dbus_engine::Batch;

    use super::{CHUNK_TOKENS, Shares};
    use crate::tuning::Together;

    fn planned(lengths: &[i32], members: usize) -> Shares {
        let ids = vec![1; lengths.iter().sum::<i32>() as usize];
        let mut shares = Shares::new(members);
        let together = Together { short: 115, long: 115 };
        shares.plan(&Batch { ids: &ids, lengths }, members, 384, together);
        shares
    }

    #[test]
    fn every_row_is_taken_once_in_chunks_that_get_smaller() {
        let lengths: Vec<i32> = (0..120).map(|row| 1 + row * 7 % 60).collect();
        let shares = planned(&lengths, 2);
        assert!(shares.is_split());
        let (mut rows, mut sizes) = (Vec::new(), Vec::new());
        while let Some(chunk) = shares.take() {
            sizes.push(chunk.iter().map(|&row| shares.text(row).len()).sum::<usize>());
            rows.extend_from_slice(chunk);
        }
        rows.sort_unstable();
        assert!(rows.into_iter().eq(0..120));
        assert!(sizes.iter().all(|&tokens| tokens <= CHUNK_TOKENS), "{sizes:?}");
        assert!(sizes.last() <= Some(&64) && sizes.first() > Some(&400), "{sizes:?}");
    }

    #[test]
    fn all_members_compute_a_text_that_would_leave_others_idle() {
        for (lengths, split) in [(&[15][..], false), (&[15, 15], true), (&[200, 15, 15], false)] {
            let shares = planned(lengths, 2);
            assert_eq!(shares.is_split(), split, "{lengths:?}");
            assert_eq!(shares.chunks().map(<[u32]>::len).sum::<usize>(), lengths.len());
        }
        assert!(planned(&[15], 1).is_split());
    }
}
