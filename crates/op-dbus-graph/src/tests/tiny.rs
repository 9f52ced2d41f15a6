//! Made-up models of a few kilobytes, shaped like real ones.

use std::collections::BTreeMap;

use prost::Message;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::onnx::{Graph, Model};
use crate::{DenseFiles, Dialect, Error, Family, ModelFiles, Pooling, Precision, Recipe, Target};

pub const HIDDEN: usize = 8;
pub const HEADS: usize = 2;
pub const INNER: usize = 12;
pub const LAYERS: usize = 2;
pub const VOCABULARY: usize = 11;
pub const POSITIONS: usize = 9;
pub const TOKEN_TYPES: usize = 2;

pub const FAMILIES: [Family; 4] =
    [Family::Bert, Family::Mpnet, Family::Roberta, Family::Distilbert];

/// Tensors by name: shape and values.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn add(tensors: &mut Tensors, name: String, shape: &[usize]) {
    let count: usize = shape.iter().product();
    let first = tensors.len() as f32;
    let values = (0..count).map(|index| first + index as f32 / 1024.0).collect();
    tensors.insert(name, (shape.to_vec(), values));
}

/// What a family calls the parts of a block: four square products, the norm behind them, two
/// products up and down, and the last norm.
struct Parts {
    layers: &'static str,
    square: [&'static str; 4],
    up_down: [&'static str; 2],
    norms: [&'static str; 2],
}

fn add_layers(tensors: &mut Tensors, parts: &Parts) {
    for layer in 0..LAYERS {
        let name = |part: &str, kind: &str| format!("{}.{layer}.{part}.{kind}", parts.layers);
        for part in parts.square {
            add(tensors, name(part, "weight"), &[HIDDEN, HIDDEN]);
            add(tensors, name(part, "bias"), &[HIDDEN]);
        }
        let [up, down] = parts.up_down;
        add(tensors, name(up, "weight"), &[INNER, HIDDEN]);
        add(tensors, name(up, "bias"), &[INNER]);
        add(tensors, name(down, "weight"), &[HIDDEN, INNER]);
        add(tensors, name(down, "bias"), &[HIDDEN]);
        for norm in parts.norms {
            add(tensors, name(norm, "weight"), &[HIDDEN]);
            add(tensors, name(norm, "bias"), &[HIDDEN]);
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
    bert_with(TOKEN_TYPES)
}

fn bert_with(token_types: usize) -> Tensors {
    let mut tensors = Tensors::new();
    add_embeddings(&mut tensors);
    let types = [token_types, HIDDEN];
    add(&mut tensors, "embeddings.token_type_embeddings.weight".into(), &types);
    let parts = Parts {
        layers: "encoder.layer",
        square: [
            "attention.self.query",
            "attention.self.key",
            "attention.self.value",
            "attention.output.dense",
        ],
        up_down: ["intermediate.dense", "output.dense"],
        norms: ["attention.output.LayerNorm", "output.LayerNorm"],
    };
    add_layers(&mut tensors, &parts);
    tensors
}

fn mpnet() -> Tensors {
    let mut tensors = Tensors::new();
    add_embeddings(&mut tensors);
    add(&mut tensors, "encoder.relative_attention_bias.weight".into(), &[32, HEADS]);
    let parts = Parts {
        layers: "encoder.layer",
        square: ["attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"],
        up_down: ["intermediate.dense", "output.dense"],
        norms: ["attention.LayerNorm", "output.LayerNorm"],
    };
    add_layers(&mut tensors, &parts);
    tensors
}

fn distilbert() -> Tensors {
    let mut tensors = Tensors::new();
    add_embeddings(&mut tensors);
    let parts = Parts {
        layers: "transformer.layer",
        square: ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"],
        up_down: ["ffn.lin1", "ffn.lin2"],
        norms: ["sa_layer_norm", "output_layer_norm"],
    };
    add_layers(&mut tensors, &parts);
    tensors
}

fn config(family: Family) -> Value {
    if family == Family::Distilbert {
        return json!({
            "model_type": "distilbert", "dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS,
            "hidden_dim": INNER, "vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS,
            "activation": "gelu", "sinusoidal_pos_embds": false,
        });
    }
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
    let own = match family {
        Family::Mpnet => json!({ "model_type": "mpnet", "relative_attention_num_buckets": 32 }),
        Family::Roberta => {
            json!({ "model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1 })
        }
        Family::Bert | Family::Distilbert => {
            json!({ "model_type": "bert", "type_vocab_size": TOKEN_TYPES })
        }
    };
    for (key, value) in own.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

pub fn recipe() -> Recipe {
    Recipe {
        pooling: Pooling::Mean,
        normalize: true,
        max_input_tokens: 5,
        target: Target { precision: Precision::F32, dialect: Dialect::OnnxRuntime },
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
            Family::Roberta => bert_with(1),
            Family::Distilbert => distilbert(),
        };
        Self { family, config: config(family), tensors, dense: Vec::new(), recipe: recipe() }
    }

    /// One of each family.
    pub fn all() -> Vec<Self> {
        FAMILIES.into_iter().map(Self::new).collect()
    }

    /// With Dense modules of these widths and activations, by the name of their `torch.nn` class.
    pub fn with_dense(mut self, modules: &[(usize, &str)]) -> Self {
        let mut inputs = HIDDEN;
        for &(outputs, class) in modules {
            let config = json!({
                "in_features": inputs, "out_features": outputs, "bias": true,
                "activation_function": format!("torch.nn.modules.activation.{class}"),
            });
            let mut tensors = Tensors::new();
            add(&mut tensors, "linear.weight".into(), &[outputs, inputs]);
            add(&mut tensors, "linear.bias".into(), &[outputs]);
            self.dense.push((config, tensors));
            inputs = outputs;
        }
        self
    }

    pub fn compile(&self) -> Result<Vec<u8>, Error> {
        self.compile_weights(&safetensors(&self.tensors))
    }

    /// The graph of what is compiled.
    pub fn graph(&self) -> Graph {
        Model::decode(&*self.compile().unwrap()).unwrap().graph.unwrap()
    }

    /// Compiles with other bytes in place of the tensors.
    pub fn compile_weights(&self, weights: &[u8]) -> Result<Vec<u8>, Error> {
        let dense: Vec<_> = self.dense.iter().map(|(_, tensors)| safetensors(tensors)).collect();
        self.compile_files(weights, &dense)
    }

    /// Compiles with other bytes in place of the only Dense module's tensors.
    pub fn compile_dense(&self, weights: &[u8]) -> Result<Vec<u8>, Error> {
        self.compile_files(&safetensors(&self.tensors), &[weights.to_vec()])
    }

    fn compile_files(&self, weights: &[u8], dense: &[Vec<u8>]) -> Result<Vec<u8>, Error> {
        let configs = self.dense.iter().map(|(config, _)| config);
        let dense =
            configs.zip(dense).map(|(config, weights)| DenseFiles { config, weights }).collect();
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
