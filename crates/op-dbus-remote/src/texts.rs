//! What is sent: a batch, and its texts where servers take nothing else.

use op_dbus_engine::{BackendError, Batch, Tokenizer};

/// A batch on its way.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// Its token ids.
    pub batch: Batch<'a>,
    /// Its texts, `[rows]`, if those are sent.
    pub texts: Option<&'a [String]>,
}

/// Texts of which the tokenizer makes exactly the ids of the batch: where a text was cut, they are cut as
/// well, and nothing is left for a server to cut.
///
/// # Errors
/// [`BackendError::Failed`]: one of them can't be had.
pub fn rebuilt(batch: &Batch<'_>, tokenizer: &Tokenizer) -> Result<Vec<String>, BackendError> {
    let texts = batch.texts().map(|ids| tokenizer.text(ids)).collect::<Option<_>>();
    texts.ok_or_else(|| {
        let message = "remote: of the tokens of one text no text is made again, and nothing else may be \
                       sent where inputs is texts ([providers.remote]); that is so for one that was cut \
                       within a word: cut it at its end (truncate), or send parts of it";
        BackendError::Failed(message.to_owned())
    })
}
