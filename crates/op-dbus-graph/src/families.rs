//! From a model's configuration and tensors to one description of its encoder.

mod bert;
mod distilbert;
mod mpnet;
mod roberta;

use serde::Deserialize;

use crate::encoder::{Activation, Encoder, Layer, Linear, Norm, Padding, Tensor};
use crate::error::unsupported;
use crate::weights::Weights;
use crate::{Error, Family};

/// Reads a model of `family`.
///
/// # Errors
/// A configuration that is incomplete or not supported, or tensors that do not fit it.
pub(crate) fn read<'a>(
    family: Family,
    config: &serde_json::Value,
    weights: &Weights<'a>,
) -> Result<Encoder<'a>, Error> {
    let config = parse(family, config)?;
    match family {
        Family::Bert => bert::read(&config, weights),
        Family::Mpnet => mpnet::read(&config, weights),
        Family::Roberta => roberta::read(&config, weights),
        Family::Distilbert => distilbert::read(&config, weights),
    }
}

/// Looks at the configuration of a model of `family` alone. Returns how many numbers a token's vector has.
///
/// # Errors
/// A configuration that is incomplete or not supported.
pub(crate) fn width(family: Family, config: &serde_json::Value) -> Result<usize, Error> {
    Ok(parse(family, config)?.hidden_size)
}

fn parse(family: Family, config: &serde_json::Value) -> Result<Config, Error> {
    let config = match family {
        Family::Distilbert => distilbert::config(config),
        Family::Bert | Family::Mpnet | Family::Roberta => Config::deserialize(config),
    };
    let config = config.map_err(Error::Config)?;
    config.check()?;
    Ok(config)
}

/// What the families need of `config.json`. An activation or an epsilon that is absent has the value
/// which transformers gives it in every family.
#[derive(Deserialize)]
struct Config {
    model_type: Option<String>,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    intermediate_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    type_vocab_size: Option<usize>,
    #[serde(default = "gelu")]
    hidden_act: String,
    #[serde(default = "epsilon")]
    layer_norm_eps: f32,
    position_embedding_type: Option<String>,
    is_decoder: Option<bool>,
    relative_attention_num_buckets: Option<usize>,
    pad_token_id: Option<usize>,
    /// What the model's own file calls some of them.
    #[serde(skip)]
    keys: Keys,
}

fn gelu() -> String {
    "gelu".to_owned()
}

fn epsilon() -> f32 {
    1e-12
}

/// Names of keys that errors speak of.
struct Keys {
    hidden: &'static str,
    heads: &'static str,
    layers: &'static str,
    inner: &'static str,
    activation: &'static str,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            hidden: "hidden_size",
            heads: "num_attention_heads",
            layers: "num_hidden_layers",
            inner: "intermediate_size",
            activation: "hidden_act",
        }
    }
}

impl Config {
    fn check(&self) -> Result<(), Error> {
        let (hidden, heads) = (self.hidden_size, self.num_attention_heads);
        if hidden == 0 || heads == 0 || !hidden.is_multiple_of(heads) {
            let Keys { hidden: hidden_key, heads: heads_key, .. } = self.keys;
            return Err(unsupported(
                heads_key,
                format!("{heads} with a {hidden_key} of {hidden}"),
                &format!("a number that divides {hidden_key}"),
            ));
        }
        // Beyond, the norms leave nothing of a text, or no numbers.
        if !(0.0..=1.0).contains(&self.layer_norm_eps) {
            return Err(unsupported("layer_norm_eps", self.layer_norm_eps, "0 to 1"));
        }
        let Keys { layers, inner, .. } = self.keys;
        let counts = [
            (layers, self.num_hidden_layers),
            (inner, self.intermediate_size),
            ("vocab_size", self.vocab_size),
        ];
        if let Some((key, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(unsupported(key, 0, "at least 1"));
        }
        if self.is_decoder == Some(true) {
            return Err(unsupported("is_decoder", true, "false"));
        }
        self.activation()?;
        match self.position_embedding_type.as_deref() {
            None | Some("absolute") => Ok(()),
            Some(found) => Err(unsupported("position_embedding_type", found, "absolute")),
        }
    }

    /// Refuses a configuration of another architecture.
    fn expect_model_type(&self, expected: &[&str]) -> Result<(), Error> {
        match self.model_type.as_deref() {
            Some(found) if !expected.contains(&found) => {
                Err(unsupported("model_type", found, &expected.join(", ")))
            }
            _ => Ok(()),
        }
    }

    fn activation(&self) -> Result<Activation, Error> {
        match self.hidden_act.as_str() {
            "gelu" | "gelu_python" => Ok(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
            "relu" => Ok(Activation::Relu),
            found => Err(unsupported(
                self.keys.activation,
                found,
                "gelu, gelu_python, gelu_new, gelu_pytorch_tanh, relu",
            )),
        }
    }
}

/// What a family calls the parts of a block.
struct LayerNames {
    /// What comes before a block's number.
    layers: &'static str,
    query: &'static str,
    key: &'static str,
    value: &'static str,
    output: &'static str,
    attention_norm: &'static str,
    up: &'static str,
    down: &'static str,
    output_norm: &'static str,
}

/// The table by which a prefix before all names is recognised.
const WORDS: &str = "embeddings.word_embeddings.weight";

/// Takes tensors out of the weights by the names and sizes of one model.
struct Reader<'r, 'a> {
    config: &'r Config,
    weights: &'r Weights<'a>,
    prefix: &'static str,
}

impl<'r, 'a> Reader<'r, 'a> {
    /// A reader that has found out whether this file puts `prefix` before its names.
    fn new(
        config: &'r Config,
        weights: &'r Weights<'a>,
        prefix: &'static str,
    ) -> Result<Self, Error> {
        let mut prefixes = [prefix, ""].into_iter();
        match prefixes.find(|prefix| weights.contains(&format!("{prefix}{WORDS}"))) {
            Some(prefix) => Ok(Self { config, weights, prefix }),
            None => Err(Error::MissingTensor { name: WORDS.to_owned() }),
        }
    }

    /// A tensor, which the file may have without the prefix as well: before version 5 transformers lets that be, and
    /// since then it may take either.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, Error> {
        let prefixed = format!("{}{name}", self.prefix);
        let tensor = self.weights.tensor(&prefixed, shape)?;
        let is_same = |other: Tensor<'_>| other.bytes() == tensor.bytes();
        let is_twice = !self.prefix.is_empty() && self.weights.contains(name);
        if is_twice && !self.weights.tensor(name, shape).is_ok_and(is_same) {
            return Err(Error::Twice { name: name.to_owned(), prefixed });
        }
        Ok(tensor)
    }

    fn table(&self, name: &str, rows: usize, columns: usize) -> Result<Tensor<'a>, Error> {
        self.tensor(name, &[rows, columns])
    }

