//! What a user's own ONNX file takes and gives, read without running it.

use crate::Error;

/// Element type of an input or output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    /// 32-bit float.
    F32,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// Any other, by its number in the ONNX schema.
    Other(i32),
}

/// One input or output of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name in the graph.
    pub name: String,
    /// Type of its elements.
    pub element_type: ElementType,
    /// Size of each dimension, `None` where it is only known at run time; `None` for an unknown
    /// number of dimensions.
    pub shape: Option<Vec<Option<u64>>>,
}

/// What an ONNX file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphInfo {
    /// Inputs that a caller must give (initialisers are left out), in graph order.
    pub inputs: Vec<Port>,
    /// Outputs, in graph order.
    pub outputs: Vec<Port>,
    /// Version of the standard ONNX operator set.
    pub opset: i64,
    /// Whether some tensor's data lies in a file beside the graph.
    pub has_external_data: bool,
}

/// Reads the inputs and outputs of the ONNX model in `onnx`.
///
/// # Errors
/// Bytes that are not an ONNX model, a model without a graph, or one whose external data would be
/// read from outside its own folder.
pub fn inspect(onnx: &[u8]) -> Result<GraphInfo, Error> {
    let _ = onnx;
    Err(Error::Onnx("not written yet".to_owned()))
}
