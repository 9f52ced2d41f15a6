//! What is told of a user's own file, and which files are refused.

use prost::Message;

use super::exported::export;
use super::tiny;
use crate::Error;
use crate::inspect::{ElementType, inspect};
use crate::onnx::writer::port;
use crate::onnx::{
    Attribute, EXTERNAL, Entry, FLOAT, Function, Graph, INT64, Model, Node, SparseTensor, Tensor,
    Training,
};

fn external(location: &str) -> Tensor {
    let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
    Tensor {
        name: "words".to_owned(),
        dims: vec![2],
        data_type: FLOAT,
        data_location: EXTERNAL,
        external_data: vec![entry("location", location), entry("offset", "0")],
        ..Tensor::default()
    }
}

fn with(tensor: Tensor) -> Model {
    let mut model = export(&tiny::bert());
    model.graph.as_mut().unwrap().initializer.push(tensor);
    model
}

#[test]
fn ports_are_told_without_the_initializers() {
    let mut model = export(&tiny::bert());
    let graph = model.graph.as_mut().unwrap();
    graph.input = vec![port("input_ids", INT64, &["batch", "4"]), port("given", FLOAT, &[])];
    graph.initializer.push(Tensor { name: "given".to_owned(), ..Tensor::default() });
    graph.output = vec![port("vectors", FLOAT, &["batch", "8"]), port("odd", 10, &[])];
    let info = inspect(&model.encode_to_vec()).unwrap();
    assert_eq!(info.inputs.len(), 1);
    assert_eq!(info.inputs[0].name, "input_ids");
    assert_eq!(info.inputs[0].element_type, ElementType::I64);
    assert_eq!(info.inputs[0].shape, Some(vec![None, Some(4)]));
    assert_eq!(info.outputs[0].element_type, ElementType::F32);
    assert_eq!(info.outputs[1].element_type, ElementType::Other(10));
}

#[test]
fn data_outside_the_file_are_refused() {
    let unplaced = Tensor { external_data: Vec::new(), ..external("") };
    let unmarked = Tensor { data_location: 0, ..external("*/_ORT_MEM_ADDR_/*") };
    for tensor in [external("model.onnx_data"), external("/etc/passwd"), unplaced, unmarked] {
        let error = inspect(&with(tensor).encode_to_vec()).unwrap_err();
        assert!(matches!(&error, Error::ExternalData { name } if name == "words"), "{error}");
    }
}

#[test]
fn hidden_places_are_searched_too() {
    let bad = || external("/etc/passwd");
    let holding = |attribute: Attribute| Node { attribute: vec![attribute], ..Node::default() };
    let inner = Graph { initializer: vec![bad()], ..Graph::default() };
    let sparse = || SparseTensor { values: Some(bad()), indices: None };
    let attributes = [
        Attribute { t: Some(Box::new(bad())), ..Attribute::default() },
        Attribute { tensors: vec![bad()], ..Attribute::default() },
        Attribute { g: Some(Box::new(inner.clone())), ..Attribute::default() },
        Attribute { graphs: vec![inner], ..Attribute::default() },
        Attribute { sparse_tensor: Some(Box::new(sparse())), ..Attribute::default() },
        Attribute { sparse_tensors: vec![sparse()], ..Attribute::default() },
    ];
    for attribute in attributes {
        let mut model = export(&tiny::bert());
        model.graph.as_mut().unwrap().node.push(holding(attribute.clone()));
        assert!(inspect(&model.encode_to_vec()).is_err());

        let mut model = export(&tiny::bert());
        let called = Function { node: vec![holding(attribute.clone())], ..Function::default() };
        model.functions.push(called);
        assert!(inspect(&model.encode_to_vec()).is_err());

        let mut model = export(&tiny::bert());
        model.functions.push(Function { attribute_proto: vec![attribute], ..Function::default() });
        assert!(inspect(&model.encode_to_vec()).is_err());
    }
    let graph = || Some(Graph { initializer: vec![bad()], ..Graph::default() });
    for training in [
        Training { initialization: graph(), algorithm: None },
        Training { initialization: None, algorithm: graph() },
    ] {
        let mut model = export(&tiny::bert());
        model.training_info.push(training);
        assert!(inspect(&model.encode_to_vec()).is_err());
    }
    let mut model = export(&tiny::bert());
    model.graph.as_mut().unwrap().sparse_initializer.push(sparse());
    assert!(inspect(&model.encode_to_vec()).is_err());
}

#[test]
fn a_model_without_a_graph_or_operators_is_refused() {
    let mut model = export(&tiny::bert());
    model.graph = None;
    assert!(inspect(&model.encode_to_vec()).is_err());
    let mut model = export(&tiny::bert());
    model.opset_import.clear();
    assert!(inspect(&model.encode_to_vec()).is_err());
    assert!(inspect(b"").is_err());
}

/// A field of protobuf that holds bytes.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    prost::encode_length_delimiter(content.len(), &mut bytes).unwrap();
    bytes.extend_from_slice(content);
    bytes
}

/// Read, an empty attribute takes a hundred times its bytes in the file, and a number of one byte eight times.
#[test]
fn a_file_that_grows_beyond_measure_is_not_read() {
    let attributes = field(1, &field(5, &[]).repeat(4_000_000));
    let dimensions = field(5, &field(1, &vec![1; 4_000_000]));
    for grows in [attributes, dimensions] {
        // A message that comes again adds to the one before.
        let whole = [export(&tiny::bert()).encode_to_vec(), field(7, &grows)].concat();
        let error = inspect(&whole).unwrap_err().to_string();
        assert!(error.contains("more than the 1000000 nodes, attributes"), "{error}");
    }
}
