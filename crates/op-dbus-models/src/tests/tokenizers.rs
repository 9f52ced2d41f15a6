//! What a tokenizer is told beside its `tokenizer.json`: harmless where both say the same.

use serde_json::{Value, json};

use super::fixture::{self, Bench, Files, WORDS, around, refusal, set};

fn bert_normalizer(lowercase: bool, strip_accents: Option<bool>, chinese: bool) -> Value {
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": chinese,
        "strip_accents": strip_accents, "lowercase": lowercase,
    });
    let splitter = json!({ "type": "BertPreTokenizer" });
    json!({ "normalizer": normalizer, "pre_tokenizer": splitter,
        "post_processor": around("[CLS]", "[SEP]"), "model": {} })
}

fn bytes(add_prefix_space: bool) -> Value {
    let splitter = json!({ "type": "ByteLevel", "add_prefix_space": add_prefix_space });
    json!({ "pre_tokenizer": splitter, "post_processor": around("<s>", "</s>"), "model": {} })
}

/// A model of the type with this tokenizer, which has MPNet's special tokens for that, and, unless it is null, this
/// `tokenizer_config.json`.
fn model(model_type: &str, tokenizer: &Value, told: &Value) -> Files {
    let mut files = fixture::model(model_type);
    let mut tokenizer = tokenizer.clone();
    if model_type == "mpnet" {
        tokenizer["post_processor"] = around("<s>", "</s>");
    }
    set(&mut files, "tokenizer.json", &tokenizer);
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
    let squeezed = json!({ "tokenizer_class": "SqueezeBertTokenizer" });
    let sequence = json!({ "normalizer": { "type": "Sequence", "normalizers": [] }, "model": {} });
    let (mut right, mut unclean) = (uncased.clone(), uncased.clone());
    unclean["normalizer"]["clean_text"] = json!(false);
    right["truncation"] = json!({ "direction": "Left" });
    let cases = [
        ("bert", &uncased, json!(null)),
        ("bert", &uncased, squeezed),
        ("mpnet", &uncased, json!({ "tokenizer_class": "MPNetTokenizer", "strip_accents": true })),
        ("bert", &bert_normalizer(true, Some(true), true), json!({})),
        ("bert", &bert_normalizer(true, Some(false), true), json!({ "strip_accents": false })),
        ("bert", &cased, json!({ "do_lower_case": false, "strip_accents": false })),
        ("distilbert", &cased, json!({ "do_lower_case": false, "tokenize_chinese_chars": true })),
        ("bert", &cased, generic.clone()),
        ("bert", &sequence, generic.clone()),
        ("bert", &unclean, generic.clone()),
        ("roberta", &bytes(false), json!(null)),
        ("roberta", &bytes(true), json!({ "add_prefix_space": true })),
        ("roberta", &bytes(false), generic),
        ("bert", &right, json!({ "truncation_side": "right", "split_special_tokens": false })),
        ("bert", &uncased, json!({ "fast_tokenizer_files": ["tokenizer.json"] })),
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

/// Some have the rules of others, and of some nobody knows them here.
#[test]
fn classes_by_other_names_are_compared_too() {
    let cased = bert_normalizer(false, None, true);
    for (model_type, tokenizer, class, expected) in [
        (
            "bert",
            &cased,
            "DPRQuestionEncoderTokenizerFast",
            "which for a DPRQuestionEncoderTokenizer means true",
        ),
        ("bert", &cased, "SqueezeBertTokenizer", "which for a SqueezeBertTokenizer means true"),
        (
            "roberta",
            &cased,
            "LongformerTokenizer",
            "the pre_tokenizer BertPreTokenizer, in place of which a LongformerTokenizer puts",
        ),
        (
            "bert",
            &cased,
            "SplinterTokenizer",
            "the tokenizer_class SplinterTokenizer; supported: one whose rules are known (Bert",
        ),
    ] {
        let told = json!({ "tokenizer_class": class });
        let message = refusal(&model(model_type, tokenizer, &told));
        assert!(message.contains(expected), "{class}: {message}");
    }
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
    let (mut folded, mut unsplit) = (bytes(false), bytes(false));
    folded["normalizer"] = json!({ "type": "NFKC" });
    unsplit["pre_tokenizer"]["use_regex"] = json!(false);
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
        ("roberta", &unsplit, json!(null), "use_regex false, in place of which a RobertaTokenizer"),
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
        ("bert", &uncased, json!({ "truncation_side": "left" }), "with truncation_side left"),
        ("bert", &left, json!(null), "direction Left"),
        ("bert", &uncased, json!({ "split_special_tokens": true }), "split_special_tokens true"),
    ];
    for (model_type, tokenizer, told, expected) in cases {
        let message = refusal(&model(model_type, tokenizer, &told));
        assert!(message.contains(expected), "{tokenizer} {told}: {message}");
    }
}

/// Versions of transformers differ in what they make of the generic class.
#[test]
fn a_prefix_space_is_compared_whatever_the_class() {
    let generic = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
    let silent = "no add_prefix_space in tokenizer_config.json, which means false, and a tokenize";
    let cased = bert_normalizer(false, None, true);
    let xlm = json!({ "tokenizer_class": "XLMRobertaTokenizer", "do_lower_case": true });
    let cases = [
        ("roberta", &bytes(true), json!({}), silent),
        ("roberta", &bytes(true), generic, silent),
        ("xlm-roberta", &bytes(true), json!(null), silent),
        ("roberta", &bytes(false), json!({ "add_prefix_space": true }), "add_prefix_space false"),
        // Nor is that all that makes one of another class.
        ("xlm-roberta", &bytes(false), json!(null), "the pre_tokenizer ByteLevel, in place of"),
        ("bert", &cased, xlm, "the normalizer BertNormalizer, in place of which a XLMRobertaTok"),
    ];
    for (model_type, tokenizer, told, expected) in cases {
        let message = refusal(&model(model_type, tokenizer, &told));
        assert!(message.contains(expected), "{tokenizer} {told}: {message}");
    }
}

#[test]
fn a_tokenizer_that_is_read_from_another_file_is_refused() {
    let uncased = bert_normalizer(true, None, true);
    let files = json!({ "fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.json"] });
    for (told, found) in [
        (files, "tokenizer.4.0.json in fast_tokenizer_files"),
        (json!({ "from_slow": true }), "from_slow true"),
    ] {
        let message = refusal(&model("bert", &uncased, &told));
        let expected = format!("tokenizer_config.json with {found}; supported: the tokenizer of ");
        assert!(message.contains(&expected), "{message}");
    }
}

