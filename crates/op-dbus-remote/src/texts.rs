//! What is sent: a batch, and its texts where servers take nothing else.

use std::ops::Range;

use op_dbus_engine::{BackendError, Batch, Tokenizer};

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Its token ids.
    pub batch: Batch<'a>,
    /// Its texts, `[rows]`, if those are sent.
    pub texts: Option<&'a [String]>,
}

impl Sent<'_> {
    /// These of its rows.
    pub fn part(&self, rows: Range<usize>) -> Sent<'_> {
        let lengths = &self.batch.lengths;
        let tokens = |lengths: &[i32]| {
            lengths.iter().map(|length| usize::try_from(*length).unwrap_or(0)).sum::<usize>()
        };
        let start = tokens(&lengths[..rows.start]);
        let end = start + tokens(&lengths[rows.clone()]);
        let batch = Batch { ids: &self.batch.ids[start..end], lengths: &lengths[rows.clone()] };
        Sent { batch, texts: self.texts.map(|texts| &texts[rows]) }
    }
}

/// Texts of which the tokenizer makes exactly the ids of the batch: where a text was cut, they are cut as
/// well, and nothing is left for a server to cut.
///
/// # Errors
/// One of them can't be had: [`BackendError::Failed`] where it is alone, else [`BackendError::OutOfMemory`], so
/// that the batch is sent in smaller ones and most of its texts stay together.
pub fn rebuilt(batch: &Batch<'_>, tokenizer: &Tokenizer) -> Result<Vec<String>, BackendError> {
    let texts = batch.texts().map(|ids| tokenizer.text(ids)).collect::<Option<_>>();
    texts.ok_or_else(|| {
        let message = "remote: of the tokens of one text no text is made again, and nothing else may be \
                       sent where inputs is texts ([providers.remote]); that is so for one that was cut \
                       within a word: cut it at its end (truncate), or send parts of it";
        match batch.rows() {
            1 => BackendError::Failed(message.to_owned()),
            _ => BackendError::OutOfMemory(message.to_owned()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_its_own_ids_and_texts() {
        let texts = ["a", "b", "c"].map(str::to_owned);
        let batch = Batch { ids: &[1, 2, 3, 4, 5, 6], lengths: &[1, 2, 3] };
        let sent = Sent { batch, texts: Some(&texts) };
        let part = sent.part(1..3);
        assert_eq!((part.batch.ids, part.batch.lengths), (&[2, 3, 4, 5, 6][..], &[2, 3][..]));
        assert_eq!(part.texts, Some(&texts[1..]));
        assert_eq!(sent.part(0..1).batch.ids, [1]);
    }
}
