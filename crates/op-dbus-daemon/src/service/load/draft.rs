//! What is known of a model before any worker runs, and whether it is what the settings ask for.

use std::collections::BTreeMap;

use op_dbus_engine::{BackendError, LoadErrorKind, ModelShape, Tokenizer, sim};
use op_dbus_models::{Family, Model, Store};

use super::SIM_MODEL;
use crate::service::Error;
use crate::service::served::Choice;
use crate::settings::Loaded;

const SIM_INPUT_TOKENS: usize = 256;
/// SHA-256 of "op-dbus simulated vectors 1": no model's space, and the same everywhere.
const SIM_SPACE: &str = "5947c198f843bc1ef8e81a3a20a93c51354f3324174e6cb8befab16e83d4b21d";

/// What is known of a model before any worker runs.
pub(super) struct Draft {
    pub(super) model: String,
    pub(super) space: String,
    pub(super) shape: ModelShape,
    pub(super) tokenizer: Tokenizer,
    pub(super) prompts: BTreeMap<String, String>,
    pub(super) default_prompt: Option<String>,
    /// What the store says of it.
    pub(super) record: Option<Model>,
}

impl Draft {
    /// The model's name, if it is an ONNX file of the user's own.
    pub(super) fn own_graph(&self) -> Option<&str> {
        let record = self.record.as_ref()?;
        (record.family == Family::Onnx).then_some(&record.name)
    }
}

/// The simulator, which needs nothing.
pub(super) fn simulated() -> Draft {
    Draft {
        model: SIM_MODEL.to_owned(),
        space: SIM_SPACE.to_owned(),
        shape: ModelShape {
            dimensions: sim::DIMENSIONS,
            max_input_tokens: SIM_INPUT_TOKENS,
            normalized: true,
            matryoshka: Vec::new(),
        },
        tokenizer: Tokenizer::bytes(SIM_INPUT_TOKENS),
        prompts: BTreeMap::new(),
        default_prompt: None,
        record: None,
    }
}

/// The model out of the store, compared with its digests.
pub(super) fn installed(choice: &Choice, loaded: &Loaded) -> Result<Draft, Error> {
    let settings = &loaded.settings;
    let model = Store::open(&settings.model_dir).get(choice.model());
    let model = model.map_err(|error| match loaded.not_found(choice.model(), &error) {
        Some(message) => {
            Error::from(BackendError::Load { kind: LoadErrorKind::ModelNotInstalled, message })
        }
        None => error.into(),
    })?;
    model.verify()?;
    let tokenizer = tokenizer(&model)?;
    let mut prompts = model.prompts.clone();
    let mut default_prompt = model.default_prompt.clone();
    if let Some(own) = settings.models.get(&model.name) {
        prompts.extend(own.prompts.clone());
        default_prompt = own.default_prompt.clone().or(default_prompt);
    }
    // Every call would be refused for it. What a model says of itself was checked by the store.
    if let Some(message) = loaded.missing_prompt(&model) {
        return Err(BackendError::Load { kind: LoadErrorKind::Other, message }.into());
    }
    Ok(Draft {
        space: model.vector_space(),
        shape: ModelShape {
            dimensions: model.dimensions,
            max_input_tokens: model.max_input_tokens,
            normalized: model.normalize,
            matryoshka: model.matryoshka.clone(),
        },
        model: model.name.clone(),
        tokenizer,
        prompts,
        default_prompt,
        record: Some(model),
    })
}

fn tokenizer(model: &Model) -> Result<Tokenizer, Error> {
    let json = model.read(&model.tokenizer())?;
    let name = || model.name.clone();
    Tokenizer::from_bytes(&json, model.max_input_tokens)
        .map_err(|source| Error::Tokenizer { model: name(), source })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use op_dbus_models::Error as ModelError;

    use super::*;
    use crate::settings::{Settings, Sources};

    /// The settings of one file, whose path is the second value.
    fn loaded(root: &tempfile::TempDir, text: &str) -> (Loaded, String) {
        let file = root.path().join("etc/op-dbus/config.toml");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        let loaded = Settings::load(&Sources::under(root.path())).unwrap();
        (loaded, file.display().to_string())
    }

    #[test]
    fn a_model_that_is_not_there_names_the_setting_and_its_place() {
        let root = tempfile::tempdir().unwrap();
        let (loaded, file) = loaded(&root, "model = \"nope\"\n");
        let refusal = |choice| installed(&choice, &loaded).map(drop).unwrap_err();
        let error = refusal(Choice::Imported("nope".to_owned()));
        let kind = LoadErrorKind::ModelNotInstalled;
        assert!(matches!(&error, Error::Backend(BackendError::Load { kind: k, .. }) if *k == kind));
        let message = error.to_string();
        assert!(message.starts_with(&format!("model is nope ({file}, line 1)")), "{message}");
        assert!(message.contains("op-dbus models import PATH --name nope"), "{message}");
        // A level's model is not one that `model` names.
        let level = refusal(Choice::Level(op_dbus_models::Level::Low));
        assert!(matches!(level, Error::Model(ModelError::NotInstalled { .. })), "{level}");
    }

    #[test]
    fn a_store_that_is_none_names_the_setting_and_its_place() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let dir = root.path().join("file/models").display().to_string();
        let (loaded, file) = loaded(&root, &format!("model_dir = \"{dir}\"\n"));
        let level = Choice::Level(op_dbus_models::Level::Low);
        for choice in [level, Choice::Imported("nope".to_owned())] {
            let error = installed(&choice, &loaded).map(drop).unwrap_err();
            assert!(error.is_of_missing_model(), "{error}");
            let told = format!("model_dir is {dir} ({file}, line 1), which is no folder, or lies ");
            assert!(error.to_string().starts_with(&told), "{error}");
        }
    }
}
