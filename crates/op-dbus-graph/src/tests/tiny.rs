//! Made-up models of a few kilobytes, shaped like real ones.

use std::collections::BTreeMap;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::{
    DenseFiles, Dialect, Error, Family, Layout, ModelFiles, Pooling, Precision, Recipe, Target,
};

pub const HIDDEN: usize = 8;
pub const HEADS: usize = 2;
pub const INNER: usize = 12;
pub const LAYERS: usize = 2;
pub const VOCABULARY: usize = 11;
pub const POSITIONS: usize = 9;
pub const TOKEN_TYPES: usize = 2;

pub const FAMILIES: [Family; 2] = [Family::Bert, Family::Mpnet];

/// Tensors by name: shape and values.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn add(tensors: &mut Tensors, name: String, shape: &[usize]) {
    let count: usize = shape.iter().product();
    let first = tensors.len() as f32;
    let values = (0..count).map(|index| first + index as f32 / 1024.0).collect();
    tensors.insert(name, (shape.to_vec(), values));
}

fn add_layers(tensors: &mut Tensors, parts: [&str; 4], norm: &str) {
    for layer in 0..LAYERS {
        let name = |part: &str| format!("encoder.layer.{layer}.{part}");
        for part in parts {
            add(tensors, name(&format!("{part}.weight")), &[HIDDEN, HIDDEN]);
            add(tensors, name(&format!("{part}.bias")), &[HIDDEN]);
        }
        add(tensors, name("intermediate.dense.weight"), &[INNER, HIDDEN]);
        add(tensors, name("intermediate.dense.bias"), &[INNER]);
        add(tensors, name("output.dense.weight"), &[HIDDEN, INNER]);
        add(tensors, name("output.dense.bias"), &[HIDDEN]);
        for norm in [norm, "output.LayerNorm"] {
            add(tensors, name(&format!("{norm}.weight")), &[HIDDEN]);
            add(tensors, name(&format!("{norm}.bias")), &[HIDDEN]);
        }
    }
}

fn add_embeddings(tensors: &mut Tensors) {
    add(tensors, "embeddings.word_embeddings.weight".into(), &[VOCABULARY, HIDDEN]);
    add(tensors, "embeddings.position_embeddings.weight".into(), &[POSITIONS, HIDDEN]);
    add(tensors, "embeddings.LayerNorm.weight".into(), &[HIDDEN]);
    add(tensors, "embeddings.LayerNorm.bias".into(), &[HIDDEN]);
}

pub fn bert() -> Tensors {
    let mut tensors = Tensors::new();
    add_embeddings(&mut tensors);
    let types = [TOKEN_TYPES, HIDDEN];
    add(&mut tensors, "embeddings.token_type_embeddings.weight".into(), &types);
    let parts = ["query", "key", "value"].map(|part| format!("attention.self.{part}"));
    let [query, key, value] = &parts;
    let parts = [query, key, value, "attention.output.dense"];
    add_layers(&mut tensors, parts, "attention.output.LayerNorm");
    tensors
}

fn mpnet() -> Tensors {
    let mut tensors = Tensors::new();
    add_embeddings(&mut tensors);
    add(&mut tensors, "encoder.relative_attention_bias.weight".into(), &[32, HEADS]);
    let parts = ["attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"];
    add_layers(&mut tensors, parts, "attention.LayerNorm");
    tensors
}

fn config(family: Family) -> Value {
    let mut config = json!({
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": POSITIONS,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    });
    match family {
        Family::Bert => {
            config["model_type"] = json!("bert");
            config["type_vocab_size"] = json!(TOKEN_TYPES);
        }
        Family::Mpnet => {
            config["model_type"] = json!("mpnet");
            config["relative_attention_num_buckets"] = json!(32);
        }
    }
    config
}

pub fn recipe() -> Recipe {
    Recipe {
        pooling: Pooling::Mean,
        normalize: true,
        max_input_tokens: 5,
        target: Target {
            precision: Precision::F32,
            layout: Layout::Padded,
            dialect: Dialect::OnnxRuntime,
        },
    }
}

/// A model, and what is to be made of it.
#[derive(Clone)]
pub struct Tiny {
    pub family: Family,
    pub config: Value,
    pub tensors: Tensors,
    pub dense: Vec<(Value, Tensors)>,
    pub recipe: Recipe,
}

impl Tiny {
    pub fn new(family: Family) -> Self {
        let tensors = match family {
            Family::Bert => bert(),
            Family::Mpnet => mpnet(),
        };
        Self { family, config: config(family), tensors, dense: Vec::new(), recipe: recipe() }
    }

    /// One of each family.
    pub fn all() -> Vec<Self> {
        FAMILIES.into_iter().map(Self::new).collect()
    }

    pub fn compile(&self) -> Result<Vec<u8>, Error> {
        self.compile_weights(&safetensors(&self.tensors))
    }

    /// Compiles with other bytes in place of the tensors.
    pub fn compile_weights(&self, weights: &[u8]) -> Result<Vec<u8>, Error> {
        let dense: Vec<_> = self.dense.iter().map(|(config, t)| (config, safetensors(t))).collect();
        let dense = dense.iter().map(|(config, weights)| DenseFiles { config, weights }).collect();
        let files = ModelFiles { family: self.family, config: &self.config, weights, dense };
        crate::compile(&self.recipe, &files)
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub fn safetensors(tensors: &Tensors) -> Vec<u8> {
    let data: Vec<(&String, &[usize], Vec<u8>)> = tensors
        .iter()
        .map(|(name, (shape, values))| (name, shape.as_slice(), bytes(values)))
        .collect();
    let views = data.iter().map(|(name, shape, data)| {
        (name, TensorView::new(Dtype::F32, shape.to_vec(), data).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}
