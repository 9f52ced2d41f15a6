//! sentencepiece's tokenizers: since version 5 transformers takes the pieces and the table of characters of them, and
//! makes the rest anew.

use serde_json::{Value, json};

use super::fixture::{self, Bench, around, set};

/// As transformers writes it, with all that its normalizers may have.
fn tokenizer() -> Value {
    let normalizers = json!([
        { "type": "Precompiled" },
        { "type": "Strip" },
        { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " },
    ]);
    let splitters =
        json!([{ "type": "WhitespaceSplit" }, { "type": "Metaspace", "prepend_scheme": "always" }]);
    json!({
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": splitters },
        "post_processor": around("<s>", "</s>"),
        "model": { "type": "Unigram", "unk_id": 3, "byte_fallback": false },
    })
}

/// The same with another value at a place.
fn with(place: &str, value: Value) -> Value {
    let mut tokenizer = tokenizer();
    *tokenizer.pointer_mut(place).unwrap() = value;
    tokenizer
}

fn import(model_type: &str, tokenizer: &Value, told: &Value) -> Result<(), String> {
    let mut files = fixture::model(model_type);
    set(&mut files, "tokenizer.json", tokenizer);
    set(&mut files, "tokenizer_config.json", told);
    Bench::new().import_files(&files).map(drop).map_err(|error| error.to_string())
}

#[test]
fn what_agrees_with_the_class_is_taken() {
    let space = json!({ "type": "Metaspace", "add_prefix_space": true });
    let never = with("/pre_tokenizer/pretokenizers/1/prepend_scheme", json!("never"));
    let others = with("/post_processor", around("<b>", "</s>"));
    let whole = json!({
        "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true,
    });
    let cases = [
        ("xlm-roberta", with("/pre_tokenizer", whole), json!({})),
        ("xlm-roberta", tokenizer(), json!({})),
        ("camembert", tokenizer(), json!({ "add_prefix_space": true })),
        ("bert", tokenizer(), json!({ "tokenizer_class": "XLMRobertaTokenizerFast" })),
        ("xlm-roberta", with("/normalizer", json!(null)), json!({})),
        ("xlm-roberta", with("/normalizer", json!({ "type": "Precompiled" })), json!({})),
        ("xlm-roberta", with("/pre_tokenizer", space), json!({ "sep_token": "<x>" })),
        ("xlm-roberta", never, json!({ "add_prefix_space": false })),
        ("xlm-roberta", others, json!({ "bos_token": "<b>" })),
        // The id of its unk_token.
        ("camembert", with("/model/unk_id", json!(4)), json!({})),
    ];
    for (model_type, tokenizer, told) in cases {
        let imported = import(model_type, &tokenizer, &told);
        assert_eq!(imported, Ok(()), "{model_type} {tokenizer} {told}");
    }
}

#[test]
fn what_the_class_makes_anew_is_refused() {
    let [folded, lower] = ["NFKC", "Lowercase"].map(|kind| json!({ "type": kind }));
    let scheme = "/pre_tokenizer/pretokenizers/1/prepend_scheme";
    let space = |key: &str, value: Value| {
        with("/pre_tokenizer/pretokenizers/1", json!({ "type": "Metaspace", key: value }))
    };
    let ends = "the post_processor RobertaProcessing, in place of which a XLMRobertaTokenizer puts one \
                with bos_token <s> before a text and eos_token </s> behind it";
    let cases = [
        (with("/normalizer", folded), "the normalizer NFKC, in place of which a XLMRobertaTo"),
        (with("/normalizer/normalizers/1", lower), "the normalizer Sequence, in place of which a"),
        (with("/pre_tokenizer", json!(null)), "the pre_tokenizer none, in place of which a XLMR"),
        (
            with("/pre_tokenizer/pretokenizers/0/type", json!("Digits")),
            "the pre_tokenizer Sequence, in place of which a XLMRobertaTokenizer puts WhitespaceS",
        ),
        (
            with("/pre_tokenizer/pretokenizers/1/type", json!("WhitespaceSplit")),
            "the pre_tokenizer Sequence, in place of which a XLMRobertaTokenizer puts WhitespaceS",
        ),
        (
            with(scheme, json!("first")),
            "the prepend_scheme \"first\" of its Metaspace, in place of which a XLMRobertaTokenizer \
             puts always",
        ),
        (space("split", json!(false)), "the split false of its Metaspace, in place of which a X"),
        (space("replacement", json!("_")), "the replacement \"_\" of its Metaspace, in place of"),
        (with("/post_processor", around("<s>", "<s>")), ends),
        (with("/model/type", json!("BPE")), "the type \"BPE\" in its model, in place of which a"),
        (with("/model/unk_id", json!(0)), "the unk_id 0 in its model, in place of which a XLMRo"),
        (with("/model/byte_fallback", json!(true)), "the byte_fallback true in its model, in plac"),
        (
            with(scheme, json!("never")),
            "no add_prefix_space in tokenizer_config.json, which for a XLMRobertaTokenizer mea",
        ),
    ];
    for (tokenizer, expected) in cases {
        let message = import("xlm-roberta", &tokenizer, &json!({})).unwrap_err();
        assert!(message.contains(expected), "{tokenizer}: {message}");
        // Who reads the file as it is has the same.
        let whole = json!({ "tokenizer_class": "PreTrainedTokenizerFast" });
        import("xlm-roberta", &tokenizer, &whole).unwrap();
    }
    let message =
        import("camembert", &tokenizer(), &json!({ "add_prefix_space": false })).unwrap_err();
    let expected = "with add_prefix_space false, and a tokenizer.json with add_prefix_space (prep";
    assert!(message.contains(expected), "{message}");
}
