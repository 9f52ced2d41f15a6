//! A user's own models: imported, served under their own name, and equal to their references.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use op_dbus_api::ErrorName;
use serde_json::{Value, json};

use crate::harness::bus::PrivateBus;
use crate::harness::client::refused;
use crate::harness::daemon::Setup;
use crate::harness::files::copy_folder;
use crate::harness::golden::{self, cosine, distance, floats};
use crate::harness::registry::tests;
use crate::harness::{Outcome, fixture};

tests! {
    bert_folders_match_their_references: [Bus, Runtime] => folders_match("bert"),
    mpnet_folders_match_their_references: [Bus, Runtime] => folders_match("mpnet"),
    folders_of_version_6_match_their_references: [Bus, Runtime],
    folders_without_modules_match_with_their_pooling: [Bus, Runtime],
    roberta_folders_match_their_references: [Bus, Runtime] => family_matches("roberta"),
    xlm_roberta_folders_match_their_references: [Bus, Runtime] => family_matches("xlm-roberta"),
    distilbert_folders_match_their_references: [Bus, Runtime] => family_matches("distilbert"),
    dense_modules_match_their_references: [Bus, Runtime],
    activations_of_dense_modules_match_their_references: [Bus, Runtime],
    an_own_graph_matches_its_references: [Bus, Runtime],
    an_imported_model_is_told_of: [Bus, Runtime],
    a_reload_takes_up_what_the_store_has_by_now: [Bus],
    a_new_worker_reads_as_much_of_a_text_as_the_one_before: [Bus] => limits_stay("native"),
    an_onnx_runtime_worker_reads_as_much_as_the_one_before: [Bus, Runtime] => limits_stay("ort"),
    what_is_not_supported_is_refused: [],
    a_model_that_was_never_imported: [Bus],
}

const POOLINGS: [&str; 3] = ["mean", "cls", "max"];

/// A store of a test's own, and the library that computes its graphs.
fn store() -> Outcome<Setup> {
    Ok(Setup::with_store()?.env("OP_DBUS_CPU_ENGINE", "ort"))
}

/// How sentence-transformers wrote a folder: since version 6 with other names in the same files.
#[derive(Clone, Copy, PartialEq)]
enum Format {
    Version5,
    Version6,
}

/// A copy of a tiny model with this pooling.
fn tiny(setup: &Setup, family: &str, pooling: &str, format: Format) -> Outcome<PathBuf> {
    let folder = setup.path(&format!("{family}-{pooling}"));
    copy_folder(&fixture(&format!("golden/tiny-{family}")), &folder)?;
    let config = folder.join("1_Pooling/config.json");
    if format == Format::Version6 {
        edit(&config, |config| config["pooling_mode"] = json!(pooling))?;
        return Ok(folder);
    }
    let modules = folder.join("modules.json");
    edit(&modules, |modules| {
        for kind in modules.as_array_mut().into_iter().flatten().map(|module| &mut module["type"]) {
            let class = kind.as_str().and_then(|kind| kind.rsplit('.').next()).unwrap_or_default();
            *kind = json!(format!("sentence_transformers.models.{class}"));
        }
    })?;
    edit(&config, |config| {
        *config = json!({
            "word_embedding_dimension": config["embedding_dimension"],
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": pooling == "max",
            "pooling_mode_mean_sqrt_len_tokens": pooling == "mean_sqrt_len_tokens",
        });
    })?;
    for dense in ["2_Dense", "3_Dense"].map(|dense| folder.join(dense)) {
        if dense.is_dir() {
            edit(&dense.join("config.json"), |config| {
                if let Some(keys) = config.as_object_mut() {
                    keys.retain(|key, _| !key.starts_with("module"));
                }
            })?;
        }
    }
    let lengths = json!({ "max_seq_length": 48, "do_lower_case": false });
    fs::write(folder.join("sentence_bert_config.json"), lengths.to_string())?;
    Ok(folder)
}

/// Lets the vectors be normalised by a module of its own.
fn normalise(folder: &Path) -> Outcome {
    edit(&folder.join("modules.json"), |modules| {
        let kind = "sentence_transformers.models.Normalize";
        let module = json!({ "idx": 2, "name": "2", "path": "2_Normalize", "type": kind });
        if let Some(modules) = modules.as_array_mut() {
            modules.push(module);
        }
    })
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) -> Outcome {
    let mut value = serde_json::from_str(&fs::read_to_string(path)?)?;
    change(&mut value);
    Ok(fs::write(path, value.to_string())?)
}

