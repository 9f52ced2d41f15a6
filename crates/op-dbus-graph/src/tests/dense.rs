//! Dense modules: what the graph does for each, and what is refused of them.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::tiny::{HIDDEN, Tiny};
use crate::onnx::Graph;
use crate::{Dialect, Error, Family};

/// The operators behind the pooling, in order.
fn tail(graph: &Graph) -> Vec<&str> {
    let pooled = graph.node.iter().position(|node| node.name == "pooled").unwrap();
    graph.node[pooled + 1..].iter().map(|node| &*node.op_type).collect()
}

#[test]
fn every_activation_follows_its_product() {
    let operators: HashMap<&str, &[&str]> = HashMap::from([
        ("Tanh", &["Tanh"][..]),
        ("ReLU", &["Relu"]),
        ("GELU", &["Gelu"]),
        ("Sigmoid", &["Sigmoid"]),
        ("SiLU", &["Sigmoid", "Mul"]),
        ("Identity", &[]),
    ]);
    for (class, expected) in operators {
        let mut model = Tiny::new(Family::Bert).with_dense(&[(3, class)]);
        model.recipe.normalize = false;
        let graph = model.graph();
        assert_eq!(
            tail(&graph),
            [&["MatMul", "Add"], expected, &["Neg", "Neg"]].concat(),
            "{class}"
        );
        let gelu = graph.node.iter().find(|node| node.op_type == "Gelu");
        assert!(gelu.is_none_or(|node| node.domain == "com.microsoft"));
    }
}

#[test]
fn a_graph_of_onnxs_own_operators_has_no_others_for_its_modules() {
    let mut model = Tiny::new(Family::Bert).with_dense(&[(5, "GELU"), (3, "GELU")]);
    model.recipe.target.dialect = Dialect::Onnx;
    let one = ["MatMul", "Add", "Mul", "Erf", "Add", "Mul", "Mul"];
    // Whether or not the encoder's own activation has the same numbers.
    for activation in ["gelu", "gelu_new", "relu"] {
        model.config["hidden_act"] = json!(activation);
        let graph = model.graph();
        assert!(graph.node.iter().all(|node| node.domain.is_empty()), "{activation}");
        assert_eq!(tail(&graph)[..14], [one, one].concat());
        let given = graph.initializer.iter().map(|tensor| &tensor.name);
        let given = given.chain(graph.input.iter().map(|input| &input.name));
        let made: Vec<&String> =
            given.chain(graph.node.iter().flat_map(|node| &node.output)).collect();
        let names: HashSet<&String> = made.iter().copied().collect();
        assert_eq!(names.len(), made.len(), "{activation}: a name twice");
        let mut wanted = graph.node.iter().flat_map(|node| &node.input);
        assert!(wanted.all(|name| name.is_empty() || names.contains(name)), "{activation}");
    }
}

#[test]
fn modules_follow_each_other_before_the_normalisation() {
    let model = Tiny::new(Family::Distilbert).with_dense(&[(5, "Identity"), (3, "Tanh")]);
    let graph = model.graph();
    let normalise = ["ReduceL2", "Max", "Div"];
    let expected = [&["MatMul", "Add", "MatMul", "Add", "Tanh"][..], &normalise].concat();
    assert_eq!(tail(&graph), expected);
    let info = crate::inspect::inspect(&model.compile().unwrap()).unwrap();
    assert_eq!(info.outputs[0].shape, Some(vec![None, Some(3)]));
    // Turned, as the encoder's own products are.
    let weight = graph.initializer.iter().find(|tensor| tensor.name == "dense.0.weight").unwrap();
    assert_eq!(weight.dims, [HIDDEN as i64, 5]);
    let first_row: Vec<f32> =
        weight.raw_data.as_chunks::<4>().0[..5].iter().map(|v| f32::from_le_bytes(*v)).collect();
    let (_, values) = &model.dense[0].1["linear.weight"];
    let expected: Vec<f32> = values.iter().step_by(HIDDEN).copied().collect();
    assert_eq!(first_row, expected);
}

