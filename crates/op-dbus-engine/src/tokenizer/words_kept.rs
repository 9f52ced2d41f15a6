//! Words that the library keeps.

use tokenizers::{AddedToken, ModelWrapper, Tokenizer, Trainer};

use super::TokenizerError;

/// Has it keep none. Its BPE has those of every tokenizer that there ever was in each thread that has used one, until
/// the thread ends, which the runtime's never do: tens of MB of callers' words for each load. Its Unigram has 10,000 of
/// them as long as the model is loaded, up to 140 MB with their pieces. Without them a text takes up to 1.4 times as
/// long with BPE.
///
/// # Errors
/// None of a tokenizer that could be made: the library makes its table of added tokens again.
pub(super) fn none(tokenizer: &mut Tokenizer) -> Result<(), TokenizerError> {
    if matches!(tokenizer.get_model(), ModelWrapper::BPE(_) | ModelWrapper::Unigram(_)) {
        let nothing = std::iter::empty::<&str>();
        tokenizer.train(&mut Forgetful, nothing).map_err(TokenizerError::Damaged)?;
    }
    Ok(())
}

/// Trains nothing: the library lends its model to nobody else, and a copy of one takes as much memory again.
struct Forgetful;

impl Trainer for Forgetful {
    type Model = ModelWrapper;

    fn should_show_progress(&self) -> bool {
        false
    }

    fn train(&self, model: &mut ModelWrapper) -> tokenizers::Result<Vec<AddedToken>> {
        model.resize_cache(0);
        Ok(Vec::new())
    }

    fn feed<I, S, F>(&mut self, _: I, _: F) -> tokenizers::Result<()>
    where
        I: Iterator<Item = S> + Send,
        S: AsRef<str> + Send,
        F: Fn(&str) -> tokenizers::Result<Vec<String>> + Sync,
    {
        Ok(())
    }
}
