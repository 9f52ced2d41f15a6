//! What the normalizers, pre-tokenizers and decoders of a file may ask for, by what they have.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value;

use super::{TokenizerError, at_most};

/// Bytes that a file may have one byte of a text become, all of its steps together, each counted as if
/// it did its worst to all that the one before has made. What SentencePiece compiles into models is
/// the most that is known: 33 bytes for one ligature, and each expression that is replaced may double
/// that.
const GROWTH_MAX: usize = 256;
/// Normalizers, pre-tokenizers and decoders of a file, those within others included.
const STEPS_MAX: usize = 64;
/// Bytes of all patterns, each counted as often as its counts repeat it: what is compiled of one takes up to
/// ten kilobytes for each. The longest that is known has 600, and counts up to three.
const PATTERN_BYTES_MAX: usize = 16 << 10;

/// What the steps of a file have together.
#[derive(Default)]
struct Steps {
    count: usize,
    pattern_bytes: usize,
}

/// Refuses steps that no model has. Returns how many bytes the normalizer may make of one.
pub(super) fn check(normalizer: &Value, others: [&Value; 2]) -> Result<usize, TokenizerError> {
    let mut steps = Steps::default();
    let growth = steps.growth_of(normalizer)?;
    for growth in [Ok(growth)].into_iter().chain(others.map(|step| steps.growth_of(step))) {
        at_most(growth?, GROWTH_MAX, "bytes for one byte of a text")?;
    }
    at_most(steps.count, STEPS_MAX, "normalizers, pre-tokenizers and decoders")?;
    at_most(steps.pattern_bytes, PATTERN_BYTES_MAX, "bytes of patterns, with their repetitions")?;
    Ok(growth)
}

impl Steps {
    /// Bytes that one byte becomes at most by a step, or by one after another. Goes by what a step
    /// has, since the parser takes one without its type, too; and a list of what it has, which nobody
    /// writes and which is refused here.
    fn growth_of(&mut self, step: &Value) -> Result<usize, TokenizerError> {
        let step = match step {
            Value::Object(step) => step,
            Value::Null => return Ok(1),
            _ => return Err(TokenizerError::Damaged("a step that is no object".into())),
        };
        self.count += 1;
        let mut growth = 1_usize;
        for key in ["normalizers", "pretokenizers", "decoders"] {
            for step in step.get(key).and_then(Value::as_array).into_iter().flatten() {
                growth = growth.saturating_mul(self.growth_of(step)?);
            }
        }
        let text = |key: &str| step.get(key).and_then(Value::as_str);
        if let Some(pattern) = step.get("pattern") {
            let of_kind = |kind: &str| pattern.get(kind).and_then(Value::as_str);
            let (plain, expression) = (of_kind("String"), of_kind("Regex"));
            let bytes = expression.map_or(0, |it| it.len().saturating_mul(repetitions(it)));
            self.pattern_bytes = self.pattern_bytes.saturating_add(bytes);
            self.pattern_bytes = self.pattern_bytes.saturating_add(plain.map_or(0, str::len));
            growth = growth.saturating_mul(match (plain, text("content")) {
                (_, None) => 1,
                (Some(plain), Some(content)) => content.len().div_ceil(plain.len().max(1)).max(1),
                // An expression may be found between any two letters.
                (None, Some(content)) => content.len() + 1,
            });
        }
        for key in ["prepend", "replacement"] {
            growth = growth.saturating_mul(text(key).map_or(1, |prefix| prefix.len() + 1));
        }
        if let Some(charsmap) = text("precompiled_charsmap") {
            growth = growth.saturating_mul(longest_of(charsmap)?.max(1));
        }
        Ok(growth)
    }
}

