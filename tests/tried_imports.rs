//! What an import tries before a model is installed, and what it says once one is.

use std::fs;

use serde_json::{Value, json};

use crate::harness::command::{clean, finish, in_own_mounts};
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::needs::op_dbus;
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture};

tests! {
    a_tokenizer_that_no_engine_starts_with_is_not_imported: [],
    a_configuration_that_no_engine_computes_is_refused_without_a_copy: [],
    an_import_that_is_done_is_not_called_failed: [Root],
}

/// What is said of a tiny model with this in one of its files, which is refused.
async fn refusal(model: &str, file: &str, (part, content): (&str, Value)) -> Outcome<String> {
    let setup = Setup::sim()?;
    let folder = setup.path("tiny");
    copy_folder(&fixture(model), &folder)?;
    let file = folder.join(file);
    let mut whole: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    whole[part] = content;
    fs::write(&file, whole.to_string())?;
    let refused = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(!setup.path("models/own").exists());
    Ok(refused.stderr)
}

async fn a_tokenizer_that_no_engine_starts_with_is_not_imported() -> Outcome {
    let (tiny, file) = ("golden/tiny-bert", "tokenizer.json");
    let unknown = json!({ "type": "WordLevel", "vocab": { "a": 0 }, "unk_token": "zz" });
    let said = refusal(tiny, file, ("model", unknown)).await?;
    assert!(
        said.contains("can't be used: the tokenizer can't tokenize a plain sentence"),
        "{said}"
    );
    // The library panics of these.
    let no_length = json!({ "type": "FixedLength", "length": 0 });
    let begin = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let no_token = json!({
        "type": "TemplateProcessing", "single": [begin, text], "pair": [], "special_tokens": {},
    });
    for (part, content) in [("pre_tokenizer", no_length), ("post_processor", no_token)] {
        let said = refusal(tiny, file, (part, content)).await?;
        assert!(said.contains("its tokenizer.json can't be used"), "{part}: {said}");
        assert!(!said.contains("panicked at"), "{part}: {said}");
    }
    Ok(())
}

/// Weights may be gigabytes.
async fn a_configuration_that_no_engine_computes_is_refused_without_a_copy() -> Outcome {
    for (file, part, content, why) in [
        ("config.json", "activation", json!("silu"), "load it: activation is silu"),
        ("3_Dense/config.json", "use_residual", json!(true), "Dense module 2: use_residual is"),
    ] {
        let said = refusal("golden/tiny-dense", file, (part, content)).await?;
        assert!(said.contains(why), "{file}: {said}");
        assert!(said.contains("folder: tokenizer.json ("), "{file}: {said}");
        assert!(!said.contains("folder: model.safetensors ("), "{file}: {said}");
    }
    Ok(())
}

/// What is left to remove then may not be removable.
async fn an_import_that_is_done_is_not_called_failed() -> Outcome {
    let setup = Setup::sim()?;
    let (store, left) = (setup.path("models"), setup.path("models/.partial/own"));
    fs::create_dir_all(&left)?;
    let mut import = clean(op_dbus());
    import.arg("models").arg("--model-dir").arg(&store).args(["import", "--name", "own"]);
    import.arg(fixture("golden/tiny-bert"));
    let mount = format!("mount -t tmpfs tmpfs {}; exec \"$@\"", left.display());
    let done = finish(in_own_mounts(&mount, &import), "").await?;
    let said = format!("own is installed, but cannot remove {}", left.display());
    assert!(done.stderr.contains(&said), "{}", done.stderr);
    assert!(done.success()?.contains("own: imported"));
    let mut verify = clean(op_dbus());
    verify.arg("models").arg("--model-dir").arg(&store).args(["verify", "own"]);
    finish(verify, "").await?.success().map(drop)
}
