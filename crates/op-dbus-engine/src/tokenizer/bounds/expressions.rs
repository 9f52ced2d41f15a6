//! What the expressions of a file may cost, each time that one is tried and over a whole text.

use regex_syntax::ast::{AssertionKind, Ast, Flag, Flags, Visitor};
use regex_syntax::hir::{Hir, HirKind};

/// Bytes that an expression may look at beyond what it then takes, each time. Models' have some twelve.
const BEYOND_BYTES_MAX: usize = 64;

/// Ways of models' expressions that may look far beyond what they then take, once for each run of letters: when they
/// find nothing there, or nothing more, the way behind them takes the rest of the run.
const KNOWN: &[&str] = &[
    // Words by their capitals: the ones of GPT-4o with `'s` behind them, the others of Mistral.
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    ),
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    ),
    r"\s*[\r\n]+|\s+(?!\S)",
    r"\s+(?!\S)",
];
/// An expression that is found once at most.
const AT_THE_END: &str = r"\s+$";

/// Whether an expression takes time in proportion to what it is tried on, each time that it is: one that has nothing
/// which an automaton can't do, or one such thing that many models have, beside others: spaces but for the one
/// before a word.
pub(super) fn is_linear(expression: &str) -> bool {
    const SPACES: &str = r"\s+(?!\S)";
    let beside = |(before, after): (&str, &str)| {
        (before.is_empty() || before.strip_suffix('|').is_some_and(is_regular))
            && (after.is_empty() || after.strip_prefix('|').is_some_and(is_regular))
    };
    is_regular(expression) || expression.split_once(SPACES).is_some_and(beside)
}

/// Whether an expression is left to an automaton as a whole.
fn is_regular(expression: &str) -> bool {
    regular(expression).is_some()
}

/// What an expression is that is left to an automaton as a whole, and whether it sets flags for all that follows.
fn regular(expression: &str) -> Option<(Hir, bool)> {
    let ast = regex_syntax::ast::parse::Parser::new().parse(expression).ok()?;
    let sets_flags = regex_syntax::ast::visit(&ast, Regular::default()).ok()?;
    Some((regex_syntax::parse(expression).ok()?, sets_flags))
}

/// Finds what the tokenizers' library tries one way after another, though it can be written as if it was regular: the
/// ends of words, what is repeated without giving back (`a++`), and what follows from spaces that mean nothing.
#[derive(Default)]
struct Regular {
    sets_flags: bool,
}

impl Visitor for Regular {
    type Output = bool;
    type Err = ();

    fn finish(self) -> Result<bool, ()> {
        Ok(self.sets_flags)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        self.sets_flags |= matches!(ast, Ast::Flags(_));
        let spaced = |flags: &Flags| flags.flag_state(Flag::IgnoreWhitespace).is_some();
        let is_tried = match ast {
            Ast::Assertion(assertion) => !matches!(
                assertion.kind,
                AssertionKind::StartLine
                    | AssertionKind::EndLine
                    | AssertionKind::StartText
                    | AssertionKind::EndText
            ),
            Ast::Repetition(repetition) => matches!(*repetition.ast, Ast::Repetition(_)),
            Ast::Flags(flags) => spaced(&flags.flags),
            Ast::Group(group) => group.flags().is_some_and(spaced),
            _ => false,
        };
        if is_tried { Err(()) } else { Ok(()) }
    }
}

/// Whether an expression takes time in proportion to a text in which it is looked for again and again, wherever it is
/// found: none of its ways goes on for long without being one that is taken, but for the ways that models have.
pub(super) fn is_prompt(expression: &str) -> bool {
    let mut parts = vec![expression];
    for known in KNOWN {
        parts = parts.into_iter().flat_map(|part| without(part, known)).collect();
    }
    let is_prompt = |part: &&str| {
        // A flag would be one of the known parts as well.
        regular(part).is_some_and(|(hir, sets_flags)| {
            !sets_flags && beyond(&hir, true).is_some_and(|bytes| bytes <= BEYOND_BYTES_MAX)
        })
    };
    expression == AT_THE_END || parts.iter().all(is_prompt)
}

/// What stands beside a known part, where that is a way of its own.
fn without<'a>(expression: &'a str, known: &str) -> Vec<&'a str> {
    let beside = expression.split_once(known).and_then(|(before, after)| {
        let before = if before.is_empty() { before } else { before.strip_suffix('|')? };
        let after = if after.is_empty() { after } else { after.strip_prefix('|')? };
        Some(vec![before, after])
    });
    beside.unwrap_or_else(|| vec![expression])
}

