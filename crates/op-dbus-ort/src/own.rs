//! How a user's own graph is fed and which of its outputs is the embedding.

use ort::session::Session;
use ort::value::{Outlet, TensorElementType, ValueType};

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
    session.inputs().iter().map(input).collect()
}

fn input(outlet: &Outlet) -> Result<Input, String> {
    let name = outlet.name();
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
    let integers = match outlet.dtype().tensor_type() {
        Some(TensorElementType::Int32) => Integers::I32,
        Some(TensorElementType::Int64) => Integers::I64,
        _ => {
            let found = outlet.dtype();
            return Err(format!("the input {name} is {found}; only int32 and int64 are supported"));
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
    choose(session.outputs(), dimensions)
}

fn choose(outputs: &[Outlet], dimensions: usize) -> Result<Output, String> {
    let fitting = |rank: usize| -> Vec<&str> {
        let fits = |outlet: &&Outlet| fits(outlet.dtype(), rank, dimensions);
        let named = outputs.iter().filter(fits).map(Outlet::name);
        named.filter(|&name| name != NOT_EMBEDDINGS).collect()
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
            let found: Vec<String> = outputs
                .iter()
                .map(|outlet| format!("{} ({})", outlet.name(), outlet.dtype()))
                .collect();
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

    fn outlet(name: &str, ty: TensorElementType, shape: &[i64]) -> Outlet {
        let dimension_symbols = SymbolicDimensions::new(shape.iter().map(|_| String::new()));
        let shape = Shape::new(shape.iter().copied());
        Outlet::new(name, ValueType::Tensor { ty, shape, dimension_symbols })
    }

    #[test]
    fn an_echoed_input_is_not_taken_for_the_embedding() {
        let outputs = [
            outlet("output", TensorElementType::Int64, &[-1, -1]),
            outlet("states", TensorElementType::Float32, &[-1, -1, 384]),
            outlet("461", TensorElementType::Float32, &[-1, 384]),
        ];
        let chosen = Output { name: "461".into(), per_token: false };
        assert_eq!(choose(&outputs, 384), Ok(chosen));
        assert!(choose(&outputs[..1], 384).unwrap_err().contains("output"));
    }

    #[test]
    fn the_classifier_head_is_not_taken_for_the_embedding() {
        let outputs = [
            outlet("last_hidden_state", TensorElementType::Float32, &[-1, -1, 384]),
            outlet("pooler_output", TensorElementType::Float32, &[-1, 384]),
        ];
        let chosen = Output { name: "last_hidden_state".into(), per_token: true };
        assert_eq!(choose(&outputs, 384), Ok(chosen));
    }

    #[test]
    fn a_choice_between_equals_is_refused() {
        let outputs = [
            outlet("a", TensorElementType::Float32, &[-1, 8]),
            outlet("b", TensorElementType::Float32, &[-1, 8]),
        ];
        assert!(choose(&outputs, 8).is_err());
        assert!(choose(&outputs, 9).is_err());
    }

    #[test]
    fn inputs_are_known_by_name_and_type() {
        let types = input(&outlet("token_type_ids", TensorElementType::Int64, &[-1, -1])).unwrap();
        assert_eq!((types.content, types.integers), (Content::TokenTypes, Integers::I64));
        assert!(input(&outlet("position_ids", TensorElementType::Int64, &[-1, -1])).is_err());
        assert!(input(&outlet("input_ids", TensorElementType::Float32, &[-1, -1])).is_err());
    }
}