#[test]
fn a_module_may_have_no_bias_and_no_module_name() {
    let mut model = Tiny::new(Family::Bert).with_dense(&[(3, "Tanh")]);
    model.dense[0].0["bias"] = json!(false);
    model.dense[0].0["activation_function"] = json!("torch.nn.Tanh");
    assert_eq!(tail(&model.graph())[..2], ["MatMul", "Tanh"]);
}

#[test]
fn what_a_module_may_leave_out_is_what_its_authors_assume() {
    let mut model = Tiny::new(Family::Bert).with_dense(&[(3, "Tanh")]);
    let stated = model.compile().unwrap();
    model.dense[0].0 = json!({
        "in_features": HIDDEN, "out_features": 3, "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding", "use_residual": false,
    });
    assert_eq!(model.compile().unwrap(), stated);
}

#[test]
fn what_is_not_supported_is_named_with_its_module() {
    let cases = [
        ("in_features", json!(4), "in_features is 4"),
        ("out_features", json!(0), "out_features is 0"),
        ("activation_function", json!("torch.nn.modules.activation.Mish"), "activation.Mish"),
        ("activation_function", json!("mine.Tanh"), "mine.Tanh"),
        ("activation_function", json!("Tanh"), "activation_function is Tanh"),
        ("activation_function", json!("torch.nn."), "supported: Identity, Tanh"),
        ("module_input_name", json!("token_embeddings"), "module_input_name is token_embeddings"),
        ("module_output_name", json!("other"), "module_output_name is other"),
        ("use_residual", json!(true), "use_residual is true"),
        ("out_features", json!(4), "linear.bias has the shape [3]"),
        ("in_features", json!("x"), "config.json can't be used"),
        ("in_features", Value::Null, "config.json can't be used"),
    ];
    for (key, value, expected) in cases {
        let mut model = Tiny::new(Family::Bert).with_dense(&[(5, "ReLU"), (3, "Tanh")]);
        model.dense[1].0[key] = value;
        let error = model.compile().unwrap_err();
        assert!(matches!(error, Error::Dense { number: 2, .. }), "{key}: {error}");
        let message = error.to_string();
        assert!(message.starts_with("Dense module 2: ") && message.contains(expected), "{message}");
    }
}

#[test]
fn configurations_are_refused_without_weights_as_with_them() {
    let model = Tiny::new(Family::Bert).with_dense(&[(5, "ReLU"), (3, "Tanh")]);
    let check = |model: &Tiny| {
        let dense: Vec<Value> = model.dense.iter().map(|(config, _)| config.clone()).collect();
        crate::check(model.family, &model.config, &dense).map_err(|error| error.to_string())
    };
    check(&model).unwrap();
    let mut refused = Vec::new();
    for (key, value) in [("in_features", json!(4)), ("activation_function", json!("mine.Tanh"))] {
        let mut model = model.clone();
        model.dense[1].0[key] = value;
        refused.push(model);
    }
    for (key, value) in [("hidden_act", json!("silu")), ("num_attention_heads", json!(3))] {
        let mut model = model.clone();
        model.config[key] = value;
        refused.push(model);
    }
    for model in refused {
        assert_eq!(check(&model).unwrap_err(), model.compile().unwrap_err().to_string());
    }
}

#[test]
fn every_missing_or_misshapen_tensor_of_a_module_is_named() {
    for name in ["linear.weight", "linear.bias"] {
        let whole = Tiny::new(Family::Roberta).with_dense(&[(3, "Tanh")]);
        let mut without = whole.clone();
        without.dense[0].1.remove(name);
        let message = without.compile().unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("missing"), "{message}");
        let mut other = whole;
        other.dense[0].1.get_mut(name).unwrap().0.push(1);
        let message = other.compile().unwrap_err().to_string();
        assert!(message.contains(name) && message.contains("shape"), "{message}");
    }
}
