//! Words that the library keeps.

use tokenizers::{ModelWrapper, Tokenizer};

/// Has it keep none. Its BPE has those of every tokenizer that there ever was in each thread that has used one, until
/// the thread ends, which the runtime's never do: tens of MB of callers' words for each load. Without them a text
/// takes up to 1.4 times as long.
pub(super) fn none(tokenizer: &mut Tokenizer) {
    if let ModelWrapper::BPE(model) = tokenizer.get_model() {
        let mut model = model.clone();
        model.resize_cache(0);
        tokenizer.with_model(model);
    }
}
