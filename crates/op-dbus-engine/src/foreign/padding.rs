//! From the engine's packed batches to the rows of equal length that graphs are fed with.

use super::{Content, Integers};
use crate::batch::Batch;
use crate::buckets::Buckets;

/// A padded batch, in buffers that are used again for the next one.
#[derive(Debug, Default)]
pub struct Padded {
    /// Token ids, `[rows, sequence length]`; 0, which is in every vocabulary, behind a row's own.
    pub ids: Vec<i32>,
    /// Tokens of each row, `[rows]`.
    pub lengths: Vec<i32>,
    /// Rows: the texts of the batch, and those behind them.
    pub rows: usize,
    /// Tokens of a row, padding included.
    pub sequence_length: usize,
}

impl Padded {
    /// Takes a batch over as it is.
    pub fn fill(&mut self, batch: &Batch<'_>) {
        self.fill_to(batch, [batch.rows(), batch.longest()]);
    }

    /// Takes a batch over in a shape that many share, with rows of one token behind the batch's own.
    pub fn fill_rounded(&mut self, batch: &Batch<'_>, buckets: Buckets) {
        self.fill_to(batch, buckets.shape(batch.rows(), batch.longest()));
    }

    fn fill_to(&mut self, batch: &Batch<'_>, [rows, sequence_length]: [usize; 2]) {
        (self.rows, self.sequence_length) = (rows, sequence_length);
        self.ids.clear();
        for (row, text) in batch.texts().enumerate() {
            self.ids.extend_from_slice(text);
            self.ids.resize((row + 1) * sequence_length, 0);
        }
        self.ids.resize(rows * sequence_length, 0);
        self.lengths.clear();
        self.lengths.extend_from_slice(batch.lengths);
        self.lengths.resize(rows, 1);
    }

    /// `[rows, sequence length]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.sequence_length]
    }
}

/// The data of one input, in the integers that the graph wants.
#[derive(Debug)]
pub enum Filled {
    /// Of 32 bits.
    I32(Vec<i32>),
    /// Of 64 bits.
    I64(Vec<i64>),
}

impl Filled {
    /// Room for an input's data.
    pub fn new(integers: Integers) -> Self {
        match integers {
            Integers::I32 => Self::I32(Vec::new()),
            Integers::I64 => Self::I64(Vec::new()),
        }
    }

    /// Bytes of the data.
    pub fn bytes(&self) -> usize {
        match self {
            Self::I32(data) => size_of_val(&data[..]),
            Self::I64(data) => size_of_val(&data[..]),
        }
    }

    /// Replaces the data by those of another batch.
    pub fn fill(&mut self, content: Content, padded: &Padded, lengths: &[i32]) {
        match self {
            Self::I32(data) => replace(data, content, padded, lengths, |value| value),
            Self::I64(data) => replace(data, content, padded, lengths, i64::from),
        }
    }
}

fn replace<T: Clone>(
    data: &mut Vec<T>,
    content: Content,
    padded: &Padded,
    lengths: &[i32],
    convert: impl Fn(i32) -> T,
) {
    data.clear();
    match content {
        Content::TokenIds => data.extend(padded.ids.iter().map(|id| convert(*id))),
        Content::Lengths => data.extend(lengths.iter().map(|length| convert(*length))),
        Content::TokenTypes => data.resize(padded.ids.len(), convert(0)),
        Content::AttentionMask => {
            for (row, own) in lengths.iter().enumerate() {
                let start = row * padded.sequence_length;
                data.resize(start + usize::try_from(*own).unwrap_or(0), convert(1));
                data.resize(start + padded.sequence_length, convert(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rounded_batch_has_rows_of_one_token_behind_its_own() {
        let mut padded = Padded::default();
        let ids: Vec<i32> = (1..=90).collect();
        let batch = Batch { ids: &ids, lengths: &[10; 9] };
        let (tokens_max, attention_max, rows_max) = (120, 1 << 20, 512);
        let buckets =
            |length_max| Buckets { tokens_max, attention_max, rows_max, length_max, packed: false };
        padded.fill_rounded(&batch, buckets(12));
        assert_eq!((padded.shape(), padded.ids.len()), ([10, 12], 120));
        assert_eq!(padded.lengths, [vec![10; 9], vec![1]].concat());
        assert_eq!(padded.ids[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0]);
        padded.fill_rounded(&batch, Buckets { tokens_max: 512, ..buckets(512) });
        assert_eq!(padded.shape(), [16, 16]);
        padded.fill(&batch);
        assert_eq!((padded.shape(), padded.lengths.len()), ([9, 10], 9));
    }

    #[test]
    fn rows_are_padded_to_the_longest_and_buffers_forget() {
        let mut padded = Padded::default();
        padded.fill(&Batch { ids: &[9; 12], lengths: &[4, 4, 4] });
        let batch = Batch { ids: &[1, 2, 3, 4, 5, 6], lengths: &[2, 1, 3] };
        padded.fill(&batch);
        assert_eq!(padded.shape(), [3, 3]);
        assert_eq!(padded.ids, [1, 2, 0, 3, 0, 0, 4, 5, 6]);
        let filled = |content, integers| {
            let mut filled = Filled::new(integers);
            for lengths in [&[3, 3, 3], batch.lengths] {
                filled.fill(content, &padded, lengths);
            }
            match filled {
                Filled::I32(data) => data.into_iter().map(i64::from).collect(),
                Filled::I64(data) => data,
            }
        };
        let mask = [1, 1, 0, 1, 0, 0, 1, 1, 1];
        for integers in [Integers::I32, Integers::I64] {
            assert_eq!(filled(Content::AttentionMask, integers), mask);
            assert_eq!(filled(Content::TokenTypes, integers), [0; 9]);
            assert_eq!(filled(Content::TokenIds, integers)[..4], [1, 2, 0, 3]);
            assert_eq!(filled(Content::Lengths, integers), [2, 1, 3]);
        }
    }
}
