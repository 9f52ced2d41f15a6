//! Tokens that are named beside the vocabulary: special ones by their ids, and those that were added to it.

use serde_json::{Value, json};

use super::fixture::{self, Bench, WORDS, refusal, set};

/// A tokenizer that puts the tokens of these ids around a text.
fn tokenizer(cls: &Value, sep: &Value) -> Value {
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    let mut tokenizer = fixture::tokenizer("bert");
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [special("[CLS]"), text, special("[SEP]")],
        "special_tokens": { "[CLS]": { "ids": cls }, "[SEP]": { "ids": sep } },
    });
    tokenizer
}

#[test]
fn special_tokens_have_the_ids_of_the_vocabulary() {
    let import = |tokenizer: &Value, class: &str| {
        let mut files = fixture::model("bert");
        set(&mut files, "tokenizer.json", tokenizer);
        set(&mut files, "tokenizer_config.json", &json!({ "tokenizer_class": class }));
        Bench::new().import_files(&files).map(drop).map_err(|error| error.to_string())
    };
    let (bert, whole) = ("BertTokenizer", "PreTrainedTokenizerFast");
    let vocab = json!({ "[CLS]": 2, "[SEP]": 3 });
    let ordered = json!([["a", 0.0], ["b", 0.0], ["[CLS]", 0.0]]);
    let added = json!([{ "id": 3, "content": "[SEP]" }]);
    // In place of the ids of the template.
    let pair = json!({ "type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 7] });
    for (vocab, added) in [(&vocab, &json!([])), (&ordered, &added)] {
        let mut right = tokenizer(&json!([2]), &json!([3]));
        right["model"]["vocab"] = vocab.clone();
        right["added_tokens"] = added.clone();
        import(&right, bert).unwrap();
        let (mut first, mut last, mut more) = (right.clone(), right.clone(), right);
        first["post_processor"]["special_tokens"]["[CLS]"]["ids"] = json!([7]);
        last["post_processor"] = pair.clone();
        more["post_processor"]["special_tokens"]["[SEP]"]["ids"] = json!([3, 3]);
        for (other, expected) in [
            (first, "the id [7] of [CLS] in its post_processor, in place of which a BertToken"),
            (last, "the id 7 of [SEP] in its post_processor, in place of which a BertTokenize"),
            (more, "the id [3,3] of [SEP] in its post_processor, in place of which a BertToke"),
        ] {
            let message = import(&other, bert).unwrap_err();
            assert!(message.contains(expected), "{message}");
            import(&other, whole).unwrap();
        }
    }
    // Of these nobody says another.
    import(&tokenizer(&json!([7]), &json!([8])), bert).unwrap();
}

#[test]
fn tokens_that_would_be_added_are_refused() {
    let (settings, specials, old) =
        ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json");
    let cases = [
        (old, json!({ "hello": 5 }), ""),
        (
            settings,
            json!({ "added_tokens_decoder": { "5": { "content": "hello" } } }),
            " in added_tokens_decoder",
        ),
        (
            settings,
            json!({ "additional_special_tokens": ["hello"] }),
            " in additional_special_tokens",
        ),
        (
            specials,
            json!({ "additional_special_tokens": [{ "content": "hello" }] }),
            " in additional_special_tokens",
        ),
        (settings, json!({ "extra_special_tokens": ["hello"] }), " in extra_special_tokens"),
        (settings, json!({ "extra_special_tokens": { "a": "hello" } }), " in extra_special_tokens"),
    ];
    for (file, named, key) in cases {
        let mut files = fixture::model("bert");
        set(&mut files, file, &named);
        let message = refusal(&files);
        let expected = format!("{file} with the token `hello`{key}, which tokenizer.json lacks; ");
        assert!(message.contains(&expected), "{message}");
        let mut tokenizer = fixture::tokenizer("bert");
        tokenizer["added_tokens"] = json!([{ "id": 5, "content": "hello" }]);
        set(&mut files, "tokenizer.json", &tokenizer);
        Bench::new().import_files(&files).unwrap();
        // A piece of that id.
        tokenizer["added_tokens"] = json!([]);
        tokenizer["model"]["vocab"] = json!({ "hello": 5 });
        set(&mut files, "tokenizer.json", &tokenizer);
        Bench::new().import_files(&files).unwrap();
    }
    let mut files = fixture::model("bert");
    let mut tokenizer = fixture::tokenizer("bert");
    tokenizer["model"]["vocab"] = json!({ "hello": 4 });
    set(&mut files, "tokenizer.json", &tokenizer);
    set(&mut files, old, &json!({ "hello": 5 }));
    assert!(refusal(&files).contains("`hello`"));
    // Nobody looks there where the settings have a list of their own, nor is any of this one.
    let told = json!({ "added_tokens_decoder": {}, "pad_token": "<pad>" });
    set(&mut files, settings, &told);
    Bench::new().import_files(&files).unwrap();
}

/// Imports one of this type with an added token of this id, and a vocabulary of one piece.
fn import_with(model_type: &str, (id, token): (usize, &str), told: &Value) -> Result<(), String> {
    let mut files = fixture::model(model_type);
    let mut tokenizer = fixture::tokenizer(model_type);
    tokenizer["model"]["vocab"] = json!({ "piece": 3 });
    tokenizer["added_tokens"] = json!([{ "id": id, "content": token }]);
    set(&mut files, "tokenizer.json", &tokenizer);
    set(&mut files, "tokenizer_config.json", told);
    Bench::new().import_files(&files).map(drop).map_err(|error| error.to_string())
}

/// Since version 5 of transformers.
#[test]
fn tokens_that_would_be_left_out_are_refused() {
    let class = "BertTokenizer";
    let import = |token: &str, told: Value| import_with("bert", (5, token), &told);
    let message = import("hello", json!({ "added_tokens_decoder": {} })).unwrap_err();
    let expected = format!(
        "tokenizer.json with the token `hello`, which tokenizer_config.json lacks in \
         added_tokens_decoder, where a {class} has them from; "
    );
    assert!(message.contains(&expected), "{message}");
    for (token, told) in [
        ("hello", json!({ "tokenizer_class": class })),
        ("hello", json!({ "added_tokens_decoder": { "5": { "content": "hello" } } })),
        ("hello", json!({ "added_tokens_decoder": {}, "mask_token": { "content": "hello" } })),
        ("hello", json!({ "added_tokens_decoder": {}, "additional_special_tokens": ["hello"] })),
        ("piece", json!({ "added_tokens_decoder": {} })),
    ] {
        assert_eq!(import(token, told.clone()), Ok(()), "{token} {told}");
    }
    let whole = json!({ "added_tokens_decoder": {}, "tokenizer_class": "PreTrainedTokenizerFast" });
    assert_eq!(import("hello", whole), Ok(()));
}

/// As transformers saves CamemBERT's since 4.34: the class adds tokens that no model has a row for.
#[test]
fn tokens_that_are_not_used_need_no_rows() {
    let import = |token: &str, told: Value| import_with("camembert", (WORDS, token), &told);
    let unused = "<unk>NOTUSED";
    let told = json!({
        "tokenizer_class": "CamembertTokenizerFast",
        "added_tokens_decoder": { WORDS.to_string(): { "content": unused } },
        "additional_special_tokens": ["<s>NOTUSED", "</s>NOTUSED", unused],
    });
    import(unused, told).unwrap();
    import(unused, json!({})).unwrap();
    let whole = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    for (token, told) in [("<unk>", json!({})), (unused, whole)] {
        let message = import(token, told).unwrap_err();
        assert!(message.contains(&format!("ids of tokens up to {WORDS}")), "{message}");
    }
}
