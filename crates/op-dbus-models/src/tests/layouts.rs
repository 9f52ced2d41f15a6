//! Folders of other layouts: those of transformers, and of old versions.

use serde_json::{Value, json};

use super::fixture::{self, Bench, Files, Lines, WIDTH, modules, refusal, set};
use crate::config_files::PROMPTS;
use crate::{Family, ImportOptions, OnnxFacts, Pooling, Progress};

#[test]
fn a_folder_without_modules_is_taken_with_the_pooling_that_is_given() {
    let import = |files: &Files, bench: &Bench| {
        let source = tempfile::tempdir_in(bench.dir.path()).unwrap();
        fixture::write_folder(source.path(), files);
        let facts = OnnxFacts { dimensions: None, pooled: false, finished: false };
        bench.import_as(source.path(), "mine", facts, (Some(Pooling::Cls), None, None))
    };
    let (bench, mut files) = (Bench::new(), fixture::model("bert"));
    files.remove("modules.json");
    set(&mut files, "config_sentence_transformers.json", &json!({}));
    // Where there is one of these, more may have followed the pooling.
    let saved =
        ["1_Pooling/config.json", "config_sentence_transformers.json", "sentence_bert_config.json"];
    for (gone, file) in saved.iter().enumerate() {
        let there = saved[gone..].join(", ");
        let lost = format!("without modules.json, and with what is saved beside it ({there}); ");
        for told in [refusal(&files), import(&files, &bench).unwrap_err().to_string()] {
            assert!(told.contains(&lost), "{told}");
            assert!(told.ends_with("without those files and with --pooling"), "{told}");
        }
        files.remove(*file);
    }
    let message = refusal(&files);
    assert!(message.contains("without modules.json, and no --pooling; supported: "), "{message}");
    let model = import(&files, &bench).unwrap();
    assert_eq!((model.family, model.pooling, model.normalize), (Family::Bert, Pooling::Cls, false));
    assert_eq!((model.dimensions, model.max_input_tokens), (WIDTH, 34));
    assert_eq!(bench.store.verify("mine").unwrap(), model);
}

#[test]
fn a_transformer_in_a_folder_of_its_own_is_named() {
    for folder in ["0_Transformer", "0_BERT", ".."] {
        let mut files = fixture::model("bert");
        let mut listed = modules(&["Transformer", "Pooling", "Normalize"]);
        listed[0]["path"] = json!(folder);
        set(&mut files, "modules.json", &listed);
        let message = refusal(&files);
        let expected = format!("modules.json with the Transformer in the folder `{folder}`;");
        assert!(message.contains(&expected), "{message}");
        assert!(message.contains("model.save_pretrained(path)"), "{message}");
    }
}

#[test]
fn a_pooling_without_prompts_is_taken_where_there_are_none() {
    let mut files = fixture::model("bert");
    let unprompted = json!({ "pooling_mode": "cls", "include_prompt": false });
    set(&mut files, "1_Pooling/config.json", &unprompted);
    Bench::new().import_files(&files).unwrap();
    let prompts = |query: &str| json!({ "prompts": { "query": query, "document": "" } });
    set(&mut files, PROMPTS, &prompts(""));
    Bench::new().import_files(&files).unwrap();
    set(&mut files, PROMPTS, &prompts("query: "));
    let message = refusal(&files);
    let told = format!("1_Pooling/config.json with include_prompt false, and prompts in {PROMPTS}");
    assert!(message.contains(&told), "{message}");
}

#[test]
fn the_mean_is_what_a_pooling_is_that_does_not_say() {
    let mut files = fixture::model("bert");
    for silent in [json!({}), json!({ "pooling_mode_cls_token": false })] {
        set(&mut files, "1_Pooling/config.json", &silent);
        assert_eq!(Bench::new().import_files(&files).unwrap().pooling, Pooling::Mean, "{silent}");
    }
    // Beside another mode the versions of sentence-transformers differ, but not where one is named.
    let mut one = json!({ "pooling_mode_cls_token": true });
    set(&mut files, "1_Pooling/config.json", &one);
    let message = refusal(&files);
    let told = "the pooling mode cls_token and mean_tokens, which is not said to be off; ";
    assert!(message.contains(told), "{message}");
    one["pooling_mode"] = json!("cls");
    set(&mut files, "1_Pooling/config.json", &one);
    assert_eq!(Bench::new().import_files(&files).unwrap().pooling, Pooling::Cls);
}

#[test]
fn that_vectors_were_made_to_be_compared_otherwise_is_told() {
    let told = |similarity: &Value, kinds: &[&str]| {
        let (bench, lines) = (Bench::new(), Lines::default());
        let (source, mut files) = (bench.path("source"), fixture::model("bert"));
        set(&mut files, PROMPTS, &json!({ "similarity_fn_name": similarity }));
        set(&mut files, "modules.json", &modules(kinds));
        fixture::write_folder(&source, &files);
        let options = ImportOptions {
            inspect: &|_| Err("nobody asks".into()),
            tokenizer: &|_, _| Ok(()),
            model: &|_| Ok(()),
            progress: &Progress::lines(lines.clone()),
            pooling: None,
            dimensions: None,
            max_input_tokens: None,
        };
        bench.store.import(&source, "mine", &options).unwrap();
        let told = lines.text();
        told.lines().find(|line| line.contains("similarity_fn_name")).map(str::to_owned)
    };
    let (plain, whole) =
        (&["Transformer", "Pooling"][..], &["Transformer", "Pooling", "Normalize"][..]);
    let line = |name| {
        format!("mine: {PROMPTS} says similarity_fn_name {name}; here texts are ranked by cosine")
    };
    assert_eq!(told(&json!("dot"), plain), Some(line("dot")));
    assert_eq!(told(&json!("euclidean"), whole), Some(line("euclidean")));
    // Of vectors of length 1 that is the same.
    assert_eq!(told(&json!("dot"), whole), None);
    for usual in [json!("cosine"), json!(null)] {
        assert_eq!(told(&usual, plain), None, "{usual}");
    }
}
