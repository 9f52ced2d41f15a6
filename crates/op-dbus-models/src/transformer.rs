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
    /// All others.
    #[serde(flatten)]
    others: Map<String, Value>,
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

/// Arguments of the model's loading that no vector depends on.
const HOW_IT_IS_LOADED: [&str; 8] = [
    "add_pooling_layer",
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "torch_dtype",
    TRUST,
    "use_safetensors",
];
/// Code of the model's own is refused where it is named.
const TRUST: &str = "trust_remote_code";

impl Settings {
    /// Refuses what the vectors depend on and no other file of the model says.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let vectors = json!({ "method": "forward", "method_output_name": "last_hidden_state" });
        let said = |key: &str| self.others.get(key).unwrap_or(&Value::Null);
        self.usual("transformer_task", said("transformer_task"), json!("feature-extraction"))?;
        self.usual("modality_config text", &said("modality_config")["text"], vectors)?;
        let mut kinds = said("modality_config").as_object().into_iter().flat_map(Map::keys);
        if let Some(kind) = kinds.find(|kind| *kind != "text") {
            // With a message among them a text is put into a template first.
            let found = format!("{} with {kind} in modality_config", self.file);
            return Err(refuse(found, "text alone"));
        }
        self.usual("module_output_name", said("module_output_name"), json!("token_embeddings"))?;
        for key in ["config_args", "config_kwargs"] {
            self.nothing_in(key, &[TRUST])?;
        }
        for key in ["model_args", "model_kwargs"] {
            self.nothing_in(key, &HOW_IT_IS_LOADED)?;
            // Without them the weights are those of pytorch_model.bin, where it is there.
            let weights = &said(key)["use_safetensors"];
            self.usual(&format!("{key} use_safetensors"), weights, json!(true))?;
        }
        self.check_tokens()
    }

    /// Refuses what the tokens of a text depend on and no file of the tokenizer says.
    pub(crate) fn check_tokens(&self) -> Result<(), Error> {
        for kind in ["common", "text"] {
            let found = self.others.get("processing_kwargs").map_or(&Value::Null, |it| &it[kind]);
            self.usual(&format!("processing_kwargs {kind}"), found, json!({}))?;
        }
        // A tokenizer from elsewhere, and tokens of queries and documents that are others than those of texts.
        for key in ["tokenizer_name_or_path", "query_length", "document_length", "query_expansion"]
        {
            self.usual(key, self.others.get(key).unwrap_or(&Value::Null), Value::Null)?;
        }
        for key in ["tokenizer_args", "processor_kwargs"] {
            self.nothing_in(key, &[TRUST])?;
        }
        Ok(())
    }

    fn usual(&self, key: &str, found: &Value, usual: Value) -> Result<(), Error> {
        if found.is_null() || *found == usual {
            return Ok(());
        }
        Err(refuse(format!("{} with {key} {found}", self.file), usual.to_string()))
    }

    /// Refuses arguments under `key` that are not `harmless`.
    fn nothing_in(&self, key: &str, harmless: &[&str]) -> Result<(), Error> {
        let Some(given) = self.others.get(key).filter(|given| !given.is_null()) else {
            return Ok(());
        };
        let Some(given) = given.as_object() else {
            return Err(refuse(format!("{} with {key} {given}", self.file), "an object"));
        };
        match given.keys().find(|name| !harmless.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => Err(refuse(
                format!("{} with {name} in {key}", self.file),
                "all such settings in config.json and the tokenizer's own files",
            )),
        }
    }
}
