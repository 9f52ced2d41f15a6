//! Writes an ONNX model piece by piece.

use half::f16;
use prost::Message;

use super::{
    Attribute, Dimension, FLOAT, FLOAT16, Graph, INT32, INT64, Model, Node, OperatorSet, Property,
    Shape, Tensor, TensorType, Type, ValueInfo,
};
use crate::{Error, Precision};

/// Largest model that protobuf readers take.
const MODEL_BYTES_MAX: usize = i32::MAX as usize;
const IR_VERSION: i64 = 9;
const OPSET: i64 = 18;
/// Domain of ONNX Runtime's own operators.
pub(crate) const MICROSOFT: &str = "com.microsoft";

/// A graph in the making.
///
/// A protobuf message that occurs twice is merged by its reader, so each initialiser is written as
/// a model of its own that holds nothing else. The weights thus exist once in the output and one
/// tensor at a time beside it, and not a second time as a tree of messages.
pub(crate) struct GraphWriter {
    bytes: Vec<u8>,
    nodes: Vec<Node>,
    metadata: Vec<Property>,
    /// Of what is multiplied.
    precision: Precision,
    /// The first operand with a value that the precision does not reach, and the value.
    beyond: Option<(String, f32)>,
    /// Bytes of operands in 32 bits.
    wide_bytes: usize,
}

impl GraphWriter {
    /// A writer of a graph that multiplies in `precision`, and expects about `bytes` of weights in
    /// 32 bits.
    pub(crate) fn with_capacity(bytes: usize, precision: Precision) -> Self {
        let bytes = match precision {
            Precision::F32 => bytes,
            Precision::F16 => bytes / 2,
        };
        let bytes = Vec::with_capacity(bytes);
        let (nodes, metadata) = (Vec::new(), Vec::new());
        Self { bytes, nodes, metadata, precision, beyond: None, wide_bytes: 0 }
    }

