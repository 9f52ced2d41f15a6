//! Graphs that were not compiled here: what they are fed with, which of their outputs is the embedding,
//! and what is left to do to it. Pure code, for every backend that runs such graphs.

mod inputs;
mod padding;
mod pooling;

pub use inputs::{Input, InputPort, inputs};
pub use padding::{Filled, Padded};
pub use pooling::{Pooling, finite, larger, normalize, pool};

/// Integers that a graph wants its inputs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// Of 32 bits.
    I32,
    /// Of 64 bits.
    I64,
}

/// What an input is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Token ids, `[rows, sequence length]`.
    TokenIds,
    /// 1 for a row's own tokens, 0 for padding, `[rows, sequence length]`.
    AttentionMask,
    /// 0 everywhere, `[rows, sequence length]`: a text alone is the first segment.
    TokenTypes,
    /// Tokens of each row, `[rows]`, as compiled graphs want them.
    Lengths,
}

impl Content {
    /// What an input of this name is filled with, by the names that exporters and our compiler give.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "input_ids" => Some(Self::TokenIds),
            "attention_mask" => Some(Self::AttentionMask),
            "token_type_ids" => Some(Self::TokenTypes),
            "lengths" => Some(Self::Lengths),
            _ => None,
        }
    }
}

/// The output that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Whether it holds a vector per token (`[rows, sequence length, dimensions]`) or per row.
    pub per_token: bool,
}

/// An output that a graph has.
#[derive(Clone, Debug)]
pub struct Port<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its sides, -1 where they vary, if it holds 32-bit floats; else nothing.
    pub floats: Option<&'a [i64]>,
    /// Type and shape, for people.
    pub shown: String,
}

/// Names under which exporters give a finished vector per row.
const POOLED_NAMES: [&str; 5] =
    ["sentence_embedding", "sentence_embeddings", "embedding", "embeddings", "text_embeds"];
/// Names under which exporters give a vector per token.
const TOKEN_NAMES: [&str; 3] = ["last_hidden_state", "token_embeddings", "hidden_states"];
/// Names of what is no embedding: BERT's own classifier head, and the scores that classifiers, cross-encoders and models
/// of masked words end in.
const NOT_EMBEDDINGS: [&str; 2] = ["pooler_output", "logits"];