/// The vectors that a model served under `name` must have, whichever engine computes them from its weights.
async fn serves(setup: Setup, name: &str, reference: &str) -> Outcome {
    // What a CPU has chosen by itself may be coarser than the references.
    let setup = setup.env("OP_DBUS_PRECISION", "f32");
    let setup = serves_by("native", setup, name, reference).await?;
    serves_by("ort", setup, name, reference).await.map(drop)
}

/// The same of one engine; returns the setup.
async fn serves_by(engine: &str, setup: Setup, name: &str, reference: &str) -> Outcome<Setup> {
    let setup = setup.env("OP_DBUS_CPU_ENGINE", engine).env("OP_DBUS_MODEL", name);
    let (_bus, setup, daemon) = setup.alone().await?;
    assert_eq!(daemon.client().status::<String>("engine").await?, engine);
    assert_eq!(daemon.client().embedder.model().await?, name);
    let all: Value = serde_json::from_str(&fs::read_to_string(fixture("golden/tiny.json"))?)?;
    let references = all[reference].as_array().ok_or("no such reference")?;
    let found = daemon.client().vectors(&golden::plain_texts()?).await?;
    for (text, (found, expected)) in golden::texts()?.iter().zip(found.iter().zip(references)) {
        let expected = floats(expected).ok_or("a reference that is no vector")?;
        let (cosine, distance) = (cosine(found, &expected), distance(found, &expected));
        assert!(cosine >= 0.99999 && distance <= 1e-4, "{reference}, {}: {cosine}", text.name);
    }
    daemon.stop().await?;
    Ok(setup)
}

async fn folders_match(family: &str) -> Outcome {
    for pooling in POOLINGS {
        for suffix in ["", "-normalised"] {
            let setup = store()?;
            let folder = tiny(&setup, family, pooling, Format::Version5)?;
            if !suffix.is_empty() {
                normalise(&folder)?;
            }
            setup.import(&folder, &["--name", "own"]).await?.success()?;
            serves(setup, "own", &format!("{family}-{pooling}{suffix}")).await?;
        }
    }
    Ok(())
}

async fn folders_of_version_6_match_their_references() -> Outcome {
    for pooling in POOLINGS {
        let setup = store()?;
        let folder = tiny(&setup, "bert", pooling, Format::Version6)?;
        setup.import(&folder, &["--name", "own"]).await?.success()?;
        serves(setup, "own", &format!("bert-{pooling}")).await?;
    }
    Ok(())
}

/// What transformers saves by itself.
async fn folders_without_modules_match_with_their_pooling() -> Outcome {
    let setup = store()?;
    let folder = tiny(&setup, "bert", "mean", Format::Version6)?;
    for file in ["modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"] {
        fs::remove_file(folder.join(file))?;
    }
    fs::remove_dir_all(folder.join("1_Pooling"))?;
    let refusal = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
    assert!(refusal.stderr.contains("and no --pooling"), "{}", refusal.stderr);
    setup.import(&folder, &["--name", "own", "--pooling", "cls"]).await?.success()?;
    serves(setup, "own", "bert-cls").await
}

/// Vectors of a family's tiny model, in either format.
async fn family_matches(family: &str) -> Outcome {
    for (pooling, format) in [("mean", Format::Version5), ("cls", Format::Version6)] {
        let setup = store()?;
        let folder = tiny(&setup, family, pooling, format)?;
        setup.import(&folder, &["--name", "own"]).await?.success()?;
        serves(setup, "own", &format!("{family}-{pooling}")).await?;
    }
    Ok(())
}

async fn dense_modules_match_their_references() -> Outcome {
    for format in [Format::Version5, Format::Version6] {
        let setup = store()?.setting("expect_dimensions", "16");
        let folder = tiny(&setup, "dense", "mean", format)?;
        setup.import(&folder, &["--name", "own"]).await?.success()?;
        serves(setup, "own", "dense-normalised").await?;
    }
    Ok(())
}

async fn activations_of_dense_modules_match_their_references() -> Outcome {
    for class in ["Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU"] {
        let setup = store()?;
        let folder = tiny(&setup, "dense", "mean", Format::Version6)?;
        edit(&folder.join("modules.json"), |modules| {
            modules.as_array_mut().and_then(Vec::pop);
        })?;
        edit(&folder.join("3_Dense/config.json"), |config| {
            config["activation_function"] = json!(format!("torch.nn.modules.activation.{class}"));
        })?;
        setup.import(&folder, &["--name", "own"]).await?.success()?;
        serves(setup, "own", &format!("dense-{class}")).await?;
    }
    Ok(())
}

