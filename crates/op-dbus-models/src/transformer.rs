//! What sentence-transformers is told of the model before the pooling: how long a text may be, and what
//! would have it compute something else than the model's own files say.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config_files::read;
use crate::error::refuse;
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
        let vectors = json!({ "method": "forward", "method_output_name": "last_hidden_state" });
        self.usual("transformer_task", &self.transformer_task, json!("feature-extraction"))?;
        self.usual("modality_config text", &self.modality_config["text"], vectors)?;
        self.usual("module_output_name", &self.module_output_name, json!("token_embeddings"))?;
        self.nothing_in("config_args", self.config_args.as_ref())?;
        self.check_tokens()
    }

    /// Refuses what the tokens of a text depend on and no file of the tokenizer says.
    pub(crate) fn check_tokens(&self) -> Result<(), Error> {
        for (key, kind) in
            [("processing_kwargs common", "common"), ("processing_kwargs text", "text")]
        {
            self.usual(key, &self.processing_kwargs[kind], json!({}))?;
        }
        self.nothing_in("tokenizer_args", self.tokenizer_args.as_ref())
    }

    fn usual(&self, key: &str, found: &Value, usual: Value) -> Result<(), Error> {
        if found.is_null() || *found == usual {
            return Ok(());
        }
        Err(refuse(format!("{} with {key} {found}", self.file), usual.to_string()))
    }

    fn nothing_in(&self, key: &str, given: Option<&Map<String, Value>>) -> Result<(), Error> {
        let mut keys = given.into_iter().flat_map(Map::keys);
        // Code of the model's own is refused where it is named.
        match keys.find(|name| *name != "trust_remote_code") {
            None => Ok(()),
            Some(name) => Err(refuse(
                format!("{} with {name} in {key}", self.file),
                "all such settings in config.json and the tokenizer's own files",
            )),
        }
    }
}
