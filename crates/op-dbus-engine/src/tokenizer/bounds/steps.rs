//! What the normalizers, pre-tokenizers and decoders of a file may ask for, by what they have.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value;

use super::expressions::{is_linear, is_prompt, repetitions};
use super::{NORMALIZED_BYTES_MAX, PRE_TOKENIZED_BYTES_MAX, TokenizerError, at_most};

/// Bytes that a file may have one byte of a text become, all of its normalizers together, each counted as if
/// it did its worst to all that the one before has made. ALBERT's are the most that is known: compatible
/// letters taken apart, in lower case, what SentencePiece compiles into models, 33 bytes for one ligature, and an
/// expression that is replaced, which counts twice.
const GROWTH_MAX: usize = 2048;
/// The same of pre-tokenizers, the work of which is not measured. What marks spaces counts as four, and so does
/// what writes bytes as letters.
const PRE_TOKENIZER_GROWTH_MAX: usize = 16;
/// The same of decoders.
const DECODER_GROWTH_MAX: usize = 256;
/// Bytes that one becomes at most where a step has no name: the most of those that have one.
const NAMELESS_GROWTH: usize = 12;
/// Normalizers, pre-tokenizers and decoders of a file, those within others included.
const STEPS_MAX: usize = 64;
/// Bytes of all patterns, each counted as often as its counts repeat it: what is compiled of one takes up to
/// ten kilobytes for each. The longest that is known has 600, and counts up to three.
const PATTERN_BYTES_MAX: usize = 16 << 10;
/// Expressions of a file that may look at all of a text for each of its letters, the bytes of these, and what one
/// byte may become before them. One of these takes some seconds for what is left of a text.
const FAR_MAX: usize = 2;
const FAR_BYTES_MAX: usize = 2 << 10;
const FAR_GROWTH_MAX: usize = 16;
const FAR: &str = "may look at all of a text for each of its letters";

/// Letters of an expression that a refusal shows.
const SHOWN_LETTERS_MAX: usize = 40;

/// What the steps of a file have together.
#[derive(Default)]
struct Steps {
    count: usize,
    pattern_bytes: usize,
    /// Those of the patterns that may look at all of a text for each of its letters.
    far: usize,
    far_bytes: usize,
    /// Bytes of the longest text that a longer one is put in place of.
    grown_bytes: usize,
}

/// What the steps may make of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Growth {
    /// Bytes that one byte of it may become.
    pub normalizer: usize,
    pub pre_tokenizer: usize,
    /// Bytes that it may have behind the normalizer.
    pub normalized_max: usize,
    /// Whether they may look at all of it for each of its letters.
    pub looks_far: bool,
    /// Bytes that the normalizer may make where two pieces of a text meet, each of which it is given by itself: of
    /// what it looks for, one may have the beginning and the other the end.
    pub across: usize,
}

impl Growth {
    /// That of a file that neither has.
    pub const NONE: Self = Self {
        normalizer: 1,
        pre_tokenizer: 1,
        normalized_max: NORMALIZED_BYTES_MAX,
        looks_far: false,
        across: 0,
    };
}

