//! Who computes what of a batch: whole texts for each thread, or all threads on each text.

use std::cmp::Reverse;
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

/// The rows of a batch in chunks, which are taken one after another by whoever is free: one for each
/// member, of equal work, or, if that would be too much at once, as many as it takes. Those get smaller
/// towards the end, so that nobody waits long for the last.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Row numbers, chunk by chunk.
    rows: Vec<u32>,
    /// Where each row's ids begin and end.
    texts: Vec<Range<usize>>,
    /// Where in `rows` the chunks are.
    chunks: Vec<Range<usize>>,
    /// Chunks that were taken.
    taken: AtomicUsize,
    /// What each member had, if members took texts instead of chunks.
    loads: Vec<Load>,
    /// The member that had each row then.
    members: Vec<usize>,
    /// Whether all members compute each chunk together, with a part of every matrix each.
    together: bool,
}

/// Texts of one member.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    work: u64,
    rows: usize,
    tokens: usize,
}

impl Shares {
    pub fn new(members: usize) -> Self {
        Self {
            rows: Vec::new(),
            texts: Vec::new(),
            chunks: Vec::new(),
            taken: AtomicUsize::new(0),
            loads: vec![Load::default(); members],
            members: Vec::new(),
            together: false,
        }
    }

    /// Divides `batch` into chunks. If the longest texts would leave some of `members` idle for longer
    /// than it costs to share every matrix, all members are to compute each chunk together.
    pub fn plan(&mut self, batch: &Batch<'_>, members: usize, hidden: usize, cost: Together) {
        self.texts.clear();
        let mut end = 0;
        for text in batch.texts() {
            self.texts.push(end..end + text.len());
            end += text.len();
        }
        self.rows.clear();
        self.rows.extend(0..u32::try_from(batch.rows()).unwrap_or(u32::MAX));
        let texts = &self.texts;
        self.rows.sort_unstable_by_key(|&row| (Reverse(texts[row as usize].len()), row));
        self.deal(hidden);
        let work = || self.loads.iter().map(|load| load.work);
        // Shared matrices have the rows of a whole chunk.
        let percent = cost.of(end.min(CHUNK_TOKENS));
        let shared = (work().sum::<u64>() / members as u64).saturating_mul(percent) / 100;
        self.together = members > 1 && work().max() > Some(shared);
        self.chunks.clear();
        // As many as there can be, so that later batches need no more room, however long their texts are.
        self.chunks.reserve(self.rows.len());
        let most = self.loads.iter().map(|load| load.tokens).max();
        if !self.together && most <= Some(CHUNK_TOKENS) {
            self.one_for_each();
        } else {
            self.taper(end, members);
        }
        *self.taken.get_mut() = 0;
    }

    /// Gives each row, the longest first, to the member that has the least work until then.
    fn deal(&mut self, hidden: usize) {
        self.loads.fill(Load::default());
        self.members.clear();
        self.members.resize(self.rows.len(), 0);
        for &row in &self.rows {
            let tokens = self.texts[row as usize].len();
            let each = self.loads.iter_mut().enumerate();
            let Some((member, least)) = each.min_by_key(|(_, load)| load.work) else { continue };
            self.members[row as usize] = member;
            least.rows += 1;
            least.tokens += tokens;
            // The products grow with the length, attention with its square: six matrices of
            // hidden × hidden each way (a feed-forward network four times as wide), two of
            // length × hidden.
            least.work += tokens as u64 * (6 * hidden as u64 + tokens as u64);
        }
    }

    /// A chunk for each member, as dealt: crumbs at the end would have the weights come from memory
    /// for a few rows.
    fn one_for_each(&mut self) {
        let Self { rows, texts, members, loads, chunks, .. } = self;
        rows.sort_unstable_by_key(|&row| {
            (members[row as usize], Reverse(texts[row as usize].len()), row)
        });
        let mut start = 0;
        for load in loads.iter().filter(|load| load.rows > 0) {
            chunks.push(start..start + load.rows);
            start += load.rows;
        }
    }

