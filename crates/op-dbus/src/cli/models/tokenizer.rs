//! Whether a tokenizer that is imported is one that the service can use.

use std::panic;

use op_dbus_engine::{Tokenizer, with_causes};
use op_dbus_models::HookError;

/// Tries a `tokenizer.json` for a model that reads so many tokens of a text. Its library asserts in places: what
/// that writes to standard error says less than the refusal, and is not shown.
///
/// # Errors
/// One with which no engine starts.
pub(super) fn check(json: &[u8], tokens: usize) -> Result<(), HookError> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| ()));
    let tried = panic::catch_unwind(|| {
        let tokenizer = Tokenizer::from_bytes(json, tokens).map_err(|error| with_causes(&error))?;
        Ok(op_dbus_engine::try_tokenizer(&tokenizer)?)
    });
    panic::set_hook(hook);
    tried.unwrap_or_else(|_| Err("reading it panicked".into()))
}