async fn an_own_graph_matches_its_references() -> Outcome {
    for pooling in POOLINGS {
        let setup = store()?.setting("cpu_engine", "ort");
        // Only what an exporter leaves: the graph and the tokenizer.
        let folder = setup.path("graph");
        fs::create_dir(&folder)?;
        fs::copy(fixture("golden/tiny-bert/onnx/model.onnx"), folder.join("model.onnx"))?;
        fs::copy(fixture("golden/tiny-bert/tokenizer.json"), folder.join("tokenizer.json"))?;
        let arguments = ["--name", "own", "--pooling", pooling, "--max-input-tokens", "48"];
        setup.import(&folder.join("model.onnx"), &arguments).await?.success()?;
        serves_by("ort", setup, "own", &format!("bert-{pooling}")).await?;
    }
    Ok(())
}

async fn an_imported_model_is_told_of() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = store()?;
    let folder = tiny(&setup, "bert", "mean", Format::Version5)?;
    edit(&folder.join("config_sentence_transformers.json"), |config| {
        config["prompts"] = json!({ "query": "query: ", "document": "" });
    })?;
    setup.import(&folder, &["--name", "own"]).await?.success()?;
    let setup = setup.setting("model", "own").setting("expect_dimensions", "24");
    let daemon = setup.ready(&bus).await?;
    let (embedder, manager) = (&daemon.client().embedder, &daemon.client().manager);
    assert_eq!(embedder.vector_level().await?, "");
    assert_eq!((embedder.dimensions().await?, embedder.max_input_tokens().await?), (24, 48));
    assert_eq!(manager.list_models().await?.len(), 1);
    // The model stands in place of a level's, so a change of level would have no effect.
    refused(manager.set_vector_level("low").await, ErrorName::Pinned)?;
    // Prompts are part of the text.
    let prompt =
        |name| crate::harness::client::Options::from([("prompt", zbus::Variant::from(name))]);
    let asked = daemon.client().packed(&["why?"], prompt("query")).await?;
    let plain = daemon.client().vectors(&["why?", "query: why?"]).await?;
    assert!(distance(&asked.vectors[0], &plain[1]) <= 1e-5);
    assert!(distance(&asked.vectors[0], &plain[0]) > 1e-2);
    assert_eq!(daemon.client().packed(&["why?"], prompt("document")).await?.vectors[0], plain[0]);
    daemon.stop().await?;
    // What is counted is what is embedded: the text with the prompt that it has by itself.
    edit(&folder.join("config_sentence_transformers.json"), |config| {
        config["default_prompt_name"] = json!("query");
    })?;
    setup.import(&folder, &["--name", "asks"]).await?.success()?;
    let setup = setup.setting("model", "asks");
    let daemon = setup.ready(&bus).await?;
    let embedder = &daemon.client().embedder;
    let counts = embedder.count_tokens(&["why?", "query: why?"]).await?;
    let plain = embedder.tokenize(&["query: why?"], prompt("document")).await?;
    assert_eq!(counts[0] as usize, plain[0].len());
    assert!(counts[1] > counts[0]);
    daemon.stop().await
}

async fn a_reload_takes_up_what_the_store_has_by_now() -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = Setup::sim()?.setting("cpu_engine", "native").setting("batch_tokens_max", "512");
    let setup = setup.setting("model", "own");
    let tiny = |pooling| tiny(&setup, "bert", pooling, Format::Version5);
    setup.import(&tiny("mean")?, &["--name", "own"]).await?.success()?;
    let daemon = setup.ready(&bus).await?;
    let client = daemon.client();
    let (mean, pids) = (client.vectors(&["a text"]).await?, daemon.workers().await?);
    client.manager.reload().await?;
    assert_eq!(daemon.workers().await?, pids, "nothing has changed");

    fs::remove_dir_all(setup.path("models/own"))?;
    setup.import(&tiny("cls")?, &["--name", "own"]).await?.success()?;
    client.manager.reload().await?;
    let first = client.vectors(&["a text"]).await?;
    assert_ne!(first, mean);

    fs::remove_dir_all(setup.path("models/own"))?;
    client.manager.reload().await?;
    assert_eq!(client.vectors(&["a text"]).await?, first);
    let told = daemon.process.stderr();
    assert_eq!(told.matches("serves from memory").count(), 1, "{told}");

    client.manager.unload().await?;
    client.manager.reload().await?;
    let told = daemon.process.stderr();
    assert_eq!(told.matches("serves from memory").count(), 1, "{told}");
    assert!(
        told.contains("own has no worker now, and can't be loaded again: own is not"),
        "{told}"
    );
    setup.import(&tiny("mean")?, &["--name", "own"]).await?.success()?;
    let message = refused(client.embedder.embed("a text").await, ErrorName::WorkerFailed)?;
    assert!(message.contains("under this name; reload or restart the service"), "{message}");
    client.manager.reload().await?;
    assert_eq!(client.vectors(&["a text"]).await?, mean);
    daemon.stop().await
}

