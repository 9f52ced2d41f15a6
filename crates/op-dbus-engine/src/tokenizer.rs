//! Texts to token ids.

use std::sync::Arc;

/// A loaded tokenizer. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    max_input_tokens: usize,
}

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is too big.
    #[error("the tokenizer file has {bytes} bytes, the limit is {limit}; is it a tokenizer.json?")]
    TooBig {
        /// Bytes of the file.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// The file can't be parsed.
    #[error("the tokenizer file is damaged or of an unknown format; install the model again")]
    Damaged(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The file is fine but does what the engine can't.
    #[error("the tokenizer can't be used: {0}")]
    Unsupported(String),
}

impl Tokenizer {
    /// From the content of a `tokenizer.json`.
    ///
    /// # Errors
    /// See [`TokenizerError`].
    pub fn from_bytes(json: &[u8], max_input_tokens: usize) -> Result<Self, TokenizerError> {
        let inner = tokenizers::Tokenizer::from_bytes(json).map_err(TokenizerError::Damaged)?;
        Ok(Self { inner: Arc::new(inner), max_input_tokens })
    }

    /// One token per byte between two special tokens: the simulator's tokenizer.
    pub fn bytes(_max_input_tokens: usize) -> Self {
        unreachable!()
    }

    /// Tokens that the model reads at most, special tokens included.
    pub fn max_input_tokens(&self) -> usize {
        let _ = &self.inner;
        self.max_input_tokens
    }
}
