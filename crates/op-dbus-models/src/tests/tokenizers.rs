//! What a tokenizer is told beside its `tokenizer.json`: harmless where both say the same.

use serde_json::{Value, json};

use super::fixture::{self, Bench, Files, WORDS, around, refusal, set};

fn bert_normalizer(lowercase: bool, strip_accents: Option<bool>, chinese: bool) -> Value {
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": chinese,
        "strip_accents": strip_accents, "lowercase": lowercase,
    });
    let splitter = json!({ "type": "BertPreTokenizer" });
    json!({ "normalizer": normalizer, "pre_tokenizer": splitter, "post_processor": around(),
        "model": {} })
}

fn bytes(add_prefix_space: bool) -> Value {
    let splitter = json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space });
    json!({ "pre_tokenizer": splitter, "post_processor": around(), "model": {} })
}

/// A model of the type with this tokenizer and, unless it is null, this `tokenizer_config.json`.
fn model(model_type: &str, tokenizer: &Value, told: &Value) -> Files {
    let mut files = fixture::model(model_type);
    set(&mut files, "tokenizer.json", tokenizer);
    if !told.is_null() {
        set(&mut files, "tokenizer_config.json", told);
    }
    files
}

#[test]
fn what_agrees_with_tokenizer_json_is_taken() {
    let (cased, uncased) = (bert_normalizer(false, None, true), bert_normalizer(true, None, true));
    let generic = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": true, "strip_accents": true,
        "add_prefix_space": false, "truncation_side": "right",
    });
    let other = json!({ "tokenizer_class": "XLMRobertaTokenizer", "do_lower_case": true });
    let sequence = json!({ "normalizer": { "type": "Sequence", "normalizers": [] }, "model": {} });
    let (mut right, mut unclean) = (uncased.clone(), uncased.clone());
    unclean["normalizer"]["clean_text"] = json!(false);
    right["truncation"] = json!({ "direction": "Left" });
    let cases = [
        ("bert", &uncased, json!(null)),
        ("mpnet", &uncased, json!({ "tokenizer_class": "MPNetTokenizer", "strip_accents": true })),
        ("bert", &bert_normalizer(true, Some(true), true), json!({})),
        ("bert", &bert_normalizer(true, Some(false), true), json!({ "strip_accents": false })),
        ("bert", &cased, json!({ "do_lower_case": false, "strip_accents": false })),
        ("distilbert", &cased, json!({ "do_lower_case": false, "tokenize_chinese_chars": true })),
        ("bert", &cased, generic.clone()),
        ("bert", &cased, other),
        ("bert", &sequence, generic.clone()),
        ("bert", &unclean, generic.clone()),
        ("roberta", &bytes(false), json!(null)),
        ("roberta", &bytes(true), json!({ "add_prefix_space": true })),
        ("roberta", &bytes(true), generic),
        ("xlm-roberta", &bytes(true), json!(null)),
        ("bert", &right, json!({ "truncation_side": "right", "split_special_tokens": false })),
    ];
    for (model_type, tokenizer, told) in cases {
        let imported = Bench::new().import_files(&model(model_type, tokenizer, &told));
        assert!(imported.is_ok(), "{model_type} {tokenizer} {told}: {imported:?}");
    }
    // The class may be in config.json.
    let mut files = model("bert", &cased, &json!(null));
    let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
    config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
    set(&mut files, "config.json", &config);
    Bench::new().import_files(&files).unwrap();
}

#[test]
fn what_would_overrule_tokenizer_json_is_refused() {
    let (cased, uncased) = (bert_normalizer(false, None, true), bert_normalizer(true, None, true));
    let lower = "no do_lower_case in tokenizer_config.json, which for a BertTokenizer means true, and a \
                 tokenizer.json with lowercase false; supported: a tokenizer.json with lowercase true";
    let mut left = uncased.clone();
    left["truncation"] = json!({ "direction": "Left" });
    let (mut sequence, mut words) = (uncased.clone(), uncased.clone());
    sequence["normalizer"] = json!({ "type": "Sequence", "normalizers": [] });
    words["pre_tokenizer"] = json!({ "type": "Whitespace" });
    let mut unclean = uncased.clone();
    unclean["normalizer"]["clean_text"] = json!(false);
    let mut folded = bytes(false);
    folded["normalizer"] = json!({ "type": "NFKC" });
    let cases = [
        (
            "bert",
            &sequence,
            json!({ "do_lower_case": true }),
            "a tokenizer.json with the normalizer Sequence, in place of which a BertTokenizer puts \
             BertNormalizer; supported: BertNormalizer, or the tokenizer_class PreTrainedTokenizerFast",
        ),
        ("mpnet", &words, json!(null), "the pre_tokenizer Whitespace, in place of which a MPNet"),
        ("distilbert", &bytes(false), json!(null), "the normalizer none, in place of which"),
        ("bert", &unclean, json!(null), "clean_text false, in place of which a BertTokenizer puts"),
        ("mpnet", &unclean, json!({}), "puts clean_text true; supported: clean_text true, or the"),
        ("roberta", &folded, json!(null), "the normalizer NFKC, in place of which a Roberta"),
        ("roberta", &uncased, json!(null), "the pre_tokenizer BertPreTokenizer, in place of"),
        ("bert", &cased, json!(null), lower),
        ("distilbert", &cased, json!({ "tokenizer_class": "BertTokenizerFast" }), lower),
        ("mpnet", &cased, json!({}), "for a MPNetTokenizer means true"),
        ("bert", &cased, json!({ "do_lower_case": true }), "with do_lower_case true, and a"),
        (
            "bert",
            &uncased,
            json!({ "do_lower_case": false }),
            "or do_lower_case true in tokenizer_",
        ),
        ("bert", &uncased, json!({ "strip_accents": false }), "strip_accents false, and a"),
        (
            "bert",
            &cased,
            json!({ "do_lower_case": false, "strip_accents": true }),
            "with strip_accents true, and a tokenizer.json with strip_accents false",
        ),
        ("bert", &uncased, json!({ "tokenize_chinese_chars": false }), "handle_chinese_chars true"),
        ("roberta", &bytes(true), json!({}), "no add_prefix_space in tokenizer_config.json"),
        ("roberta", &bytes(false), json!({ "add_prefix_space": true }), "add_prefix_space false"),
        ("bert", &uncased, json!({ "truncation_side": "left" }), "with truncation_side left"),
        ("bert", &left, json!(null), "direction Left"),
        ("bert", &uncased, json!({ "split_special_tokens": true }), "split_special_tokens true"),
    ];
    for (model_type, tokenizer, told, expected) in cases {
        let message = refusal(&model(model_type, tokenizer, &told));
        assert!(message.contains(expected), "{tokenizer} {told}: {message}");
    }
}

