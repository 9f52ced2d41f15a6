//! How a model's token vectors become one, as its pooling module says.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::refuse;
use crate::{Error, Pooling};

#[derive(Deserialize)]
pub(crate) struct PoolingConfig {
    #[serde(alias = "embedding_dimension")]
    pub(crate) word_embedding_dimension: Option<usize>,
    include_prompt: Option<bool>,
    /// Since version 6 the mode by name; before, one switch a mode.
    pooling_mode: Option<Value>,
    #[serde(flatten)]
    modes: BTreeMap<String, Value>,
}

impl PoolingConfig {
    /// Its `file`, where it says that the tokens of a prompt are not pooled.
    pub(crate) fn unprompted<'a>(&self, file: &'a str) -> Option<&'a str> {
        (self.include_prompt == Some(false)).then_some(file)
    }
}

/// The pooling of a model whose vectors have so many `dimensions`, by `file`.
pub(crate) fn read_pooling(
    pooling: &PoolingConfig,
    file: &str,
    dimensions: usize,
) -> Result<Pooling, Error> {
    if pooling.word_embedding_dimension.is_some_and(|width| width != dimensions) {
        return Err(refuse(
            format!("{file} with {:?} dimensions", pooling.word_embedding_dimension.unwrap_or(0)),
            format!("the model's own {dimensions}"),
        ));
    }
    let modes = modes(pooling);
    match (done_pooling(pooling), modes.as_slice()) {
        (Some(known), _) => Ok(known),
        (None, []) => {
            Err(refuse(format!("{file} with no pooling mode"), "one of mean, cls and max"))
        }
        (None, others) => Err(refuse(
            format!("{file} with the pooling mode {}", others.join(" and ")),
            "one of mean, cls and max",
        )),
    }
}

/// As [`read_pooling`], beside a graph that has pooled already: width and mode are those of what is in it. The mode, if
/// it is one of ours, is no more than part of the record.
pub(crate) fn done_pooling(pooling: &PoolingConfig) -> Option<Pooling> {
    match modes(pooling).as_slice() {
        ["mean" | "mean_tokens" | MEAN_UNSAID] => Some(Pooling::Mean),
        ["cls" | "cls_token"] => Some(Pooling::Cls),
        ["max" | "max_tokens"] => Some(Pooling::Max),
        _ => None,
    }
}

/// The mode that is on where its switch is not there. Beside another that is so in version 5 alone, and since version 6
/// it is off: either may be meant.
const MEAN_UNSAID: &str = "mean_tokens, which is not said to be off";

/// The names of the pooling modes that are on, in either form. One by name goes before all switches.
fn modes(pooling: &PoolingConfig) -> Vec<&str> {
    match &pooling.pooling_mode {
        Some(Value::String(mode)) => vec![mode],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).collect(),
        _ => {
            let on = pooling.modes.iter().filter(|(_, value)| **value == Value::Bool(true));
            let on = on.filter_map(|(name, _)| name.strip_prefix("pooling_mode_"));
            let is_said = pooling.modes.contains_key("pooling_mode_mean_tokens");
            on.chain((!is_said).then_some(MEAN_UNSAID)).collect()
        }
    }
}
