//! What sentence-transformers is told of the model before the pooling: how long a text may be, and what
//! would have it compute something else than the model's own files say.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config_files::{read, refuse};
use crate::place::Place;
use crate::{Error, tokenizer};

/// The names of the file, in the order in which sentence-transformers looks for it: once each family had
/// its own, and the first that is there counts.
const FILES: [&str; 7] = [
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
];

/// The name of the one that counts.
pub(crate) fn file(place: &Place) -> &'static str {
    FILES.into_iter().find(|file| place.has(file)).unwrap_or(FILES[0])
}

/// What is read of it. Since version 6 it says what is asked of the model and which of its outputs are
/// pooled as well.
#[derive(Deserialize, Default)]
pub(crate) struct Settings {
    #[serde(skip)]
    file: &'static str,
    pub(crate) max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
    #[serde(default)]
    transformer_task: Value,
    #[serde(default)]
    modality_config: Value,
    #[serde(default)]
    module_output_name: Value,
    #[serde(default)]
    processing_kwargs: Value,
    #[serde(default, alias = "config_kwargs")]
    config_args: Option<Map<String, Value>>,
    #[serde(default, alias = "processor_kwargs")]
    tokenizer_args: Option<Map<String, Value>>,
}

/// Reads them, and the tokenizer with them: both decide on the case of letters.
pub(crate) fn read_settings(place: &mut Place) -> Result<Settings, Error> {
    let lowers = tokenizer::check(place)?;
    let file = file(place);
    let settings = Settings { file, ..read(place, file)?.unwrap_or_default() };
    if settings.do_lower_case == Some(true) && !lowers {
        return Err(refuse(
            format!("{file} with do_lower_case, and a tokenizer.json that keeps the case"),
            "a tokenizer.json that itself does all that is done to the text",
        ));
    }
    Ok(settings)
}

impl Settings {
    /// Refuses what the vectors depend on and no other file of the model says.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let file = self.file;
        let vectors = json!({ "method": "forward", "method_output_name": "last_hidden_state" });
        for (key, found, usual) in [
            ("transformer_task", &self.transformer_task, json!("feature-extraction")),
            ("modality_config text", &self.modality_config["text"], vectors),
            ("module_output_name", &self.module_output_name, json!("token_embeddings")),
            ("processing_kwargs common", &self.processing_kwargs["common"], json!({})),
            ("processing_kwargs text", &self.processing_kwargs["text"], json!({})),
        ] {
            if !found.is_null() && *found != usual {
                return Err(refuse(format!("{file} with {key} {found}"), usual.to_string()));
            }
        }
        for (key, given) in
            [("config_args", &self.config_args), ("tokenizer_args", &self.tokenizer_args)]
        {
            let mut keys = given.iter().flat_map(Map::keys);
            // Code of the model's own is refused where it is named.
            if let Some(name) = keys.find(|name| *name != "trust_remote_code") {
                return Err(refuse(
                    format!("{file} with {name} in {key}"),
                    "all such settings in config.json and the tokenizer's own files",
                ));
            }
        }
        Ok(())
    }
}