/// Bytes that an expression may look at beyond those that it then takes, each counted as often as it may be repeated;
/// `None` where there is no end to them: behind something that goes on without end stands something that has to be
/// there. Nothing of that kind follows if it `may_end`.
fn beyond(hir: &Hir, may_end: bool) -> Option<usize> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(0),
        HirKind::Literal(_) | HirKind::Class(_) => hir.properties().maximum_len(),
        HirKind::Capture(group) => beyond(&group.sub, may_end),
        HirKind::Alternation(ways) => {
            ways.iter().try_fold(0, |most, way| Some(beyond(way, may_end)?.max(most)))
        }
        HirKind::Concat(parts) => {
            let (mut bytes, mut may_end) = (0_usize, may_end);
            for part in parts.iter().rev() {
                bytes = bytes.saturating_add(beyond(part, may_end)?);
                may_end &= may_be_nothing(part);
            }
            Some(bytes)
        }
        HirKind::Repetition(repetition) => {
            if repetition.max.is_none() && !may_end {
                return None;
            }
            let times = repetition.max.unwrap_or(repetition.min.saturating_add(1)) as usize;
            let once = beyond(&repetition.sub, may_end && repetition.min <= 1)?;
            Some(once.saturating_mul(times))
        }
    }
}

/// Whether nothing has to be there for it, wherever it is looked for.
fn may_be_nothing(hir: &Hir) -> bool {
    hir.properties().minimum_len() == Some(0) && hir.properties().look_set().is_empty()
}

/// How often an expression repeats its parts, by the counts that stand in it, as if each was within the
/// others.
pub(super) fn repetitions(expression: &str) -> usize {
    let counts = expression.split('{').skip(1).filter_map(|rest| {
        let (counts, _) = rest.split_once('}')?;
        counts.split(',').filter_map(|count| count.trim().parse::<usize>().ok()).max()
    });
    counts.fold(1, |product, count| product.saturating_mul(count.max(1)))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tests::{file, refused};
    use super::*;

    #[test]
    fn expressions_that_may_be_tried_for_ever_are_refused() {
        for (expression, is_taken) in [
            (r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", true),
            (r"\s+(?!\S)|\s+", true),
            (r"\p{N}{1,3}|\s+(?!\S)", true),
            (r"(?=(?:a?(?=)){19}c)|a", false),
            (r"(?:a?|\s+(?!\S)){19}c|a", false),
            (r"(?:a|\s+(?!\S)|b)", false),
            (r"(a)\1", false),
            // Regular, and tried one way after another all the same.
            (r"(?:a?){19}c\b|a", false),
            (r"(?:a?){19}c\>|a", false),
            (r"(?:a?b*+){19}c|a", false),
            (r"((?x))( ?=(?:a?( ?=)){19}c)|a", false),
            (r"(?x:a b)", false),
            (r"^(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|[*+?]+|\++|\s*[\r\n]+$", true),
        ] {
            assert_eq!(is_linear(expression), is_taken, "{expression}");
        }
        let replace = json!({"type": "Replace", "pattern": {"Regex": "(?=a)b"}, "content": ""});
        refused(&file(&replace, &Value::Null), r#"an expression that begins "(?=a)b""#);
    }

    #[test]
    fn expressions_that_look_far_are_told_from_those_of_models() {
        let word = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+";
        let tekken = format!(
            "{}{}",
            KNOWN[1], r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        );
        for (expression, is_taken) in [
            // GPT-2, GPT-4 and Llama 3, Qwen 2, GPT-4o, Mistral's.
            (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", true),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                true,
            ),
            (
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                true,
            ),
            (
                &format!(
                    "{}{}",
                    KNOWN[0], r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
                ),
                true,
            ),
            (&tekken, true),
            // DeepSeek's, BLOOM's, Falcon's, CLIP's, XLM-R's.
            (r"[\r\n]", true),
            (r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+", true),
            (r"\s+$", true),
            (r"[!-/:-~]", true),
            (
                r"[!-/:-@][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                true,
            ),
            (r" ?[^(\s|[.,!?…。，、।۔،])]+", true),
            ("[0-9][0-9][0-9]", true),
            (r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", true),
            (" {2,}", true),
            (r"\w+|[^\w\s]+", true),
            (r"(?:ab?)+c*", true),
            ("a*b|a", false),
            ("(?:a+)b|a", false),
            ("(?:a+b)*|a", false),
            ("(?:a+b?){2,}|a", false),
            ("a+$|a", false),
            ("a{1000}b|a", false),
            (r"\s*[\r\n]+|\s", false),
            (r"(?U)\s*[\r\n]+|\s+(?!\S)", false),
            (r"[a|\s+(?!\S)|b]", false),
            (r"(?:a|\s+(?!\S)|b)", false),
            (&format!(r"{word}|\p{{Lu}}|\s+(?!\S)"), false),
        ] {
            assert_eq!(is_prompt(expression), is_taken, "{expression}");
            assert!(!is_taken || is_linear(expression), "{expression}");
        }
    }
}