    fn vector(&self, name: &str, length: usize) -> Result<Tensor<'a>, Error> {
        self.tensor(name, &[length])
    }

    fn linear(&self, name: &str, outputs: usize, inputs: usize) -> Result<Linear<'a>, Error> {
        Ok(Linear {
            weight: self.table(&format!("{name}.weight"), outputs, inputs)?,
            bias: self.vector(&format!("{name}.bias"), outputs)?,
        })
    }

    /// A norm, under its present names or those of checkpoints that came from TensorFlow.
    fn norm(&self, name: &str) -> Result<Norm<'a>, Error> {
        let old = self.weights.contains(&format!("{}{name}.gamma", self.prefix));
        let (scale, shift) = if old { ("gamma", "beta") } else { ("weight", "bias") };
        Ok(Norm {
            scale: self.vector(&format!("{name}.{scale}"), self.config.hidden_size)?,
            shift: self.vector(&format!("{name}.{shift}"), self.config.hidden_size)?,
        })
    }

    /// An encoder with this many token types and no relative positions. The token `padding`, where the
    /// family has one, is the number of its own row of the position table as well, and texts begin behind
    /// that.
    fn encoder(
        &self,
        names: &LayerNames,
        padding: Option<usize>,
        token_types: usize,
    ) -> Result<Encoder<'a>, Error> {
        let first_position = padding.map_or(0, |id| id.saturating_add(1));
        let Config { hidden_size: hidden, max_position_embeddings: positions, .. } = *self.config;
        if first_position >= positions {
            return Err(unsupported(
                "max_position_embeddings",
                positions,
                &format!("more than {first_position}, the row of a text's first token"),
            ));
        }
        let words = self.table(WORDS, self.config.vocab_size, hidden)?;
        let positions = self.table("embeddings.position_embeddings.weight", positions, hidden)?;
        let token_type = (token_types > 0)
            .then(|| self.table("embeddings.token_type_embeddings.weight", token_types, hidden))
            .transpose()?;
        Ok(Encoder {
            hidden,
            heads: self.config.num_attention_heads,
            epsilon: self.config.layer_norm_eps,
            activation: self.config.activation()?,
            words,
            positions: positions.skip_rows(first_position),
            padding: padding.map(|id| Padding { id, position: positions.only_row(id) }),
            token_type,
            embedding_norm: self.norm("embeddings.LayerNorm")?,
            layers: self.layers(names)?,
            relative_bias: None,
            dense: Vec::new(),
        })
    }

    fn layers(&self, names: &LayerNames) -> Result<Vec<Layer<'a>>, Error> {
        (0..self.config.num_hidden_layers).map(|index| self.layer(index, names)).collect()
    }

    fn layer(&self, index: usize, names: &LayerNames) -> Result<Layer<'a>, Error> {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let name = |part: &str| format!("{}.{index}.{part}", names.layers);
        Ok(Layer {
            query: self.linear(&name(names.query), hidden, hidden)?,
            key: self.linear(&name(names.key), hidden, hidden)?,
            value: self.linear(&name(names.value), hidden, hidden)?,
            output: self.linear(&name(names.output), hidden, hidden)?,
            attention_norm: self.norm(&name(names.attention_norm))?,
            up: self.linear(&name(names.up), inner, hidden)?,
            down: self.linear(&name(names.down), hidden, inner)?,
            output_norm: self.norm(&name(names.output_norm))?,
        })
    }
}
