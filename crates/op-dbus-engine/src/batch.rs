//! What is computed together: the tokens of some texts one after another, without padding.

use crate::backend::BackendError;

/// The tokens of all rows, one row after another. A backend that needs rows of equal length pads
/// for itself.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids of all rows, special tokens included, `[tokens]`.
    pub ids: &'a [i32],
    /// Tokens of each row, `[rows]`; each is at least 1 and their sum is `ids.len()`.
    pub lengths: &'a [i32],
}

impl<'a> Batch<'a> {
    /// Number of texts in the batch.
    pub fn rows(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens of all rows together.
    pub fn tokens(&self) -> usize {
        self.ids.len()
    }

    /// Tokens of the longest row.
    pub fn longest(&self) -> usize {
        self.lengths.iter().map(|length| count(*length)).max().unwrap_or(0)
    }

    /// Token ids of each row. Rows that a batch does not hold (see [`check`](Self::check)) come
    /// short or empty.
    pub fn texts(&self) -> impl Iterator<Item = &'a [i32]> + use<'a> {
        let mut rest = self.ids;
        self.lengths.iter().map(move |length| {
            let (text, behind) = rest.split_at(count(*length).min(rest.len()));
            rest = behind;
            text
        })
    }

    /// Whether ids and lengths belong together. Everybody who reads a batch that came from
    /// elsewhere asks this once, before anything else.
    ///
    /// # Errors
    /// [`BackendError::Failed`] for a batch without rows, a row without tokens, or lengths whose
    /// sum is not the number of ids.
    pub fn check(&self) -> Result<(), BackendError> {
        let refuse = |what: String| Err(BackendError::Failed(format!("the batch {what}")));
        if self.lengths.is_empty() {
            return refuse("has no rows".into());
        }
        if let Some(row) = self.lengths.iter().position(|length| *length < 1) {
            return refuse(format!("has no tokens in row {row}"));
        }
        let sum =
            self.lengths.iter().try_fold(0usize, |sum, length| sum.checked_add(count(*length)));
        if sum != Some(self.ids.len()) {
            let ids = self.ids.len();
            return refuse(format!("has {ids} token ids, which is not the sum of its lengths"));
        }
        Ok(())
    }
}

/// A length as a count; what is no length counts as nothing.
fn count(length: i32) -> usize {
    usize::try_from(length).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_one_after_another() {
        let batch = Batch { ids: &[1, 2, 3, 4, 5, 6], lengths: &[2, 1, 3] };
        assert_eq!((batch.rows(), batch.tokens(), batch.longest()), (3, 6, 3));
        assert_eq!(batch.texts().collect::<Vec<_>>(), [&[1, 2][..], &[3], &[4, 5, 6]]);
        assert_eq!(batch.check(), Ok(()));
    }

    #[test]
    fn a_batch_that_contradicts_itself_is_refused() {
        let refused = |ids, lengths| Batch { ids, lengths }.check().unwrap_err().to_string();
        assert_eq!(refused(&[], &[]), "the batch has no rows");
        assert_eq!(refused(&[1, 2], &[2, 0]), "the batch has no tokens in row 1");
        assert_eq!(refused(&[1, 2], &[3, -1]), "the batch has no tokens in row 1");
        for lengths in [&[1][..], &[2, 1], &[i32::MAX; 2]] {
            assert!(refused(&[1, 2], lengths).contains("2 token ids"));
            let batch = Batch { ids: &[1, 2], lengths };
            assert_eq!(batch.texts().map(<[i32]>::len).sum::<usize>(), lengths.len().clamp(1, 2));
        }
    }
}
