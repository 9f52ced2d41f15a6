//! Folders of other layouts: those of transformers, of old versions, and with weights in several files.

use std::fs;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
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

const INDEX: &str = "model.safetensors.index.json";
const NAMES: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// A file with these tensors, each a row of all its bytes.
fn part(tensors: &[(&str, Dtype, &[u8])]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, element, bytes)| {
        let length = bytes.len() * 8 / element.bitsize();
        (*name, TensorView::new(*element, vec![length], bytes).unwrap())
    });
    safetensors::serialize(views, None).unwrap()
}

/// A model with its weights in these files, of which the index says which has each tensor.
fn sharded(parts: [Vec<u8>; 2], listed: &[(&str, &str)]) -> Files {
    let mut files = fixture::model("bert");
    files.remove("model.safetensors");
    let listed: Value = listed.iter().map(|(tensor, file)| (*tensor, json!(file))).collect();
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": listed });
    set(&mut files, INDEX, &index);
    files.extend(NAMES.map(str::to_owned).into_iter().zip(parts));
    files
}

#[test]
fn weights_in_several_files_become_one() {
    let values = [1.5_f32, -2.0, 0.25];
    let floats: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let halves = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes());
    let (halves, ids) = (halves.collect::<Vec<u8>>(), [7_u8, 8, 9]);
    let one = part(&[("a", Dtype::F32, &floats), ("ids", Dtype::U8, &ids)]);
    let two = part(&[("b", Dtype::BF16, &halves), ("c", Dtype::F32, &floats)]);
    let listed = [("a", NAMES[0]), ("b", NAMES[1]), ("c", NAMES[1]), ("ids", NAMES[0])];
    let mut files = sharded([one, two], &listed);
    // Weights go before a graph, in whatever files they are.
    files.insert("onnx/model.onnx".into(), b"graph".to_vec());
    let bench = Bench::new();
    let model = bench.import_files(&files).unwrap();
    assert_eq!(model.family, Family::Bert);
    assert_eq!(bench.store.verify("mine").unwrap(), model);
    let found = fs::read(model.weights()).unwrap();
    let found = SafeTensors::deserialize(&found).unwrap();
    assert_eq!(found.len(), 4);
    for (name, element, bytes) in [
        ("a", Dtype::F32, &floats[..]),
        ("b", Dtype::F32, &floats[..]),
        ("c", Dtype::F32, &floats[..]),
        ("ids", Dtype::U8, &ids[..]),
    ] {
        let tensor = found.tensor(name).unwrap();
        assert_eq!((tensor.dtype(), tensor.data()), (element, bytes), "{name}");
    }
    let left = fixture::below(&model.dir);
    let left = left.iter().filter(|(path, ..)| path.extension().is_some_and(|it| it != "json"));
    assert_eq!(left.count(), 1);
    let archive = bench.path("model.zip");
    fs::write(&archive, fixture::zip(&files)).unwrap();
    assert_eq!(bench.import(&archive, "archived").unwrap().files, model.files);
    // One file of all goes before the others.
    let whole = fixture::weights(2, WIDTH);
    files.insert("model.safetensors".into(), whole.clone());
    bench.store.remove("mine").unwrap();
    assert_eq!(fs::read(bench.import_files(&files).unwrap().weights()).unwrap(), whole);
}

#[test]
fn an_index_that_its_files_contradict_is_refused() {
    let floats = [0_u8; 8];
    let of = |names: &[&str]| {
        part(&names.iter().map(|name| (*name, Dtype::F32, &floats[..])).collect::<Vec<_>>())
    };
    let parts = || [of(&["a"]), of(&["b", "c"])];
    let all = [("a", NAMES[0]), ("b", NAMES[1]), ("c", NAMES[1])];
    Bench::new().import_files(&sharded(parts(), &all)).unwrap();
    for name in ["../b.safetensors", "/b.safetensors", "x/b.safetensors", ".safetensors", "b.bin"] {
        let message = refusal(&sharded(parts(), &[all[0], all[1], ("c", name)]));
        assert!(message.contains(&format!("{INDEX} with the file `{name}`; supp")), "{message}");
    }
    let cases: [(&[(&str, &str)], String); 5] = [
        (&[], format!("{INDEX} without tensors")),
        (
            &[all[0], all[1], ("c", "c.safetensors")],
            format!("{INDEX} with the file c.safetensors,"),
        ),
        (&all[..2], format!("{} with the tensor c, of which {INDEX}", NAMES[1])),
        (&[all[0], all[1], ("c", NAMES[0])], format!("{} without the tensor c, of", NAMES[0])),
        (&[all[0], all[1], all[2], ("d", NAMES[1])], format!("{} without the tensor d", NAMES[1])),
    ];
    for (listed, expected) in cases {
        let message = refusal(&sharded(parts(), listed));
        assert!(message.contains(&expected), "{message}");
    }
    // A tensor in two files.
    let message = refusal(&sharded([of(&["a", "b"]), of(&["b", "c"])], &all));
    assert!(message.contains(&format!("{} with the tensor b, of", NAMES[0])), "{message}");
    let mut files = sharded(parts(), &all);
    files.get_mut(NAMES[1]).unwrap().pop();
    let message = refusal(&files);
    assert!(message.contains(&format!("a {} that is not a whole", NAMES[1])), "{message}");
    assert!(message.contains(&format!("an undamaged {}; fetch", NAMES[1])), "{message}");
}