#[test]
fn tokens_that_the_model_has_no_rows_for_are_refused() {
    let import = |vocab: Value, added: &[usize]| {
        let mut tokenizer = bert_normalizer(true, None, true);
        tokenizer["model"] = json!({ "vocab": vocab });
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
        tokenizer["model"] = json!({ "vocab": vocab });
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

#[test]
fn special_tokens_of_an_older_file_go_before_those_of_the_settings() {
    let import = |told: Value, old: &Value| {
        let mut files = model("bert", &bert_normalizer(true, None, true), &told);
        set(&mut files, "special_tokens_map.json", old);
        Bench::new().import_files(&files).map_err(|e| e.to_string())
    };
    let same = json!({ "cls_token": { "content": "[CLS]" }, "unk_token": "[UNK]", "x": [] });
    import(json!({ "sep_token": "[SEP]" }), &same).unwrap();
    let other = json!({ "sep_token": { "content": "</s>" } });
    let message = import(json!({ "sep_token": "[SEP]" }), &other).unwrap_err();
    let expected = "one with cls_token [CLS] before a text and sep_token </s> behind it";
    assert!(message.contains(expected), "{message}");
    // With these the settings are of a version that has all special tokens there.
    import(json!({ "sep_token": "[SEP]", "added_tokens_decoder": {} }), &other).unwrap();
    import(json!({ "tokenizer_class": "PreTrainedTokenizerFast" }), &other).unwrap();
}

#[test]
fn special_tokens_that_nothing_names_are_those_of_the_class() {
    for (model_type, class) in [("bert", "Bert"), ("mpnet", "MPNet"), ("roberta", "Roberta")] {
        let own = if model_type == "bert" { ("[CLS]", "[SEP]") } else { ("<s>", "</s>") };
        let mut files = fixture::model(model_type);
        let mut tokenizer = fixture::tokenizer(model_type);
        tokenizer["post_processor"] = around("<cls>", "<sep>");
        set(&mut files, "tokenizer.json", &tokenizer);
        let expected = format!(
            "in place of which a {class}Tokenizer puts one with cls_token {} before a text and \
             sep_token {} behind it",
            own.0, own.1
        );
        let message = refusal(&files);
        assert!(message.contains(&expected), "{message}");
        let told = json!({ "cls_token": "<cls>", "sep_token": "<sep>" });
        set(&mut files, "tokenizer_config.json", &told);
        Bench::new().import_files(&files).unwrap();
    }
}

#[test]
fn what_the_class_makes_of_the_model_anew_is_refused() {
    let import = |model_type: &str, key: &str, value: &Value, told: Value| {
        let mut tokenizer = fixture::tokenizer(model_type);
        tokenizer["model"][key] = value.clone();
        let files = model(model_type, &tokenizer, &told);
        Bench::new().import_files(&files).map_err(|e| e.to_string())
    };
    let cases = [
        ("bert", "type", json!("WordPiece"), json!("WordLevel")),
        ("bert", "continuing_subword_prefix", json!("##"), json!("@@")),
        ("distilbert", "max_input_chars_per_word", json!(100), json!(50)),
        ("mpnet", "unk_token", json!("[UNK]"), json!("<unk>")),
        ("roberta", "type", json!("BPE"), json!("Unigram")),
        ("roberta", "continuing_subword_prefix", json!(null), json!("##")),
        ("roberta", "end_of_word_suffix", json!(""), json!("</w>")),
        ("roberta", "ignore_merges", json!(false), json!(true)),
    ];
    for (model_type, key, same, other) in cases {
        import(model_type, key, &same, json!(null)).unwrap();
        let message = import(model_type, key, &other, json!(null)).unwrap_err();
        let expected = format!("with the {key} {other} in its model, in place of which a ");
        assert!(message.contains(&expected), "{message}");
        // Who reads the file as it is has the same.
        let whole = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
        import(model_type, key, &other, whole).unwrap();
    }
    let told = json!({ "unk_token": { "content": "<unk>" } });
    import("bert", "unk_token", &json!("<unk>"), told.clone()).unwrap();
    let message = import("bert", "unk_token", &json!("[UNK]"), told).unwrap_err();
    assert!(message.contains("puts \"<unk>\"; supported: \"<unk>\", or"), "{message}");
}

#[test]
fn token_types_that_no_engine_knows_are_refused() {
    for (part, kind) in [(0_usize, "SpecialToken"), (1, "Sequence"), (2, "SpecialToken")] {
        let mut template = template("[CLS]", "[SEP]");
        template["single"][part][kind]["type_id"] = json!(1);
        let list = json!({ "type": "Sequence", "processors": [template] });
        for processor in [template, list] {
            let mut tokenizer = bert_normalizer(true, None, true);
            tokenizer["post_processor"] = processor;
            for told in [json!(null), json!({ "tokenizer_class": "PreTrainedTokenizerFast" })] {
                let message = refusal(&model("bert", &tokenizer, &told));
                let expected = "tokenizer.json with the type_id 1 in its post_processor";
                assert!(message.contains(expected), "{message}");
            }
        }
    }
    // Of the second of two texts, which nobody sends.
    let mut pairs = template("[CLS]", "[SEP]");
    pairs["pair"] = json!([{ "Sequence": { "id": "B", "type_id": 1 } }]);
    let mut tokenizer = bert_normalizer(true, None, true);
    tokenizer["post_processor"] = pairs;
    Bench::new().import_files(&model("bert", &tokenizer, &json!(null))).unwrap();
}
