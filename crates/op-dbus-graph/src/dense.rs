//! Dense modules: products that a pooled vector goes through.

use serde::Deserialize;

use crate::encoder::{Dense, DenseActivation, Encoder};
use crate::error::unsupported;
use crate::weights::Weights;
use crate::{DenseFiles, Error};

/// The name under which sentence-transformers passes a text's vector from module to module.
const SENTENCE: &str = "sentence_embedding";

/// What is read of a module's `config.json`. A key that is absent has the value which
/// sentence-transformers gives it.
#[derive(Deserialize)]
struct Config {
    in_features: usize,
    out_features: usize,
    #[serde(default = "with_bias")]
    bias: bool,
    #[serde(default = "tanh")]
    activation_function: String,
    module_input_name: Option<String>,
    module_output_name: Option<String>,
    #[serde(default)]
    use_residual: bool,
}

fn with_bias() -> bool {
    true
}

fn tanh() -> String {
    "torch.nn.modules.activation.Tanh".to_owned()
}

/// Adds the modules in `files` to `encoder`.
///
/// # Errors
/// Which module it is, and what is wrong with it: a configuration that is incomplete, does not fit
/// what comes before it or is not supported, or tensors that do not fit the configuration.
pub(crate) fn read<'a>(encoder: &mut Encoder<'a>, files: &[DenseFiles<'a>]) -> Result<(), Error> {
    for (index, files) in files.iter().enumerate() {
        let dense = module(files, encoder.dimensions());
        encoder.dense.push(dense.map_err(|error| of_module(index, error))?);
    }
    Ok(())
}

/// Looks at the configurations of modules alone, the first of which gets vectors of `width` numbers.
///
/// # Errors
/// Those of [`read`] that need no tensors.
pub(crate) fn check(configs: &[serde_json::Value], mut width: usize) -> Result<(), Error> {
    for (index, config) in configs.iter().enumerate() {
        let (config, _) = parse(config, width).map_err(|error| of_module(index, error))?;
        width = config.out_features;
    }
    Ok(())
}

fn of_module(index: usize, error: Error) -> Error {
    Error::Dense { number: index + 1, source: Box::new(error) }
}

fn module<'a>(files: &DenseFiles<'a>, inputs: usize) -> Result<Dense<'a>, Error> {
    let (config, activation) = parse(files.config, inputs)?;
    let weights = Weights::parse(files.weights)?;
    let outputs = config.out_features;
    let bias = config.bias.then(|| weights.tensor("linear.bias", &[outputs])).transpose()?;
    Ok(Dense { linear: weights.tensor("linear.weight", &[outputs, inputs])?, bias, activation })
}

fn parse(config: &serde_json::Value, inputs: usize) -> Result<(Config, DenseActivation), Error> {
    let config = Config::deserialize(config).map_err(Error::Config)?;
    let activation = config.check(inputs)?;
    Ok((config, activation))
}

impl Config {
    fn check(&self, inputs: usize) -> Result<DenseActivation, Error> {
        if self.in_features != inputs || inputs == 0 {
            let supported = format!("{inputs}, the width of the vectors that reach the module");
            return Err(unsupported("in_features", self.in_features, &supported));
        }
        if self.out_features == 0 {
            return Err(unsupported("out_features", 0, "at least 1"));
        }
        for (what, name) in [
            ("module_input_name", &self.module_input_name),
            ("module_output_name", &self.module_output_name),
        ] {
            if let Some(name) = name.as_deref().filter(|&name| name != SENTENCE) {
                return Err(unsupported(what, name, SENTENCE));
            }
        }
        if self.use_residual {
            return Err(unsupported("use_residual", true, "false"));
        }
        activation(&self.activation_function)
    }
}

/// The activation of this class: its name, with or without the module of `torch` that it is from.
fn activation(name: &str) -> Result<DenseActivation, Error> {
    let class = name.strip_prefix("torch.nn.").map(|rest| rest.rsplit('.').next().unwrap_or(rest));
    match class {
        Some("Identity") => Ok(DenseActivation::Identity),
        Some("Tanh") => Ok(DenseActivation::Tanh),
        Some("ReLU") => Ok(DenseActivation::Relu),
        Some("GELU") => Ok(DenseActivation::Gelu),
        Some("Sigmoid") => Ok(DenseActivation::Sigmoid),
        Some("SiLU") => Ok(DenseActivation::Silu),
        _ => Err(unsupported(
            "activation_function",
            name,
            "Identity, Tanh, ReLU, GELU, Sigmoid and SiLU of torch.nn",
        )),
    }
}