    /// Adds floats that are multiplied, or go with such, in the precision of the graph; given as
    /// little-endian bytes of 32-bit ones.
    pub(crate) fn operand(&mut self, name: &str, dims: &[usize], bytes: Vec<u8>) {
        if self.precision == Precision::F32 {
            self.wide_bytes += bytes.len();
            return self.floats(name, dims, bytes);
        }
        let mut halves = Vec::with_capacity(bytes.len() / 2);
        for value in bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)) {
            let half = f16::from_f32(value);
            if !half.is_finite() && self.beyond.is_none() {
                self.beyond = Some((name.to_owned(), value));
            }
            halves.extend_from_slice(&half.to_le_bytes());
        }
        self.initializer(name, dims, FLOAT16, halves);
    }

    /// `value`, of 32-bit floats, as something to multiply.
    pub(crate) fn narrow(&mut self, value: &str) -> String {
        self.cast(value, FLOAT16, "narrow")
    }

    /// `value`, which a product gave, in 32-bit floats.
    pub(crate) fn widen(&mut self, value: &str) -> String {
        self.cast(value, FLOAT, "wide")
    }

    /// Nothing in a graph that multiplies 32-bit floats.
    fn cast(&mut self, value: &str, to: i32, suffix: &str) -> String {
        match self.precision {
            Precision::F32 => value.to_owned(),
            Precision::F16 => {
                let to = vec![integer("to", i64::from(to))];
                self.node_with("Cast", &[value], &format!("{value}.{suffix}"), to)
            }
        }
    }

    /// Adds 32-bit floats, given as little-endian bytes.
    pub(crate) fn floats(&mut self, name: &str, dims: &[usize], bytes: Vec<u8>) {
        self.initializer(name, dims, FLOAT, bytes);
    }

    /// Adds 32-bit integers.
    pub(crate) fn int32s(&mut self, name: &str, dims: &[usize], values: &[i32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(name, dims, INT32, bytes);
    }

    /// Adds a vector of 64-bit integers.
    pub(crate) fn int64s(&mut self, name: &str, values: &[i64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initializer(name, &[values.len()], INT64, bytes);
    }

    /// Adds a number.
    pub(crate) fn float(&mut self, name: &str, value: f32) {
        self.floats(name, &[], value.to_le_bytes().to_vec());
    }

    fn initializer(&mut self, name: &str, dims: &[usize], data_type: i32, raw_data: Vec<u8>) {
        let dims = dims.iter().map(|&size| size as i64).collect();
        let name = name.to_owned();
        let tensor = Tensor { dims, data_type, name, raw_data, ..Tensor::default() };
        let graph = Graph { initializer: vec![tensor], ..Graph::default() };
        append(&mut self.bytes, &Model { graph: Some(graph), ..Model::default() });
    }

    /// Says something to whoever feeds the graph.
    pub(crate) fn says(&mut self, key: &str, value: &str) {
        self.metadata.push(Property { key: key.to_owned(), value: value.to_owned() });
    }

    /// Adds a standard operator with one output, which is also the node's name, and returns it.
    pub(crate) fn node(&mut self, op_type: &str, inputs: &[&str], output: &str) -> String {
        self.node_with(op_type, inputs, output, Vec::new())
    }

    /// As [`node`](Self::node), with attributes.
    pub(crate) fn node_with(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        output: &str,
        attribute: Vec<Attribute>,
    ) -> String {
        self.nodes.push(Node {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: vec![output.to_owned()],
            name: output.to_owned(),
            op_type: op_type.to_owned(),
            attribute,
            domain: String::new(),
        });
        output.to_owned()
    }

    /// As [`node_with`](Self::node_with), for one of ONNX Runtime's own operators.
    pub(crate) fn microsoft(
        &mut self,
        op_type: &str,
        inputs: &[&str],
        output: &str,
        attribute: Vec<Attribute>,
    ) -> String {
        let output = self.node_with(op_type, inputs, output, attribute);
        if let Some(node) = self.nodes.last_mut() {
            node.domain = MICROSOFT.to_owned();
        }
        output
    }

    /// The finished model.
    ///
    /// # Errors
    /// A model too large for its own format, or a weight too large for its precision.
    pub(crate) fn finish(
        mut self,
        inputs: Vec<ValueInfo>,
        outputs: Vec<ValueInfo>,
    ) -> Result<Vec<u8>, Error> {
        if let Some((name, value)) = self.beyond {
            return Err(Error::Unsupported {
                what: "precision",
                found: format!("f16 with the value {value} in {name}"),
                supported: format!("f16 up to ±{}; f32 takes this model", f16::MAX),
            });
        }
        let graph = Graph {
            node: self.nodes,
            name: "encoder".to_owned(),
            input: inputs,
            output: outputs,
            ..Graph::default()
        };
        let opset = |domain: &str, version| OperatorSet { domain: domain.to_owned(), version };
        let model = Model {
            ir_version: IR_VERSION,
            producer_name: "op-dbus".to_owned(),
            graph: Some(graph),
            opset_import: vec![opset("", OPSET), opset(MICROSOFT, 1)],
            metadata_props: self.metadata,
            ..Model::default()
        };
        append(&mut self.bytes, &model);
        check_size(self.bytes.len(), self.wide_bytes)?;
        Ok(self.bytes)
    }
}

/// Refuses a model that is too large for its own format. `wide` of its bytes would be half as many in 16 bits.
fn check_size(bytes: usize, wide: usize) -> Result<(), Error> {
    if bytes <= MODEL_BYTES_MAX {
        return Ok(());
    }
    let fits_halved = bytes - wide / 2 <= MODEL_BYTES_MAX;
    let remedy = if fits_halved { ", which it has with precision f16" } else { "" };
    Err(Error::TooLarge {
        what: "the compiled graph",
        found: format!("{bytes} bytes"),
        supported: format!("up to {MODEL_BYTES_MAX} bytes{remedy}"),
    })
}

fn append(bytes: &mut Vec<u8>, model: &Model) {
    bytes.reserve(model.encoded_len());
    model.encode(bytes).expect("a vector grows as far as it must");
}

/// An integer attribute.
pub(crate) fn integer(name: &str, value: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: Some(value), r#type: 2, ..Attribute::default() }
}

/// An attribute of several integers.
pub(crate) fn integers(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: name.to_owned(), ints: values.to_vec(), r#type: 7, ..Attribute::default() }
}

/// A float attribute.
pub(crate) fn real(name: &str, value: f32) -> Attribute {
    Attribute { name: name.to_owned(), f: Some(value), r#type: 1, ..Attribute::default() }
}

/// An input or output; a dimension is a name (known at run time) or a number.
pub(crate) fn port(name: &str, elem_type: i32, dims: &[&str]) -> ValueInfo {
    let dim = |size: &&str| match size.parse() {
        Ok(number) => Dimension { dim_value: Some(number), dim_param: None },
        Err(_) => Dimension { dim_value: None, dim_param: Some((*size).to_owned()) },
    };
    let shape = Some(Shape { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorType { elem_type, shape });
    ValueInfo { name: name.to_owned(), r#type: Some(Type { tensor_type }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_beyond_its_format_is_refused_with_what_would_fit() {
        let refusal = |bytes, wide| check_size(bytes, wide).unwrap_err().to_string();
        assert!(check_size(MODEL_BYTES_MAX, 0).is_ok());
        // As many as XLM-R-large has.
        let message = refusal(2_240_000_000, 2_239_000_000);
        let right = "the compiled graph would be too large: 2240000000 bytes; supported: up to \
                     2147483647 bytes, which it has with precision f16";
        assert_eq!(message, right);
        for wide in [0, 4_400_000_000] {
            let message = refusal(4_500_000_000, wide);
            assert!(message.ends_with("up to 2147483647 bytes"), "{message}");
        }
    }
}
