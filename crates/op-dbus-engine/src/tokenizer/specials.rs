//! Special tokens around each text.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{TokenizerError, token_id};

/// What the post-processor puts before and after a text, seen by encoding one with and without.
pub(super) fn of(model: &tokenizers::Tokenizer) -> Result<(Vec<i32>, Vec<i32>), TokenizerError> {
    let encode = |text: &str, specials: bool| {
        catch_unwind(AssertUnwindSafe(|| model.encode(text, specials)))
            .map_err(|_| TokenizerError::Damaged("the tokenizer panicked on a short text".into()))?
            .map_err(TokenizerError::Damaged)
    };
    for text in ["a", "the", "1", "."] {
        let content = encode(text, false)?;
        if content.is_empty() {
            continue;
        }
        let whole = encode(text, true)?;
        let mask = whole.get_special_tokens_mask();
        let start = mask.iter().position(|special| *special == 0).unwrap_or(0);
        let ids = whole.get_ids();
        let end = start + content.len();
        if ids.get(start..end) != Some(content.get_ids()) {
            break;
        }
        let ids = |part: &[u32]| -> Result<Vec<i32>, TokenizerError> {
            part.iter().map(|id| token_id(*id).map_err(TokenizerError::Unsupported)).collect()
        };
        return Ok((ids(&whole.get_ids()[..start])?, ids(&whole.get_ids()[end..])?));
    }
    Err(TokenizerError::Unsupported(
        "it does not put its special tokens around the text; use a model that does".into(),
    ))
}
