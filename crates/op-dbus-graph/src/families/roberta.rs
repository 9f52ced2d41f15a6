//! RoBERTa, and XLM-RoBERTa and CamemBERT, which are RoBERTa with other vocabularies.

use super::bert::{NAMES, TOKEN_TYPES};
use super::{Config, Reader};
use crate::Error;
use crate::encoder::Encoder;
use crate::weights::Weights;

/// Where `config.json` does not say it.
const PAD_TOKEN: usize = 1;

/// Reads a RoBERTa encoder: a BERT encoder whose positions are counted from one behind the number
/// of the padding token.
///
/// # Errors
/// Another architecture's configuration, or tensors that do not fit.
pub(super) fn read<'a>(config: &Config, weights: &Weights<'a>) -> Result<Encoder<'a>, Error> {
    config.expect_model_type(&["roberta", "xlm-roberta", "camembert"])?;
    let padding = config.pad_token_id.unwrap_or(PAD_TOKEN);
    let token_types = config.type_vocab_size.unwrap_or(TOKEN_TYPES);
    // CamemBERT's weights are named after RoBERTa as well.
    Reader::new(config, weights, "roberta.")?.encoder(&NAMES, Some(padding), token_types)
}