    /// Chunks of up to `CHUNK_TOKENS`, and of less and less if members take them from each other.
    fn taper(&mut self, mut left: usize, members: usize) {
        let tokens = |row: u32| self.texts[row as usize].len();
        let (mut start, rows) = (0, self.rows.len());
        while start < rows {
            let most = if !self.together && members > 1 {
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
    }

    /// Where the ids of a row are.
    pub fn text(&self, row: u32) -> Range<usize> {
        self.texts[row as usize].clone()
    }

    /// Whether all members compute all chunks together; else each is for the member that takes it.
    pub fn is_together(&self) -> bool {
        self.together
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
    use proptest::collection::vec;
    use proptest::prelude::{prop_assert, proptest};

    use super::{CHUNK_TOKENS, Shares};
    use crate::tuning::Together;

    fn planned(lengths: &[i32], members: usize) -> Shares {
        let ids = vec![1; lengths.iter().sum::<i32>() as usize];
        let mut shares = Shares::new(members);
        let cost = Together { short: 115, long: 115 };
        shares.plan(&Batch { ids: &ids, lengths }, members, 384, cost);
        shares
    }

    /// Rows of all chunks, and tokens of each.
    fn taken(shares: &Shares) -> (Vec<u32>, Vec<usize>) {
        let (mut rows, mut sizes) = (Vec::new(), Vec::new());
        while let Some(chunk) = shares.take() {
            sizes.push(chunk.iter().map(|&row| shares.text(row).len()).sum());
            rows.extend_from_slice(chunk);
        }
        rows.sort_unstable();
        (rows, sizes)
    }

    #[test]
    fn every_row_is_taken_once_in_chunks_that_get_smaller() {
        let lengths: Vec<i32> = (0..120).map(|row| 1 + row * 7 % 60).collect();
        let shares = planned(&lengths, 2);
        assert!(!shares.is_together());
        let (rows, sizes) = taken(&shares);
        assert!(rows.into_iter().eq(0..120));
        assert!(sizes.iter().all(|&tokens| tokens <= CHUNK_TOKENS), "{sizes:?}");
        assert!(sizes.last() <= Some(&64) && sizes.first() > Some(&400), "{sizes:?}");
    }

    #[test]
    fn a_batch_of_one_chunk_for_each_member_is_divided_evenly() {
        for members in 1..5 {
            let lengths: Vec<i32> = (0..20).map(|row| 3 + row * 7 % 20).collect();
            let shares = planned(&lengths, members);
            assert!(!shares.is_together());
            let (rows, sizes) = taken(&shares);
            assert!(rows.into_iter().eq(0..20));
            assert_eq!(sizes.len(), members, "{sizes:?}");
            let spread = sizes.iter().max().unwrap() - sizes.iter().min().unwrap();
            assert!(spread <= 5, "{sizes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_chunk_is_larger_than_an_arena(
            lengths in vec(1..600_i32, 1..60),
            members in 1..9_usize,
        ) {
            let (rows, sizes) = taken(&planned(&lengths, members));
            prop_assert!(rows.into_iter().map(|row| row as usize).eq(0..lengths.len()));
            let longest = lengths.into_iter().max().unwrap_or(0) as usize;
            prop_assert!(sizes.into_iter().all(|tokens| tokens <= CHUNK_TOKENS.max(longest)));
        }
    }

    #[test]
    fn all_members_compute_a_text_that_would_leave_others_idle() {
        for (lengths, together) in [(&[15][..], true), (&[15, 15], false), (&[200, 15, 15], true)] {
            let shares = planned(lengths, 2);
            assert_eq!(shares.is_together(), together, "{lengths:?}");
            assert_eq!(shares.chunks().map(<[u32]>::len).sum::<usize>(), lengths.len());
        }
        assert!(!planned(&[15], 1).is_together());
    }
}
