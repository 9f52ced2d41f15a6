//! How a user's own graph is fed and which of its outputs is the embedding.

use ort::session::Session;
use ort::value::{TensorElementType, ValueType};

/// Integers that a graph wants its inputs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integers {
    I32,
    I64,
}

/// What an input is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    TokenIds,
    /// 1 for a row's own tokens, 0 for padding.
    AttentionMask,
    /// 0 everywhere: a text alone is the first segment.
    TokenTypes,
}

/// One input of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub name: String,
    pub content: Content,
    pub integers: Integers,
}

/// The output that is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub name: String,
    /// Whether it holds a vector per token (`[rows, sequence length, dimensions]`) or per row.
    pub per_token: bool,
}

/// Names under which exporters give a finished vector per row.
const POOLED_NAMES: [&str; 5] =
    ["sentence_embedding", "sentence_embeddings", "embedding", "embeddings", "text_embeds"];
/// Names under which exporters give a vector per token.
const TOKEN_NAMES: [&str; 3] = ["last_hidden_state", "token_embeddings", "hidden_states"];
/// BERT's own classifier head: a vector per row that is not an embedding.
const NOT_EMBEDDINGS: &str = "pooler_output";

/// The inputs of `session`, in graph order.
///
/// # Errors
/// A sentence naming an input that can't be filled.
pub(crate) fn inputs(session: &Session) -> Result<Vec<Input>, String> {
    session.inputs().iter().map(|input| fed(input.name(), input.dtype())).collect()
}

fn fed(name: &str, dtype: &ValueType) -> Result<Input, String> {
    let content = match name {
        "input_ids" => Content::TokenIds,
        "attention_mask" => Content::AttentionMask,
        "token_type_ids" => Content::TokenTypes,
        _ => {
            return Err(format!(
                "the graph wants an input {name}, which is not supported; supported: input_ids, \
                 attention_mask, token_type_ids"
            ));
        }
    };
    let integers = match dtype.tensor_type() {
        Some(TensorElementType::Int32) => Integers::I32,
        Some(TensorElementType::Int64) => Integers::I64,
        _ => {
            return Err(format!("the input {name} is {dtype}; only int32 and int64 are supported"));
        }
    };
    Ok(Input { name: name.to_owned(), content, integers })
}

/// The output of `session` that holds vectors of `dimensions`.
///
/// The first output is not always it: some exports echo an input there. What counts is the type
/// and the rank, then the name; a choice that would be a guess is refused.
///
/// # Errors
/// A sentence listing the outputs, if none or more than one could be it.
pub(crate) fn output(session: &Session, dimensions: usize) -> Result<Output, String> {
    let ports: Vec<Port<'_>> =
        session.outputs().iter().map(|output| (output.name(), output.dtype())).collect();
    choose(&ports, dimensions)
}

/// Name and type of an output.
type Port<'a> = (&'a str, &'a ValueType);

fn choose(outputs: &[Port<'_>], dimensions: usize) -> Result<Output, String> {
    let fitting = |rank: usize| -> Vec<&str> {
        let fits = |(_, dtype): &&Port<'_>| fits(dtype, rank, dimensions);
        let names = outputs.iter().filter(fits).map(|(name, _)| *name);
        names.filter(|&name| name != NOT_EMBEDDINGS).collect()
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
                outputs.iter().map(|(name, dtype)| format!("{name} ({dtype})")).collect();
            Err(format!(
                "none of the graph's outputs is clearly the embedding of {dimensions} f32 \
                 dimensions; found: {}",
                found.join(", ")
            ))
        }
    }
}

fn fits(dtype: &ValueType, rank: usize, dimensions: usize) -> bool {
    let ValueType::Tensor { ty: TensorElementType::Float32, shape, .. } = dtype else {
        return false;
    };
    let last = shape.last().copied().unwrap_or(0);
    shape.len() == rank && (last == -1 || usize::try_from(last) == Ok(dimensions))
}

#[cfg(test)]
mod tests {
    use ort::value::{Shape, SymbolicDimensions};

    use super::*;

    fn tensor(ty: TensorElementType, shape: &[i64]) -> ValueType {
        let dimension_symbols = SymbolicDimensions::new(shape.iter().map(|_| String::new()));
        ValueType::Tensor { ty, shape: Shape::new(shape.iter().copied()), dimension_symbols }
    }

    fn floats(shape: &[i64]) -> ValueType {
        tensor(TensorElementType::Float32, shape)
    }

    #[test]
    fn an_echoed_input_is_not_taken_for_the_embedding() {
        let echo = tensor(TensorElementType::Int64, &[-1, -1]);
        let (states, pooled) = (floats(&[-1, -1, 384]), floats(&[-1, 384]));
        let outputs = [("output", &echo), ("states", &states), ("461", &pooled)];
        let chosen = Output { name: "461".into(), per_token: false };
        assert_eq!(choose(&outputs, 384), Ok(chosen));
        assert!(choose(&outputs[..1], 384).unwrap_err().contains("output"));
    }

    #[test]
    fn the_classifier_head_is_not_taken_for_the_embedding() {
        let (states, head) = (floats(&[-1, -1, 384]), floats(&[-1, 384]));
        let outputs = [("last_hidden_state", &states), ("pooler_output", &head)];
        let chosen = Output { name: "last_hidden_state".into(), per_token: true };
        assert_eq!(choose(&outputs, 384), Ok(chosen));
        assert!(choose(&outputs[1..], 384).is_err());
    }

    #[test]
    fn a_choice_between_equals_is_refused() {
        let vectors = floats(&[-1, 8]);
        let outputs = [("a", &vectors), ("b", &vectors)];
        assert!(choose(&outputs, 8).is_err());
        assert!(choose(&outputs[..1], 8).is_ok());
        assert!(choose(&outputs[..1], 9).is_err());
    }

    #[test]
    fn inputs_are_known_by_name_and_type() {
        let long = tensor(TensorElementType::Int64, &[-1, -1]);
        let types = fed("token_type_ids", &long).unwrap();
        assert_eq!((types.content, types.integers), (Content::TokenTypes, Integers::I64));
        assert!(fed("position_ids", &long).unwrap_err().contains("position_ids"));
        assert!(fed("input_ids", &floats(&[-1, -1])).unwrap_err().contains("input_ids"));
    }
}