#[test]
fn tokens_that_the_model_has_no_rows_for_are_refused() {
    let import = |vocab: Value, added: &[usize]| {
        let mut tokenizer = bert_normalizer(true, None, true);
        tokenizer["model"] = json!({ "type": "any", "vocab": vocab });
        tokenizer["added_tokens"] = added.iter().map(|id| json!({ "id": id })).collect();
        let files = model("bert", &tokenizer, &json!(null));
        Bench::new().import_files(&files).map_err(|e| e.to_string())
    };
    let last = WORDS - 1;
    import(json!({ "a": 0, "b": last }), &[last]).unwrap();
    import(json!(vec![json!(["a", -1.5]); WORDS]), &[]).unwrap();
    for (vocab, added) in [
        (json!({ "a": WORDS, "b": 0 }), vec![]),
        (json!(vec![json!(["a", -1.5]); WORDS + 1]), vec![]),
        (json!({ "a": 0 }), vec![1, WORDS]),
    ] {
        let message = import(vocab, &added).unwrap_err();
        let expected = format!("ids of tokens up to {WORDS}");
        assert!(message.contains(&expected) && message.contains("vocab_size"), "{message}");
    }
}

#[test]
fn added_tokens_are_counted_as_they_are_given_ids() {
    let import = |vocab: &Value, added: &[(usize, String)]| {
        let mut tokenizer = bert_normalizer(true, None, true);
        tokenizer["model"] = json!({ "type": "any", "vocab": vocab });
        let token = |(id, content): &(usize, String)| json!({ "id": id, "content": content });
        tokenizer["added_tokens"] = added.iter().map(token).collect();
        let files = model("bert", &tokenizer, &json!(null));
        Bench::new().import_files(&files).map_err(|e| e.to_string())
    };
    let ids: Value = (0..WORDS - 1).map(|id| (id.to_string(), json!(id))).collect();
    let ordered = (0..WORDS - 1).map(|id| json!([id.to_string(), -1.5])).collect();
    for vocab in [&ids, &ordered] {
        // Said to be where others are, those that are pieces and those that are not.
        let known = [(0, "1".to_owned()), (0, "<a>".into()), (0, "<a>".into()), (0, String::new())];
        import(vocab, &known).unwrap();
        let message = import(vocab, &[(0, "<a>".into()), (1, "<b>".into())]).unwrap_err();
        assert!(message.contains(&format!("ids of tokens up to {WORDS}")), "{message}");
    }
}

/// The post-processor of BERT's own files.
fn template(before: &str, behind: &str) -> Value {
    let special = |token: &str| json!({ "SpecialToken": { "id": token, "type_id": 0 } });
    let text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    json!({ "type": "TemplateProcessing", "single": [special(before), text, special(behind)] })
}

#[test]
fn special_tokens_that_would_be_others_are_refused() {
    let import = |processor: &Value, told: &Value| {
        let mut tokenizer = bert_normalizer(true, None, true);
        tokenizer["post_processor"] = processor.clone();
        Bench::new().import_files(&model("bert", &tokenizer, told)).map_err(|e| e.to_string())
    };
    let told = json!({ "cls_token": "[CLS]", "sep_token": { "content": "[SEP]" } });
    let bert = template("[CLS]", "[SEP]");
    let list = json!({ "type": "Sequence", "processors": [{ "type": "ByteLevel" }, bert] });
    let old = json!({ "type": "BertProcessing", "cls": ["[CLS]", 1], "sep": ["[SEP]", 2] });
    for same in [&bert, &list, &old] {
        import(same, &told).unwrap();
        import(same, &json!(null)).unwrap();
    }
    let mut one = bert.clone();
    one["single"].as_array_mut().unwrap().pop();
    for (other, kind) in [
        (json!(null), "none"),
        (json!({ "type": "ByteLevel" }), "ByteLevel"),
        (one, "TemplateProcessing"),
        (template("[CLS]", "[CLS]"), "TemplateProcessing"),
        (template("[SEP]", "[SEP]"), "TemplateProcessing"),
    ] {
        let message = import(&other, &told).unwrap_err();
        let expected = format!("the post_processor {kind}, in place of which a BertTokenizer puts");
        assert!(message.contains(&expected), "{message}");
        // Who reads the file as it is has no others.
        import(&other, &json!({ "tokenizer_class": "PreTrainedTokenizerFast" })).unwrap();
    }
}