/// How often an expression repeats its parts, by the counts that stand in it, as if each was within the
/// others.
fn repetitions(expression: &str) -> usize {
    let counts = expression.split('{').skip(1).filter_map(|rest| {
        let (counts, _) = rest.split_once('}')?;
        counts.split(',').filter_map(|count| count.trim().parse::<usize>().ok()).max()
    });
    counts.fold(1, |product, count| product.saturating_mul(count.max(1)))
}

/// The longest of the strings that a compiled table puts in place of letters: behind the table of
/// letters, the size of which stands first, one after another with a NUL at the end of each.
fn longest_of(charsmap: &str) -> Result<usize, TokenizerError> {
    let damaged = |error: Box<dyn std::error::Error + Send + Sync>| TokenizerError::Damaged(error);
    let bytes = BASE64_STANDARD.decode(charsmap).map_err(|error| damaged(error.into()))?;
    let strings = bytes
        .split_first_chunk()
        .and_then(|(size, rest)| rest.get(u32::from_le_bytes(*size) as usize..))
        .ok_or_else(|| damaged("its table of letters is cut off".into()))?;
    Ok(strings.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{file, refused};
    use super::*;
    use crate::tokenizer::Tokenizer;

    #[test]
    fn normalizers_that_blow_texts_up_are_refused() {
        let replace = |with: usize| json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(with)});
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "normalizers": steps});
        let growth = "bytes for one byte of a text";
        refused(&file(&replace(1 << 20), &Value::Null), growth);
        refused(
            &file(&sequence(&[replace(16), sequence(&[replace(17)])]), &Value::Null),
            "272 bytes",
        );
        refused(&file(&sequence(&vec![replace(1); 64]), &Value::Null), "66 normalizers");
        let anywhere =
            json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "b".repeat(300)});
        refused(&file(&anywhere, &Value::Null), "301 bytes");
        // The parser takes it without its name.
        let nameless = json!({"pattern": {"String": "a"}, "content": "b".repeat(300)});
        refused(&file(&nameless, &Value::Null), "300 bytes");
        // As it would a list in place of an object.
        let list = json!([{"String": "a"}, "b".repeat(300)]);
        for list in [list.clone(), sequence(&[list])] {
            let refusal = Tokenizer::from_bytes(&file(&list, &Value::Null), 8);
            assert!(matches!(refusal, Err(TokenizerError::Damaged(_))));
        }
        refused(
            &file(&json!({"type": "Prepend", "prepend": "b".repeat(300)}), &Value::Null),
            growth,
        );
        let table = |string: usize| {
            let string = "b".repeat(string);
            let bytes =
                [&1024_u32.to_le_bytes()[..], &[0; 1024], string.as_bytes(), b"\0c\0"].concat();
            let bytes = BASE64_STANDARD.encode(bytes);
            json!({"type": "Precompiled", "precompiled_charsmap": bytes})
        };
        refused(&file(&table(300), &Value::Null), "300 bytes");
        // As many as these are of use.
        for normalizer in [Value::Null, replace(3), sequence(&[replace(4), replace(20)]), table(33)]
        {
            Tokenizer::from_bytes(&file(&normalizer, &Value::Null), 8).unwrap();
        }
    }

    #[test]
    fn patterns_that_blow_up_when_they_are_compiled_are_refused() {
        let replace = |pattern: String| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""});
        let patterns = "bytes of patterns";
        // A thousand of these take 60 MB.
        refused(&file(&replace(r"(?=a)\w".repeat(10_000)), &Value::Null), patterns);
        refused(&file(&replace(r"(\w{1,90}){40}".to_owned()), &Value::Null), "50400 bytes");
        let steps = vec![replace(r"\w{100}".to_owned()); 60];
        refused(&file(&json!({"type": "Sequence", "normalizers": steps}), &Value::Null), patterns);
        // What GPT-4 splits by.
        let real = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let real = json!({"type": "Replace", "pattern": {"Regex": real}, "content": "a"});
        Tokenizer::from_bytes(&file(&real, &Value::Null), 8).unwrap();
    }
}
