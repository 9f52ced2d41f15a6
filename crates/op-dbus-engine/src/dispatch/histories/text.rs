//! The texts of a history.

use std::hash::Hasher;

use super::world;
use crate::call::Truncate;
use crate::prepare::Input;
use crate::tokenizer::{EncodeError, Encoded, Tokenizer};

/// A text beside whose tokenizing other things happen.
pub struct Text(pub String);

impl Input for Text {
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn work(&self, truncate: Truncate, tokenizer: &Tokenizer) -> usize {
        self.0.work(truncate, tokenizer)
    }

    fn hash(&self, hasher: &mut impl Hasher) {
        Input::hash(&self.0, hasher);
    }

    fn is_heavy(&self, tokenizer: &Tokenizer) -> bool {
        self.0.is_heavy(tokenizer)
    }

    fn encode(&self, truncate: Truncate, tokenizer: &Tokenizer) -> Result<Encoded, EncodeError> {
        let encoded = self.0.encode(truncate, tokenizer);
        let meanwhile = world(|w| w.meanwhile);
        meanwhile();
        encoded
    }
}
