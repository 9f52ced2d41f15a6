//! What a user's own ONNX file takes and gives, read without running it.

use std::collections::HashSet;

use crate::Error;
use crate::onnx::{self, Attribute, EXTERNAL, FLOAT, Graph, INT32, INT64, Node};

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
}

/// Reads the inputs and outputs of the ONNX model in `onnx`.
///
/// # Errors
/// Bytes that are not an ONNX model, a model without a graph or without the standard operators, with more fields than
/// any has, with a tensor of impossible dimensions, or with one whose data are not in the file itself.
pub fn inspect(onnx: &[u8]) -> Result<GraphInfo, Error> {
    let model = onnx::reader::read(onnx)?;
    let standard = |set: &onnx::OperatorSet| matches!(&*set.domain, "" | "ai.onnx");
    if !model.opset_import.iter().any(standard) {
        return Err(Error::Onnx("it names no operator set".to_owned()));
    }
    let graph = model.graph.ok_or_else(|| Error::Onnx("it has no graph".to_owned()))?;

    let mut tensors = Vec::new();
    collect_graph(&graph, &mut tensors);
    for training in &model.training_info {
        let graphs = training.initialization.iter().chain(&training.algorithm);
        graphs.for_each(|graph| collect_graph(graph, &mut tensors));
    }
    for function in &model.functions {
        collect_nodes(&function.node, &mut tensors);
        collect_attributes(&function.attribute_proto, &mut tensors);
    }
    for tensor in tensors {
        onnx::tensor::shape(tensor)?;
        if tensor.data_location == EXTERNAL || !tensor.external_data.is_empty() {
            return Err(Error::ExternalData { name: tensor.name.clone() });
        }
    }

    let given: HashSet<&str> = graph.initializer.iter().map(|tensor| &*tensor.name).collect();
    let inputs = graph.input.iter().filter(|input| !given.contains(&*input.name)).map(port);
    Ok(GraphInfo { inputs: inputs.collect(), outputs: graph.output.iter().map(port).collect() })
}

/// All tensors of a graph, those inside its nodes included. The depth is bounded: the protobuf
/// reader refuses messages nested deeper than 100.
fn collect_graph<'a>(graph: &'a Graph, tensors: &mut Vec<&'a onnx::Tensor>) {
    tensors.extend(&graph.initializer);
    collect_sparse(&graph.sparse_initializer, tensors);
    collect_nodes(&graph.node, tensors);
}

fn collect_nodes<'a>(nodes: &'a [Node], tensors: &mut Vec<&'a onnx::Tensor>) {
    nodes.iter().for_each(|node| collect_attributes(&node.attribute, tensors));
}

fn collect_attributes<'a>(attributes: &'a [Attribute], tensors: &mut Vec<&'a onnx::Tensor>) {
    for attribute in attributes {
        tensors.extend(attribute.t.as_deref().into_iter().chain(&attribute.tensors));
        collect_sparse(attribute.sparse_tensor.as_deref(), tensors);
        collect_sparse(&attribute.sparse_tensors, tensors);
        for graph in attribute.g.as_deref().into_iter().chain(&attribute.graphs) {
            collect_graph(graph, tensors);
        }
    }
}

fn collect_sparse<'a>(
    sparse: impl IntoIterator<Item = &'a onnx::SparseTensor>,
    tensors: &mut Vec<&'a onnx::Tensor>,
) {
    for tensor in sparse {
        tensors.extend(tensor.values.iter().chain(&tensor.indices));
    }
}

fn port(value: &onnx::ValueInfo) -> Port {
    let tensor = value.r#type.as_ref().and_then(|kind| kind.tensor_type.as_ref());
    let element_type = match tensor.map_or(0, |tensor| tensor.elem_type) {
        FLOAT => ElementType::F32,
        INT32 => ElementType::I32,
        INT64 => ElementType::I64,
        other => ElementType::Other(other),
    };
    let size = |dim: &onnx::Dimension| dim.dim_value.and_then(|size| u64::try_from(size).ok());
    let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
    let shape = shape.map(|shape| shape.dim.iter().map(size).collect());
    Port { name: value.name.clone(), element_type, shape }
}