/// The output that holds vectors of `dimensions`, or of any where they are not known yet.
///
/// The first output is not always it: some exports echo an input there. What counts is the type
/// and the rank, then the name; a choice that would be a guess is refused.
///
/// # Errors
/// A sentence listing the outputs, if none or more than one could be it.
pub fn choose(outputs: &[Port<'_>], dimensions: Option<usize>) -> Result<Output, String> {
    let fitting = |rank: usize| -> Vec<&str> {
        let fits = |port: &&Port<'_>| fits(port, rank, dimensions);
        outputs.iter().filter(fits).map(|port| port.name).collect()
    };
    let (pooled, tokens) = (fitting(2), fitting(3));
    let known = |names: &[&str], candidates: &[&str]| {
        names.iter().find(|name| candidates.contains(name)).map(|name| (*name).to_owned())
    };
    if let Some(name) = known(&POOLED_NAMES, &pooled) {
        return Ok(Output { name, per_token: false });
    }
    if let Some(name) = known(&TOKEN_NAMES, &tokens) {
        return Ok(Output { name, per_token: true });
    }
    match (&pooled[..], &tokens[..]) {
        ([name], _) => Ok(Output { name: (*name).to_owned(), per_token: false }),
        ([], [name]) => Ok(Output { name: (*name).to_owned(), per_token: true }),
        _ => {
            let found: Vec<String> =
                outputs.iter().map(|port| format!("{} ({})", port.name, port.shown)).collect();
            let of = dimensions.map_or_else(String::new, |width| format!(" of {width} dimensions"));
            Err(format!(
                "none of the graph's outputs is clearly the embedding{of} in f32; found: {}",
                found.join(", ")
            ))
        }
    }
}

/// Whether its name tells that an output is a finished vector per row.
#[must_use]
pub fn is_finished(name: &str) -> bool {
    POOLED_NAMES.contains(&name)
}

/// Refuses an `output` that was chosen and may be BERT's own classifier head: a vector per row of which the name tells
/// nothing, beside vectors per token that could be meant as well.
///
/// # Errors
/// A sentence that names the output, and what would tell.
pub fn refuse_head(
    output: &Output,
    outputs: &[Port<'_>],
    dimensions: Option<usize>,
) -> Result<(), String> {
    let has_tokens = || outputs.iter().any(|port| fits(port, 3, dimensions));
    if output.per_token || is_finished(&output.name) || !has_tokens() {
        return Ok(());
    }
    Err(format!(
        "{} has a vector per text, as the embedding or BERT's classifier head may be, beside one per token; name \
         the embedding sentence_embedding, or the one per token last_hidden_state, or say with --dimensions which \
         it is if the graph states that they differ in that",
        output.name
    ))
}

/// Whether an output may be the embedding, of this rank.
fn fits(port: &Port<'_>, rank: usize, dimensions: Option<usize>) -> bool {
    let Some(shape) = port.floats.filter(|shape| shape.len() == rank) else { return false };
    if NOT_EMBEDDINGS.contains(&port.name) {
        return false;
    }
    let last = shape.last().copied().unwrap_or(0);
    last == -1 || dimensions.is_none_or(|dimensions| usize::try_from(last) == Ok(dimensions))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port<'a>(name: &'a str, floats: Option<&'a [i64]>) -> Port<'a> {
        Port { name, floats, shown: "shown".to_owned() }
    }

    #[test]
    fn an_echoed_input_is_not_taken_for_the_embedding() {
        let outputs = [
            port("output", None),
            port("states", Some(&[-1, -1, 384])),
            port("461", Some(&[-1, 384])),
        ];
        let chosen = Output { name: "461".into(), per_token: false };
        assert_eq!(choose(&outputs, Some(384)), Ok(chosen));
        assert!(choose(&outputs[..1], Some(384)).unwrap_err().contains("output (shown)"));
    }

    #[test]
    fn the_classifier_head_is_not_taken_for_the_embedding() {
        let outputs = [
            port("last_hidden_state", Some(&[-1, -1, 384])),
            port("pooler_output", Some(&[-1, 384])),
        ];
        let chosen = Output { name: "last_hidden_state".into(), per_token: true };
        assert_eq!(choose(&outputs, Some(384)), Ok(chosen));
        assert!(choose(&outputs[1..], Some(384)).is_err());
    }

    #[test]
    fn scores_are_not_taken_for_the_embedding() {
        for shape in [&[-1, 1][..], &[-1, -1, 30522]] {
            let outputs = [port("logits", Some(shape)), port("output_1", Some(&[-1, 384]))];
            assert!(choose(&outputs[..1], None).unwrap_err().contains("logits (shown)"));
            let chosen = Output { name: "output_1".into(), per_token: false };
            assert_eq!(refuse_head(&chosen, &outputs, None), Ok(()));
            assert_eq!(choose(&outputs, None), Ok(chosen));
        }
    }

    #[test]
    fn beside_vectors_per_token_one_per_row_without_a_name_may_be_the_head() {
        let is_unclear = |states: &[i64], other: Port<'_>, dimensions| {
            let outputs = [port("output_0", Some(states)), other];
            let chosen = choose(&outputs, dimensions).unwrap();
            refuse_head(&chosen, &outputs, dimensions).is_err()
        };
        let (wide, any) = ([-1, -1, 768], [-1, -1, -1]);
        let head = || port("output_1", Some(&[-1, 768]));
        assert!(is_unclear(&wide, head(), Some(768)) && is_unclear(&wide, head(), None));
        let untold = || port("output_1", Some(&[-1, -1]));
        assert!(is_unclear(&wide, untold(), Some(768)) && is_unclear(&any, untold(), Some(768)));
        assert!(is_unclear(&any, head(), Some(768)));
        for name in ["sentence_embedding", "pooler_output", "logits"] {
            assert!(!is_unclear(&wide, port(name, Some(&[-1, 768])), None), "{name}");
        }
        // None of the vectors per token state that width.
        let narrow = || port("output_1", Some(&[-1, 512]));
        assert!(!is_unclear(&wide, narrow(), Some(512)));
        assert!(is_unclear(&wide, narrow(), None) && is_unclear(&any, narrow(), None));
        let alone = [head()];
        assert_eq!(refuse_head(&choose(&alone, None).unwrap(), &alone, None), Ok(()));
    }

    #[test]
    fn a_choice_between_equals_is_refused() {
        let outputs = [port("a", Some(&[-1, 8])), port("b", Some(&[-1, 8]))];
        assert!(choose(&outputs, Some(8)).is_err());
        assert!(choose(&outputs[..1], Some(8)).is_ok());
        assert!(choose(&outputs[..1], Some(9)).is_err());
    }
}
