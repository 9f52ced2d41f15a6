//! Our own kernels: which instruction set and precision, and where the weights come from.

use op_dbus_engine::{Backend, BackendError, Tokenizer};
use op_dbus_models::Model;
use op_dbus_native::{Isa, NativeBackend, Options, Precision, Source, calibration_texts};

use super::{Precision as Asked, Spec, failure, model};

/// Loads the model from its packed weights in the cache, or packs it.
pub fn load(spec: &Spec) -> Result<Box<dyn Backend>, BackendError> {
    let isa = isa(&spec.cpu_isa)?;
    let precision = precision(spec.precision, isa)?;
    let model = model::get(spec)?;
    let options = Options {
        cache_dir: spec.cache_dir.clone(),
        key: key(&model),
        isa,
        precision,
        threads: spec.threads,
        cpus: spec.cpus.clone(),
        length_max: model.max_input_tokens,
        pooling: model::pooling(&model),
        normalize: model.normalize,
        dimensions: model.dimensions,
        calibrate: spec.calibrate,
    };
    Ok(Box::new(NativeBackend::load(options, || source(&model, precision))?))
}

/// The instruction set of this name; whether this CPU has it, the backend says.
fn isa(name: &str) -> Result<Isa, BackendError> {
    if name == "auto" { Ok(Isa::best()) } else { name.parse().map_err(failure::unavailable) }
}

fn precision(asked: Option<Asked>, isa: Isa) -> Result<Precision, BackendError> {
    match asked {
        None => Ok(Precision::auto(isa)),
        Some(Asked::F32) => Ok(Precision::F32),
        Some(Asked::Bf16) => Ok(Precision::Bf16),
        Some(Asked::Int8) => Ok(Precision::Int8),
        Some(Asked::F16) => Err(failure::unavailable(
            "precision is f16, which the native engine does not compute in; set precision to auto, \
             f32, bf16 or int8, or cpu_engine to ort"
                .to_owned(),
        )),
    }
}

/// What decides the packed weights, beside instruction set and precision. The tokenizer and the limit are part
/// of it because calibration reads texts by them.
fn key(model: &Model) -> String {
    let mut key = format!("family {:?}\nlimit {}\n", model.family, model.max_input_tokens);
    for (what, path) in
        [("weights", model.weights()), ("config", model.config()), ("tokenizer", model.tokenizer())]
    {
        key.push_str(&format!("{what} {}\n", model.recorded_sha256(&path)));
    }
    for [config, weights] in model::dense_sha256(model) {
        key.push_str(&format!("dense {config} {weights}\n"));
    }
    key
}

/// The model's own files, for when there are no packed weights.
fn source(model: &Model, precision: Precision) -> Result<Source, BackendError> {
    let family = model::family(model).ok_or_else(|| {
        failure::unavailable(format!(
            "{} is an ONNX graph, which ONNX Runtime computes; set cpu_engine to ort",
            model.name
        ))
    })?;
    Ok(Source {
        family,
        config: model::read_json(model, &model.config())?,
        weights: model::read(model, &model.weights())?,
        dense: model::dense(model)?,
        calibration: match precision {
            Precision::Int8 => calibration(model)?,
            _ => Vec::new(),
        },
    })
}

/// Token ids of the texts that show which inputs of the model get large.
fn calibration(model: &Model) -> Result<Vec<Vec<i32>>, BackendError> {
    let path = model.tokenizer();
    let json = model::read(model, &path)?;
    let tokenizer = Tokenizer::from_bytes(&json, model.max_input_tokens)
        .map_err(|error| failure::corrupt(&path, &error))?;
    Ok(calibration_ids(&tokenizer))
}

fn calibration_ids(tokenizer: &Tokenizer) -> Vec<Vec<i32>> {
    // The texts are of many languages. What a model's vocabulary has no tokens for, nobody can send to it either.
    calibration_texts().filter_map(|text| tokenizer.ids(text).ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    #[test]
    fn halves_are_refused_with_what_has_them() {
        assert_eq!(precision(None, Isa::Portable), Ok(Precision::F32));
        let message = precision(Some(Asked::F16), Isa::Portable).unwrap_err().to_string();
        assert!(message.contains("f16") && message.contains("cpu_engine to ort"), "{message}");
    }

    #[test]
    fn instruction_sets_are_known_by_their_names() {
        assert_eq!(isa("portable"), Ok(Isa::Portable));
        assert_eq!(isa("auto"), Ok(Isa::best()));
        let message = isa("pentium").unwrap_err().to_string();
        assert!(message.contains("pentium"), "{message}");
    }

    #[test]
    fn a_text_that_the_vocabulary_has_no_tokens_for_is_left_out_of_the_calibration() {
        let letters = ('!'..='~').flat_map(|letter| [letter.to_string(), format!("##{letter}")]);
        let vocabulary: Map<String, Value> =
            letters.zip(0_u32..).map(|(letter, id)| (letter, id.into())).collect();
        let file = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordPiece", "vocab": vocabulary, "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        });
        let tokenizer = Tokenizer::from_bytes(file.to_string().as_bytes(), 256).unwrap();
        let known = calibration_texts().filter(|text| text.is_ascii()).count();
        assert_eq!(calibration_ids(&tokenizer).len(), known);
        assert!((1..calibration_texts().count()).contains(&known));
    }
}
