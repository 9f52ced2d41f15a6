//! What the fuzzer of `tests/fuzz` drives here: weights with their configuration, and graphs.

use crate::export::onnx_to_safetensors;
use crate::inspect::inspect;
use crate::{Dialect, Family, ModelFiles, Pooling, Precision, Recipe, Target, compile, read};

/// A name, and what has to survive any bytes.
pub type Driven = (&'static str, fn(&[u8]));

/// All that is driven here.
pub const TARGETS: &[Driven] = &[("weights", weights), ("graph", graph)];

const FAMILIES: [Family; 4] = [Family::Bert, Family::Mpnet, Family::Roberta, Family::Distilbert];

/// A `config.json`, a NUL, and a safetensors file: of each family, in each form that is compiled.
fn weights(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let config = serde_json::from_slice(parts.next().unwrap_or_default());
    let (Ok(config), Some(weights)) = (config, parts.next()) else { return };
    for family in FAMILIES {
        let files = ModelFiles { family, config: &config, weights, dense: Vec::new() };
        let Ok(encoder) = read(&files) else { continue };
        assert!(encoder.hidden > 0 && encoder.words.rows() > 0, "{family:?}");
        for precision in [Precision::F32, Precision::F16] {
            for dialect in [Dialect::OnnxRuntime, Dialect::Packed, Dialect::Onnx] {
                compiled(&files, Target { precision, dialect });
            }
        }
    }
}

/// What was compiled is what a user's own graph is read as.
fn compiled(files: &ModelFiles<'_>, target: Target) {
    let recipe = Recipe { pooling: Pooling::Mean, normalize: true, max_input_tokens: 4, target };
    let Ok(onnx) = compile(&recipe, files) else { return };
    let read = inspect(&onnx).expect("a graph of ours");
    let inputs = if target.dialect == Dialect::Packed { 5 } else { 2 };
    assert_eq!((read.inputs.len(), read.outputs.len()), (inputs, 1), "{target:?}");
}

/// A user's own ONNX file, which may be an export with a BERT's weights.
fn graph(bytes: &[u8]) {
    if let Ok(read) = inspect(bytes) {
        assert!(read.inputs.iter().chain(&read.outputs).all(|port| port.name.len() <= bytes.len()));
    }
    if let Ok(weights) = onnx_to_safetensors(bytes) {
        let config = serde_json::json!({"model_type": "bert", "num_attention_heads": 1});
        let files = ModelFiles {
            family: Family::Bert,
            config: &config,
            weights: &weights,
            dense: Vec::new(),
        };
        let _ = read(&files);
    }
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
