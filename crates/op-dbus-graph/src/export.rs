//! The weights of a BERT model out of its PyTorch ONNX export.
//!
//! Such an export keeps the names of tables, biases and norms, but the matrices have been turned
//! and renamed (`onnx::MatMul_470`). They are found again through the graph: the product of such a
//! matrix is added to a bias that still has its name.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::encoder::transpose;
use crate::onnx::{Graph, reader, tensor};
use crate::{Error, onnx};

/// One tensor on its way out.
struct Exported<'a> {
    shape: Vec<usize>,
    bytes: Cow<'a, [u8]>,
}

/// Turns a BERT export into a safetensors file with the names of the original checkpoint
/// (`encoder.layer.0.attention.self.query.weight`, `[out, in]`, …), 32-bit floats. The same input
/// gives the same bytes.
///
/// # Errors
/// Bytes that are not an ONNX model, a damaged tensor, or a matrix that can't be found (named).
pub fn onnx_to_safetensors(onnx: &[u8]) -> Result<Vec<u8>, Error> {
    let model = reader::read(onnx)?;
    let graph = model.graph.ok_or_else(|| Error::Onnx("it has no graph".to_owned()))?;
    let initializers: HashMap<&str, &onnx::Tensor> =
        graph.initializer.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();

    let mut tensors = named(&graph)?;
    matrices(&graph, &initializers, &mut tensors)?;
    check_complete(&tensors)?;
    write(&tensors)
}

/// The tensors that still have their names.
fn named(graph: &Graph) -> Result<BTreeMap<String, Exported<'_>>, Error> {
    let mut tensors = BTreeMap::new();
    for initializer in &graph.initializer {
        if let Some(name) = checkpoint_name(&initializer.name) {
            let (shape, bytes) = tensor::floats(initializer)?;
            tensors.insert(name.to_owned(), Exported { shape, bytes });
        }
    }
    Ok(tensors)
}

/// The name in the original checkpoint: what remains without the modules around the encoder.
fn checkpoint_name(name: &str) -> Option<&str> {
    let starts = ["embeddings.", "encoder.layer.", "pooler.dense."];
    let at_a_module = |&index: &usize| index == 0 || name.as_bytes()[index - 1] == b'.';
    let found = starts.iter().filter_map(|start| name.find(start)).filter(at_a_module).min();
    found.map(|index| &name[index..])
}

/// Adds the matrices: those whose product meets a bias with a name.
fn matrices<'a>(
    graph: &'a Graph,
    initializers: &HashMap<&str, &'a onnx::Tensor>,
    tensors: &mut BTreeMap<String, Exported<'a>>,
) -> Result<(), Error> {
    let products: HashMap<&str, &str> = graph
        .node
        .iter()
        .filter(|node| node.op_type == "MatMul")
        .filter_map(|node| Some((node.output.first()?.as_str(), node.input.get(1)?.as_str())))
        .collect();
    for node in graph.node.iter().filter(|node| node.op_type == "Add") {
        let [left, right] = node.input.as_slice() else { continue };
        for (bias, product) in [(left, right), (right, left)] {
            let stem = checkpoint_name(bias).and_then(|name| name.strip_suffix(".bias"));
            let matrix = products.get(product.as_str()).and_then(|name| initializers.get(name));
            if let (Some(stem), Some(matrix)) = (stem, matrix) {
                let name = format!("{stem}.weight");
                tensors.insert(name, turned(matrix)?);
            }
        }
    }
    Ok(())
}

/// `[in, out]` to `[out, in]`.
fn turned<'a>(matrix: &onnx::Tensor) -> Result<Exported<'a>, Error> {
    let (shape, bytes) = tensor::floats(matrix)?;
    let [rows, columns] = shape[..] else {
        let problem = format!("it has the shape {shape:?} where a matrix is needed");
        return Err(Error::Tensor { name: matrix.name.clone(), problem });
    };
    let bytes = Cow::Owned(transpose(&bytes, rows, columns));
    Ok(Exported { shape: vec![columns, rows], bytes })
}

/// Every bias must have found its matrix.
fn check_complete(tensors: &BTreeMap<String, Exported<'_>>) -> Result<(), Error> {
    if !tensors.contains_key("embeddings.word_embeddings.weight") {
        return Err(Error::MissingTensor { name: "embeddings.word_embeddings.weight".to_owned() });
    }
    for stem in tensors.keys().filter_map(|name| name.strip_suffix(".bias")) {
        let name = format!("{stem}.weight");
        if !tensors.contains_key(&name) {
            return Err(Error::MissingTensor { name });
        }
    }
    Ok(())
}

fn write(tensors: &BTreeMap<String, Exported<'_>>) -> Result<Vec<u8>, Error> {
    let mut views = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let view = TensorView::new(Dtype::F32, tensor.shape.clone(), &tensor.bytes)
            .map_err(Error::Safetensors)?;
        views.push((name, view));
    }
    // Readers of the Python world want to be told who laid the matrices out.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize(views, Some(metadata)).map_err(Error::Safetensors)
}
