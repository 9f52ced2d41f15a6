//! What the fuzzer of `tests/fuzz` drives here: tokenizers, and both ends of a worker's socket.

use crate::call::Truncate;
use crate::tokenizer::Tokenizer;
use crate::worker;

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[
    ("tokenizer", tokenizer),
    ("worker-answers", worker::fuzz::answers),
    ("worker-requests", worker::fuzz::requests),
];

const TOKENS_MAX: usize = 16;

/// A `tokenizer.json`, a NUL, and a text.
fn tokenizer(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let json = parts.next().unwrap_or_default();
    let text = String::from_utf8_lossy(parts.next().unwrap_or(b"a text"));
    let Ok(tokenizer) = Tokenizer::from_bytes(json, TOKENS_MAX) else { return false };
    let mut understood = false;
    for truncate in [Truncate::Error, Truncate::End, Truncate::Start, Truncate::Mean] {
        let Ok(encoded) = tokenizer.encode(&text, truncate) else { continue };
        let fits = |window: &crate::tokenizer::Window| (1..=TOKENS_MAX).contains(&window.ids.len());
        assert!(encoded.windows.iter().all(fits), "{encoded:?}");
        assert!(!encoded.windows.is_empty());
        assert!(!(encoded.truncated && truncate == Truncate::Error));
        understood = true;
    }
    let _ = tokenizer.count(&text);
    let _ = tokenizer.ids(&text);
    understood
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