/// The same weights with another limit are the same model to a worker, and the service goes on as it began.
async fn limits_stay(engine: &str) -> Outcome {
    let bus = PrivateBus::start().await?;
    let setup = store()?.env("OP_DBUS_CPU_ENGINE", engine).setting("batch_tokens_max", "512");
    let setup = setup.setting("workers_per_device", "1").setting("model", "own");
    let folder = tiny(&setup, "bert", "mean", Format::Version5)?;
    setup.import(&folder, &["--name", "own"]).await?.success()?;
    let daemon = setup.ready(&bus).await?;
    let (client, text) = (daemon.client(), "word ".repeat(30));
    let (before, pids) = (client.vectors(&[&text]).await?, daemon.workers().await?);

    fs::remove_dir_all(setup.path("models/own"))?;
    edit(&folder.join("sentence_bert_config.json"), |own| own["max_seq_length"] = json!(8))?;
    setup.import(&folder, &["--name", "own"]).await?.success()?;
    daemon.signal_workers(Signal::SIGKILL).await?;
    assert_eq!(client.vectors(&[&text]).await?, before);
    assert_ne!(daemon.workers().await?, pids);
    assert_eq!(client.embedder.max_input_tokens().await?, 48);

    client.manager.reload().await?;
    assert_eq!(client.embedder.max_input_tokens().await?, 8);
    assert_ne!(client.vectors(&[&text]).await?, before);
    daemon.stop().await
}

async fn what_is_not_supported_is_refused() -> Outcome {
    let setup = Setup::sim()?;
    let folder = tiny(&setup, "bert", "mean_sqrt_len_tokens", Format::Version5)?;
    let refusal = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
    assert!(refusal.stderr.contains("mean_sqrt_len"), "{}", refusal.stderr);
    assert!(refusal.stderr.contains("mean, cls and max"), "{}", refusal.stderr);

    let folder = tiny(&setup, "mpnet", "cls", Format::Version5)?;
    edit(&folder.join("config.json"), |config| config["model_type"] = json!("deberta-v2"))?;
    let refusal = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
    assert!(refusal.stderr.contains("deberta-v2") && refusal.stderr.contains("mpnet"));

    for flag in ["--dimensions", "--max-input-tokens"] {
        let refusal = setup.import(&folder, &["--name", "own", flag, "0"]).await?;
        assert_eq!(refusal.code, Some(2), "{}", refusal.stderr);
        assert!(refusal.stderr.contains(&format!("invalid value '0' for '{flag}")));
    }

    // What the service would refuse of a tokenizer is said here already.
    let folder = tiny(&setup, "xlm-roberta", "mean", Format::Version5)?;
    let endless =
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(1 << 20)});
    edit(&folder.join("tokenizer.json"), |tokenizer| tokenizer["normalizer"] = endless)?;
    let refusal = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
    let why = "its tokenizer.json can't be used: it asks for 1048576 bytes for one byte of a text";
    assert!(refusal.stderr.contains(why), "{}", refusal.stderr);
    // So it is of the weights.
    let folder = tiny(&setup, "distilbert", "mean", Format::Version5)?;
    edit(&folder.join("config.json"), |config| config["hidden_dim"] = json!(33))?;
    let refusal = setup.import(&folder, &["--name", "own"]).await?;
    assert_eq!(refusal.code, Some(1), "{}", refusal.stderr);
    let why =
        "the service could not load it: tensor transformer.layer.0.ffn.lin1.weight has the shape";
    assert!(refusal.stderr.contains(why), "{}", refusal.stderr);
    // A refused import leaves nothing behind.
    let kept: Vec<_> = setup.path("models").read_dir().into_iter().flatten().flatten().collect();
    let visible = |entry: &&fs::DirEntry| !entry.file_name().as_encoded_bytes().starts_with(b".");
    assert_eq!(kept.iter().filter(visible).count(), 0, "{kept:?}");
    Ok(())
}

async fn a_model_that_was_never_imported() -> Outcome {
    let setup = Setup::sim()?.setting("cpu_engine", "ort").env("OP_DBUS_MODEL", "nosuch");
    let message = setup.refusal(ErrorName::ModelNotInstalled).await?;
    assert!(message.contains("nosuch") && message.contains("import"), "{message}");
    Ok(())
}
