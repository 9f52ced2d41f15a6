//! How a user's own graph is fed and which of its outputs is the embedding.

use op_dbus_engine::foreign::{
    self, Input, InputPort, Integers, Output, Port, choose, refuse_head,
};
use ort::session::Session;
use ort::value::{TensorElementType, ValueType};

/// The inputs of `session`, in graph order.
///
/// # Errors
/// A sentence naming an input that can't be filled, or that is lacking.
pub(crate) fn inputs(session: &Session) -> Result<Vec<Input>, String> {
    let inputs = session.inputs().iter();
    let ports: Vec<_> = inputs.map(|input| input_port(input.name(), input.dtype())).collect();
    foreign::inputs(&ports)
}

fn input_port<'a>(name: &'a str, dtype: &ValueType) -> InputPort<'a> {
    let integers = match dtype.tensor_type() {
        Some(TensorElementType::Int32) => Some(Integers::I32),
        Some(TensorElementType::Int64) => Some(Integers::I64),
        _ => None,
    };
    // A shape that the graph does not state has no sides here.
    let sides = dtype.tensor_shape().filter(|sides| !sides.is_empty()).map(|sides| sides.to_vec());
    InputPort { name, integers, sides, shown: dtype.to_string() }
}

/// The output of `session` that holds vectors of `dimensions`.
///
/// # Errors
/// A sentence listing the outputs, if none or more than one could be it, or naming one that may not be it.
pub(crate) fn output(session: &Session, dimensions: usize) -> Result<Output, String> {
    let outputs = session.outputs().iter();
    let ports: Vec<Port<'_>> = outputs.map(|output| port(output.name(), output.dtype())).collect();
    let output = choose(&ports, Some(dimensions))?;
    // As at the import, which did not know the shapes that the library has worked out since.
    refuse_head(&output, &ports, Some(dimensions))?;
    Ok(output)
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
    fn inputs_have_the_integers_and_the_sides_that_the_graph_states() {
        let long = tensor(TensorElementType::Int64, &[-1, 128]);
        let port = input_port("input_ids", &long);
        assert_eq!((port.integers, port.sides), (Some(Integers::I64), Some(vec![-1, 128])));
        let unstated = tensor(TensorElementType::Int32, &[]);
        let port = input_port("input_ids", &unstated);
        assert_eq!((port.integers, port.sides), (Some(Integers::I32), None));
        let floats = tensor(TensorElementType::Float32, &[-1, -1]);
        assert_eq!(input_port("attention_mask", &floats).integers, None);
    }
}