/// Refuses steps that no model has. Returns what they may make of a text.
pub(super) fn check(
    normalizer: &Value,
    [pre_tokenizer, decoder]: [&Value; 2],
) -> Result<Growth, TokenizerError> {
    let mut steps = Steps::default();
    let growth_of = |steps: &mut Steps, step, most| -> Result<usize, TokenizerError> {
        let growth = steps.growth_of(step)?;
        at_most(growth, most, "bytes for one byte of a text")?;
        Ok(growth)
    };
    let normalizer = growth_of(&mut steps, normalizer, GROWTH_MAX)?;
    let pre_tokenizer = growth_of(&mut steps, pre_tokenizer, PRE_TOKENIZER_GROWTH_MAX)?;
    let growth = Growth {
        normalizer,
        pre_tokenizer,
        normalized_max: NORMALIZED_BYTES_MAX.min(PRE_TOKENIZED_BYTES_MAX / pre_tokenizer.max(1)),
        looks_far: steps.far > 0,
        across: steps.grown_bytes.saturating_mul(normalizer),
    };
    let far = steps.far;
    growth_of(&mut steps, decoder, DECODER_GROWTH_MAX)?;
    at_most(steps.count, STEPS_MAX, "normalizers, pre-tokenizers and decoders")?;
    at_most(steps.pattern_bytes, PATTERN_BYTES_MAX, "bytes of patterns, with their repetitions")?;
    at_most(steps.far - far, 0, &format!("expressions in its decoder that {FAR}"))?;
    if growth.looks_far {
        at_most(far, FAR_MAX, &format!("expressions that {FAR}"))?;
        at_most(steps.far_bytes, FAR_BYTES_MAX, &format!("bytes of expressions that {FAR}"))?;
        let found = growth.normalizer.saturating_mul(growth.pre_tokenizer);
        at_most(
            found,
            FAR_GROWTH_MAX,
            &format!("bytes for one byte of a text, beside one that {FAR}"),
        )?;
    }
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
        let text = |key: &str| step.get(key).and_then(Value::as_str);
        let mut growth = text("type").map_or(NAMELESS_GROWTH, growth_of_kind);
        for key in ["normalizers", "pretokenizers", "decoders"] {
            for step in step.get(key).and_then(Value::as_array).into_iter().flatten() {
                growth = growth.saturating_mul(self.growth_of(step)?);
            }
        }
        if let Some(pattern) = step.get("pattern") {
            let of_kind = |kind: &str| pattern.get(kind).and_then(Value::as_str);
            let (plain, expression) = (of_kind("String"), of_kind("Regex"));
            if let Some(expression) = expression.filter(|it| !is_linear(it)) {
                let start: String = expression.chars().take(SHOWN_LETTERS_MAX).collect();
                return Err(TokenizerError::Unsupported(format!(
                    "it has an expression that begins {start:?} and may be tried for ever at each letter of a text; \
                     models have regular ones, and \\s+(?!\\S) beside that"
                )));
            }
            let bytes = expression.map_or(0, |it| it.len().saturating_mul(repetitions(it)));
            if expression.is_some_and(|it| !is_prompt(it)) {
                self.far += 1;
                self.far_bytes = self.far_bytes.saturating_add(bytes);
            }
            self.pattern_bytes = self.pattern_bytes.saturating_add(bytes);
            self.pattern_bytes = self.pattern_bytes.saturating_add(plain.map_or(0, str::len));
            growth = growth.saturating_mul(match (plain, text("content")) {
                (_, None) => 1,
                (Some(plain), Some(content)) => {
                    if content.len() > plain.len() {
                        self.grown_bytes = self.grown_bytes.max(plain.len());
                    }
                    content.len().div_ceil(plain.len().max(1)).max(1)
                }
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

/// Bytes that a step of this kind makes of one at most, but for what stands in the file: of UTF-8, by Unicode's
/// annex 15 (three for what is taken apart, eleven where that is compatible letters) and its tables of cases.
fn growth_of_kind(kind: &str) -> usize {
    match kind {
        "NFC" | "NFD" => 3,
        "NFKC" | "NFKD" => 11,
        // A few letters of two bytes have three.
        "Lowercase" => 2,
        // Spaces around an ideograph, whose parts may be ideographs; accents taken off, and lower case.
        "BertNormalizer" => NAMELESS_GROWTH,
        // A letter of two bytes for each byte, and a space before, where it is wanted, of each piece.
        "ByteLevel" => 4,
        "Sequence" | "Replace" | "Prepend" | "Precompiled" | "Strip" | "StripAccents" | "Nmt" => 1,
        "Metaspace" | "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer" | "Split" => 1,
        "CharDelimiterSplit" | "Punctuation" | "Digits" | "UnicodeScripts" | "FixedLength" => 1,
        "BPEDecoder" | "WordPiece" | "ByteFallback" | "Fuse" | "CTC" => 1,
        // The parser goes by what a step has where it does not know the name.
        _ => NAMELESS_GROWTH,
    }
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
            &file(&sequence(&[replace(46), sequence(&[replace(47)])]), &Value::Null),
            "2162 bytes",
        );
        refused(&file(&sequence(&vec![replace(1); 64]), &Value::Null), "66 normalizers");
        let anywhere =
            json!({"type": "Replace", "pattern": {"Regex": ""}, "content": "b".repeat(2100)});
        refused(&file(&anywhere, &Value::Null), "2101 bytes");
        // The parser takes it without its name.
        let nameless = json!({"pattern": {"String": "a"}, "content": "b".repeat(300)});
        refused(&file(&nameless, &Value::Null), "3600 bytes");
        // As it would a list in place of an object.
        let list = json!([{"String": "a"}, "b".repeat(300)]);
        for list in [list.clone(), sequence(&[list])] {
            let refusal = Tokenizer::from_bytes(&file(&list, &Value::Null), 8);
            assert!(matches!(refusal, Err(TokenizerError::Damaged(_))));
        }
        refused(
            &file(&json!({"type": "Prepend", "prepend": "b".repeat(2100)}), &Value::Null),
            growth,
        );
        let table = |string: usize| {
            let string = "b".repeat(string);
            let bytes =
                [&1024_u32.to_le_bytes()[..], &[0; 1024], string.as_bytes(), b"\0c\0"].concat();
            let bytes = BASE64_STANDARD.encode(bytes);
            json!({"type": "Precompiled", "precompiled_charsmap": bytes})
        };
        refused(&file(&table(2100), &Value::Null), "2100 bytes");
        // As many as these are of use.
        for normalizer in [Value::Null, replace(3), sequence(&[replace(4), replace(20)]), table(33)]
        {
            Tokenizer::from_bytes(&file(&normalizer, &Value::Null), 8).unwrap();
        }
    }

    #[test]
    fn steps_that_write_more_than_they_read_are_counted_by_their_kind() {
        let kind = |kind: &str| json!({"type": kind});
        let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true});
        let twice = |step: Value| sequence(vec![step.clone(), step]);
        refused(&file(&sequence(vec![kind("ByteLevel"); 6]), &Value::Null), "4096 bytes");
        refused(&file(&sequence(vec![kind("NFKD"); 4]), &Value::Null), "14641 bytes");
        let with = |pre_tokenizers: usize| {
            let mut file: Value =
                serde_json::from_slice(&file(&Value::Null, &Value::Null)).unwrap();
            let steps = vec![bytes.clone(); pre_tokenizers];
            file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
            serde_json::to_vec(&file).unwrap()
        };
        refused(&with(3), "64 bytes");
        Tokenizer::from_bytes(&with(2), 8).unwrap();
        let bert = |kind: &str| {
            json!({"type": kind, "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": null, "lowercase": true})
        };
        // The parser takes it by another name, too.
        for kind in ["BertNormalizer", "Bert", "Whatever"] {
            refused(&file(&sequence(vec![bert(kind); 4]), &Value::Null), "20736 bytes");
        }
        let bert = bert("BertNormalizer");
        // ALBERT's, but for its table, for which 33 are left, and others that models have.
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let ligature =
            json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(33)});
        let mut albert = ["NFKD", "StripAccents", "Lowercase"].map(kind).to_vec();
        albert.extend([ligature, spaces]);
        for normalizer in
            [sequence(albert), bert.clone(), twice(bert), kind("NFC"), kind("ByteLevel")]
        {
            Tokenizer::from_bytes(&file(&normalizer, &Value::Null), 8).unwrap();
        }
    }

    #[test]
    fn patterns_that_blow_up_when_they_are_compiled_are_refused() {
        let replace = |pattern: String| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": ""});
        let patterns = "bytes of patterns";
        // A thousand of these take 60 MB.
        refused(&file(&replace(r"a\w".repeat(10_000)), &Value::Null), patterns);
        refused(&file(&replace(r"(\w{1,90}){40}".to_owned()), &Value::Null), "50400 bytes");
        let steps = vec![replace(r"\w{100}".to_owned()); 60];
        refused(&file(&json!({"type": "Sequence", "normalizers": steps}), &Value::Null), patterns);
        // What GPT-4 splits by.
        let real = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let real = json!({"type": "Replace", "pattern": {"Regex": real}, "content": "a"});
        Tokenizer::from_bytes(&file(&real, &Value::Null), 8).unwrap();
    }
}
