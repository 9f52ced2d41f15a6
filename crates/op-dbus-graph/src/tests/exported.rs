//! Weights out of an export: found, turned, named, and the same every time.

use prost::Message;
use safetensors::SafeTensors;

use super::tiny::{self, HIDDEN, INNER, Tensors, Tiny};
use crate::Family;
use crate::encoder::transpose;
use crate::export::onnx_to_safetensors;
use crate::onnx::{FLOAT, Graph, Model, Node, OperatorSet, Tensor};

fn tensor(name: &str, shape: &[usize], raw_data: Vec<u8>) -> Tensor {
    let dims = shape.iter().map(|&size| size as i64).collect();
    Tensor { name: name.to_owned(), dims, data_type: FLOAT, raw_data, ..Tensor::default() }
}

fn node(op_type: &str, inputs: [&str; 2], output: &str) -> Node {
    Node {
        op_type: op_type.to_owned(),
        input: inputs.map(str::to_owned).to_vec(),
        output: vec![output.to_owned()],
        ..Node::default()
    }
}

/// What PyTorch would write: matrices turned, without a name, before the `Add` of their bias.
pub fn export(tensors: &Tensors) -> Model {
    let mut graph = Graph::default();
    for (name, (shape, values)) in tensors {
        let bytes = tiny::bytes(values);
        let stem = name.strip_suffix(".weight").unwrap_or_default();
        let named = format!("model.0.auto_model.{name}");
        if !tensors.contains_key(&format!("{stem}.bias")) || shape.len() != 2 {
            graph.initializer.push(tensor(&named, shape, bytes));
            continue;
        }
        let anonymous = format!("onnx::MatMul_{}", graph.initializer.len());
        let turned = transpose(&bytes, shape[0], shape[1]);
        graph.initializer.push(tensor(&anonymous, &[shape[1], shape[0]], turned));
        let product = format!("/{stem}/MatMul_output_0");
        graph.node.push(node("MatMul", ["hidden", &anonymous], &product));
        let bias = format!("model.0.auto_model.{stem}.bias");
        let mut inputs = [&*bias, &product];
        if graph.node.len().is_multiple_of(3) {
            inputs.reverse();
        }
        graph.node.push(node("Add", inputs, &format!("/{stem}/Add_output_0")));
    }
    // Two inner values are added as well, which must not be taken for a bias.
    graph.node.push(node("Add", ["hidden", "other"], "sum"));
    let opset_import = vec![OperatorSet { domain: String::new(), version: 17 }];
    Model { ir_version: 8, graph: Some(graph), opset_import, ..Model::default() }
}

#[test]
fn an_export_gives_back_the_weights_it_was_made_of() {
    let tensors = tiny::bert();
    let onnx = export(&tensors).encode_to_vec();
    let found = onnx_to_safetensors(&onnx).unwrap();
    assert_eq!(found, onnx_to_safetensors(&onnx).unwrap());
    let read = SafeTensors::deserialize(&found).unwrap();
    assert_eq!(read.len(), tensors.len());
    for (name, (shape, values)) in &tensors {
        let view = read.tensor(name).unwrap();
        assert_eq!(view.shape(), shape, "{name}");
        assert_eq!(view.data(), tiny::bytes(values), "{name}");
    }
    let model = Tiny::new(Family::Bert);
    assert_eq!(model.compile_weights(&found).unwrap(), model.compile().unwrap());
}

#[test]
fn a_matrix_that_can_not_be_found_is_named() {
    let mut model = export(&tiny::bert());
    let graph = model.graph.as_mut().unwrap();
    graph.node.retain(|node| {
        !node.output[0].contains("layer.1/intermediate")
            && !node.output[0].contains("layer.1.intermediate")
    });
    let message = onnx_to_safetensors(&model.encode_to_vec()).unwrap_err().to_string();
    assert!(message.contains("encoder.layer.1.intermediate.dense.weight"), "{message}");
}

#[test]
fn damaged_tensors_are_named() {
    let whole = export(&tiny::bert());
    let matrix = |model: &mut Model, change: &dyn Fn(&mut Tensor)| {
        let graph = model.graph.as_mut().unwrap();
        let found = graph.initializer.iter_mut().find(|t| t.dims == [INNER as i64, HIDDEN as i64]);
        let tensor = found.unwrap();
        change(tensor);
        tensor.name.clone()
    };
    let changes: [&dyn Fn(&mut Tensor); 7] = [
        &|tensor| tensor.dims[0] = -1,
        &|tensor| tensor.dims[0] = i64::MAX,
        &|tensor| tensor.dims = vec![1 << 40, 1 << 40],
        &|tensor| tensor.dims.push(1),
        &|tensor| tensor.raw_data.clear(),
        &|tensor| tensor.raw_data.truncate(7),
        &|tensor| tensor.data_location = crate::onnx::EXTERNAL,
    ];
    for change in changes {
        let mut model = whole.clone();
        let name = matrix(&mut model, change);
        let message = onnx_to_safetensors(&model.encode_to_vec()).unwrap_err().to_string();
        assert!(message.contains(&name), "{name}: {message}");
    }
    let mut model = whole;
    let name = matrix(&mut model, &|tensor| tensor.data_type = 10);
    let message = onnx_to_safetensors(&model.encode_to_vec()).unwrap_err().to_string();
    assert!(message.contains(&name) && message.contains("10"), "{message}");
}

#[test]
fn floats_outside_raw_data_are_read() {
    let tensors = tiny::bert();
    let mut model = export(&tensors);
    for tensor in &mut model.graph.as_mut().unwrap().initializer {
        let raw = std::mem::take(&mut tensor.raw_data);
        tensor.float_data =
            raw.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
    }
    let plain = onnx_to_safetensors(&export(&tensors).encode_to_vec()).unwrap();
    assert_eq!(onnx_to_safetensors(&model.encode_to_vec()).unwrap(), plain);
}
