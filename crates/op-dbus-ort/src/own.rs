//! How a user's own graph is fed and which of its outputs is the embedding.

use op_dbus_engine::foreign::{Content, Integers, Output, Port, choose};
use ort::session::Session;
use ort::value::{TensorElementType, ValueType};

/// One input of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Input {
    pub name: String,
    pub content: Content,
    pub integers: Integers,
}

/// The inputs of `session`, in graph order.
///
/// # Errors
/// A sentence naming an input that can't be filled.
pub(crate) fn inputs(session: &Session) -> Result<Vec<Input>, String> {
    session.inputs().iter().map(|input| fed(input.name(), input.dtype())).collect()
}

fn fed(name: &str, dtype: &ValueType) -> Result<Input, String> {
    // Lengths are what our own compiler's graphs want, and those are not run as a user's.
    let Some(content) = Content::of(name).filter(|content| *content != Content::Lengths) else {
        return Err(format!(
            "the graph wants an input {name}, which is not supported; supported: input_ids, \
             attention_mask, token_type_ids"
        ));
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
/// # Errors
/// A sentence listing the outputs, if none or more than one could be it.
pub(crate) fn output(session: &Session, dimensions: usize) -> Result<Output, String> {
    let outputs = session.outputs().iter();
    let ports: Vec<Port<'_>> = outputs.map(|output| port(output.name(), output.dtype())).collect();
    choose(&ports, Some(dimensions))
}

fn port<'a>(name: &'a str, dtype: &'a ValueType) -> Port<'a> {
    let floats = match dtype {
        ValueType::Tensor { ty: TensorElementType::Float32, shape, .. } => Some(&shape[..]),
        _ => None,
    };
    Port { name, floats, shown: dtype.to_string() }
}

#[cfg(test)]
mod tests {
    use ort::value::{Shape, SymbolicDimensions};

    use super::*;

    fn tensor(ty: TensorElementType, shape: &[i64]) -> ValueType {
        let dimension_symbols = SymbolicDimensions::new(shape.iter().map(|_| String::new()));
        ValueType::Tensor { ty, shape: Shape::new(shape.iter().copied()), dimension_symbols }
    }

    #[test]
    fn outputs_that_are_no_floats_have_no_shape_to_choose_by() {
        let echo = tensor(TensorElementType::Int64, &[-1, -1]);
        let pooled = tensor(TensorElementType::Float32, &[-1, 384]);
        assert_eq!(port("output", &echo).floats, None);
        assert_eq!(port("461", &pooled).floats, Some(&[-1, 384][..]));
    }

    #[test]
    fn inputs_are_known_by_name_and_type() {
        let long = tensor(TensorElementType::Int64, &[-1, -1]);
        let types = fed("token_type_ids", &long).unwrap();
        assert_eq!((types.content, types.integers), (Content::TokenTypes, Integers::I64));
        assert!(fed("position_ids", &long).unwrap_err().contains("position_ids"));
        assert!(fed("lengths", &long).unwrap_err().contains("lengths"));
        let floats = tensor(TensorElementType::Float32, &[-1, -1]);
        assert!(fed("input_ids", &floats).unwrap_err().contains("input_ids"));
    }
}
