//! What the fuzzer of `tests/fuzz` drives here: weights with their configuration, and graphs.

use crate::export::onnx_to_safetensors;
use crate::inspect::inspect;
use crate::{Dialect, Family, ModelFiles, Pooling, Precision, Recipe, Target, compile, read};

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[("weights", weights), ("graph", graph)];

const FAMILIES: [Family; 4] = [Family::Bert, Family::Mpnet, Family::Roberta, Family::Distilbert];

/// A `config.json`, a NUL, and a safetensors file: of each family, in each form that is compiled.
fn weights(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let config = serde_json::from_slice(parts.next().unwrap_or_default());
    let (Ok(config), Some(weights)) = (config, parts.next()) else { return false };
    let mut understood = false;
    for family in FAMILIES {
        let files = ModelFiles { family, config: &config, weights, dense: Vec::new() };
        let Ok(encoder) = read(&files) else { continue };
        assert!(encoder.hidden > 0 && encoder.words.rows() > 0, "{family:?}");
        for precision in [Precision::F32, Precision::F16] {
            for dialect in [Dialect::OnnxRuntime, Dialect::Packed, Dialect::Onnx] {
                understood |= compiled(&files, Target { precision, dialect });
            }
        }
    }
    understood
}

/// What was compiled, if it was, is what a user's own graph is read as.
fn compiled(files: &ModelFiles<'_>, target: Target) -> bool {
    let recipe = Recipe { pooling: Pooling::Mean, normalize: true, max_input_tokens: 4, target };
    let Ok(onnx) = compile(&recipe, files) else { return false };
    let read = inspect(&onnx).expect("a graph of ours");
    let inputs = if target.dialect == Dialect::Packed { 5 } else { 2 };
    assert_eq!((read.inputs.len(), read.outputs.len()), (inputs, 1), "{target:?}");
    true
}

/// A user's own ONNX file, which may be an export with a BERT's weights.
fn graph(bytes: &[u8]) -> bool {
    let inspected = inspect(bytes);
    if let Ok(read) = &inspected {
        assert!(read.inputs.iter().chain(&read.outputs).all(|port| port.name.len() <= bytes.len()));
    }
    let Ok(weights) = onnx_to_safetensors(bytes) else { return false };
    // The sizes of the kept cases.
    let config = serde_json::json!({
        "model_type": "bert", "hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1,
        "intermediate_size": 2, "vocab_size": 3, "max_position_embeddings": 4, "type_vocab_size": 1,
    });
    let files =
        ModelFiles { family: Family::Bert, config: &config, weights: &weights, dense: Vec::new() };
    read(&files).is_ok() && inspected.is_ok()
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
