//! Tokenizers, cuts and truncation.

use proptest::prelude::*;

use super::weight::WHOLE_BYTES_MAX;
use super::*;

fn ids(encoded: &Encoded) -> Vec<Vec<i32>> {
    encoded.windows.iter().map(|window| window.ids.to_vec()).collect()
}

fn expected(content: &[u8]) -> Vec<i32> {
    let content = content.iter().map(|byte| i32::from(*byte));
    std::iter::once(256).chain(content).chain(std::iter::once(257)).collect()
}

#[test]
fn an_empty_text_is_its_special_tokens() {
    let encoded = Tokenizer::bytes(8).encode("", Truncate::Error).unwrap();
    assert_eq!(ids(&encoded), [expected(b"")]);
}

#[test]
fn special_tokens_survive_each_cut() {
    let tokenizer = Tokenizer::bytes(5);
    let cut = |truncate| tokenizer.encode("abcdefg", truncate).unwrap();
    assert_eq!(ids(&cut(Truncate::End)), [expected(b"abc")]);
    assert_eq!(ids(&cut(Truncate::Start)), [expected(b"efg")]);
    let mean = cut(Truncate::Mean);
    assert_eq!(ids(&mean), [expected(b"abc"), expected(b"def"), expected(b"g")]);
    assert_eq!(mean.windows.iter().map(|w| w.weight).collect::<Vec<_>>(), [3, 3, 1]);
    assert!(mean.truncated);
    let error = tokenizer.encode("abcdefg", Truncate::Error);
    assert!(matches!(error, Err(EncodeError::TooLong { tokens: 9, limit: 5 })));
}

#[test]
fn a_text_of_exactly_the_limit_is_whole() {
    let encoded = Tokenizer::bytes(5).encode("abc", Truncate::Error).unwrap();
    assert!(!encoded.truncated);
    assert_eq!(ids(&encoded), [expected(b"abc")]);
}

#[test]
fn special_token_names_in_a_text_are_text() {
    let encoded = Tokenizer::bytes(64).encode("<s>", Truncate::Error).unwrap();
    assert_eq!(ids(&encoded), [expected(b"<s>")]);
}

#[test]
fn damaged_files_are_refused() {
    for json in [&b""[..], b"{}", b"\xff\xfe", b"{\"model\":{\"type\":\"BPE\"}}"] {
        assert!(matches!(Tokenizer::from_bytes(json, 8), Err(TokenizerError::Damaged(_))));
    }
    let big = vec![b' '; FILE_BYTES_MAX + 1];
    assert!(matches!(Tokenizer::from_bytes(&big, 8), Err(TokenizerError::TooBig { .. })));
    let nested = "[".repeat(1 << 20);
    assert!(matches!(Tokenizer::from_bytes(nested.as_bytes(), 8), Err(TokenizerError::Damaged(_))));
}

/// The library counts on from the largest one when it makes its table of added tokens again.
#[test]
fn a_file_with_the_largest_id_ends_nothing() {
    let largest = u32::MAX;
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [{"id": largest, "content": "<x>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "byte_fallback": false,
            "vocab": {"a": 0, "<x>": largest}, "merges": []},
    });
    // A build without checks for overflow reads it.
    if let Err(error) = Tokenizer::from_bytes(json.to_string().as_bytes(), 8) {
        assert!(matches!(error, TokenizerError::Damaged(_)), "{error}");
    }
}

#[test]
fn a_file_without_post_processor_has_no_special_tokens() {
    let json = br#"{"version":"1.0","truncation":{"direction":"Right","max_length":1,
        "strategy":"LongestFirst","stride":0},"padding":{"strategy":{"Fixed":9},
        "direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,
        "pad_token":"x"},"added_tokens":[],"normalizer":null,
        "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"x":0,"a":1,"b":2},"unk_token":"x"}}"#;
    let tokenizer = Tokenizer::from_bytes(json, 2).unwrap();
    let encoded = tokenizer.encode("a b a", Truncate::Mean).unwrap();
    assert_eq!(ids(&encoded), [vec![1, 2], vec![1]]);
    assert_eq!(ids(&tokenizer.encode("", Truncate::End).unwrap()), [vec![0]]);
}

#[test]
fn special_tokens_that_the_vocabulary_lacks_are_refused() {
    let with = |id: u32| {
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
            "post_processor": {"type": "BertProcessing", "sep": ["x", id], "cls": ["x", 0]},
            "model": {"type": "WordLevel", "vocab": {"x": 0, "a": 1}, "unk_token": "x"},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes(), 8).map(drop)
    };
    with(1).unwrap();
    let refusal = with(2).unwrap_err().to_string();
    assert!(refusal.contains("puts the token id 2 around each text"), "{refusal}");
}

#[test]
fn a_model_without_room_for_a_text_is_refused() {
    let error =
        Tokenizer::with_model(Tokenizer::bytes(8).0.model.clone(), Cuts::Nowhere, Growth::NONE, 2);
    assert!(matches!(error, Err(TokenizerError::Unsupported(_))));
}

proptest! {
    #[test]
    fn any_text_is_its_bytes(text in any::<String>(), max in 3usize..40) {
        let tokenizer = Tokenizer::bytes(max);
        prop_assert_eq!(tokenizer.count(&text).unwrap(), text.len() + 2);
        let mean = tokenizer.encode(&text, Truncate::Mean).unwrap();
        let mut bytes = Vec::new();
        for window in &mean.windows {
            prop_assert!(window.ids.len() <= max);
            prop_assert_eq!(window.weight as usize, window.ids.len() - 2);
            bytes.extend(window.ids[1..window.ids.len() - 1].iter().map(|id| *id as u8));
        }
        prop_assert_eq!(bytes, text.as_bytes());
    }
}

/// BERT's kind of tokenizer, with a small vocabulary.
fn bert(lowercase: bool, max_input_tokens: usize) -> Tokenizer {
    let mut pieces: Vec<String> =
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<m>"].map(str::to_owned).into();
    for byte in b'!'..=b'~' {
        pieces.push(char::from(byte).to_string());
        if byte.is_ascii_alphanumeric() && byte != b'q' {
            pieces.push(format!("##{}", char::from(byte)));
        }
    }
    pieces.extend(
        ["the", "embed", "##ding", "##s", "un", "##in", "ing", "漢", "é", "##́"].map(String::from),
    );
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), id.into())).collect();
    let added = |id: usize, lstrip: bool, normalized: bool| {
        serde_json::json!({"id": id, "content": pieces[id], "single_word": false,
            "lstrip": lstrip, "rstrip": false, "normalized": normalized, "special": true})
    };
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "added_tokens": [added(0, false, false), added(2, false, true),
            added(3, false, false), added(4, true, false)],
        "normalizer": {"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": lowercase},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "max_input_chars_per_word": 20,
            "continuing_subword_prefix": "##", "vocab": vocabulary},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), max_input_tokens).unwrap()
}

/// RoBERTa's kind: bytes with the space before them, merged within words.
fn roberta(max_input_tokens: usize) -> Tokenizer {
    let mut pieces: Vec<String> = (0..=u8::MAX).map(|byte| byte_letter(byte).to_string()).collect();
    let merges = ["Ġ t", "h e", "Ġt he", "i n", "in g", "Ġ Ġ"];
    pieces.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    pieces.extend(["<s>", "</s>", "<mask>"].map(String::from));
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        pieces.iter().enumerate().map(|(id, piece)| (piece.clone(), id.into())).collect();
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "added_tokens": [{"id": 264, "content": "<mask>", "single_word": false, "lstrip": true,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 263], "cls": ["<s>", 262],
            "trim_offsets": true, "add_prefix_space": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "byte_fallback": false,
            "vocab": vocabulary, "merges": merges},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), max_input_tokens).unwrap()
}

/// XLM-R's kind: likeliest pieces of words that begin with a mark.
fn xlm_roberta(max_input_tokens: usize) -> Tokenizer {
    let mut pieces = vec![("<s>".to_owned(), 0.0), ("<unk>".into(), 0.0), ("▁".into(), -3.0)];
    pieces.extend(('a'..='z').map(|letter| (letter.to_string(), -9.0)));
    pieces.extend(["▁the", "ing", "▁em", "bed", "s", "e", "mb"].map(|p| (p.to_owned(), -5.0)));
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
            "split": true},
        "added_tokens": [{"id": 0, "content": "<s>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
            {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true}]},
        "post_processor": {"type": "BertProcessing", "sep": ["<s>", 0], "cls": ["<s>", 0]},
        "model": {"type": "Unigram", "unk_id": 1, "byte_fallback": false, "vocab": pieces},
    });
    Tokenizer::from_bytes(json.to_string().as_bytes(), max_input_tokens).unwrap()
}

/// What the model's own tokenizer makes of all of a text.
fn whole(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.0.model.encode_fast(text, false).unwrap().get_ids().to_vec()
}

/// Texts of what is hard: marks that belong to their neighbours, spaces of all kinds, added tokens
/// whole and in part, long words, and characters that vanish.
fn texts() -> impl Strategy<Value = String> {
    let parts = prop_oneof![
        4 => prop::sample::select(vec![" ", "the ", "Embeddings ", "un", "ing", "q", "in"]),
        2 => prop::sample::select(vec!["  ", "\n", "\t", "\r\n", "\u{b}", "\u{a0}", "\u{3000}"]),
        2 => prop::sample::select(vec!["[SEP]", "[CLS] ", "[cls]", "[c\0Ls]", "[sep]", " <m>", "<mask>", "[S", "<s>", "']", "..."]),
        2 => prop::sample::select(vec!["漢字", "é", "e\u{301}", " \u{301}", "\u{300}", "ß", "İ", "Σ"]),
        1 => prop::sample::select(vec!["\0", "\u{7f}", "\u{ad}", "\u{fffd}", "\u{600} ", "ﬃ", "▁"]),
        1 => Just("abcdefghijklmnopqrstuvwxyz"),
    ];
    let parts =
        prop_oneof![8 => parts.prop_map(str::to_owned), 1 => any::<char>().prop_map(String::from)];
    prop::collection::vec(parts, 0..40).prop_map(|parts| parts.concat())
}

#[test]
fn cuts_are_known_for_the_families_and_for_nothing_else() {
    let bert_cuts = bert(true, 8).0.cuts.clone();
    assert!(matches!(bert_cuts, Cuts::Bert(_)));
    let heads = ["!!", "é!", "a!", "!a", "!é", "K]", "[X", "<m", "~[", "{}"]
        .map(|text| bert_cuts.head(&format!("{text}aaa"), text.len() - 1).len() == text.len() - 1);
    // A letter of [CLS], which is found in lower case as well, may be any.
    assert_eq!(heads, [true, true, true, true, false, false, false, false, false, true]);
    assert_eq!(roberta(8).0.cuts, Cuts::Spaces);
    assert_eq!(xlm_roberta(8).0.cuts, Cuts::Spaces);
    assert!(bert(true, 8).0.words.is_some() && roberta(8).0.words.is_none());
    let strip = br#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
        "normalizer":{"type":"Strip","strip_left":true,"strip_right":true},
        "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
        "model":{"type":"WordLevel","vocab":{"x":0,"a":1},"unk_token":"x"}}"#;
    assert_eq!(Tokenizer::from_bytes(strip, 8).unwrap().0.cuts, Cuts::Nowhere);
}

#[test]
fn a_long_text_is_tokenized_as_far_as_it_matters() {
    let text = "the embeddings ".repeat(70_000);
    let lengths = std::cell::RefCell::new(Vec::new());
    let tokenizer = bert(true, 256);
    let room = 254;
    let part = |at| {
        let part = tokenizer.0.cuts.head(&text, at);
        lengths.borrow_mut().push(part.len());
        part
    };
    assert_eq!(tokenizer.enough(&text, room, part).unwrap().len(), 408);
    assert_eq!(*lengths.borrow(), [254 * 6 + 5]);
    // One word to the end: nothing is known before.
    assert_eq!(tokenizer.0.cuts.head(&"x".repeat(5000), 1524).len(), 5000);
}

#[test]
fn what_cannot_be_cut_or_is_not_to_be_takes_much_memory() {
    let english = "the embeddings ".repeat(WHOLE_BYTES_MAX / 15 + 1);
    let marks = "\u{3002}".repeat(WHOLE_BYTES_MAX / 3 + 1);
    for tokenizer in [bert(true, 8), roberta(8), xlm_roberta(8)] {
        assert!(!tokenizer.is_heavy(&english, true) && tokenizer.is_heavy(&english, false));
        assert!(tokenizer.is_heavy(&marks, true));
        assert!(!tokenizer.is_heavy(&marks[3..], false));
        // Nor does anybody wait for that to be known, or for a short text.
        assert!(!tokenizer.is_measured(&english, true) && tokenizer.is_quick(2 << 10));
    }
}

proptest! {
    #[test]
    fn plain_words_have_the_ids_of_the_general_tokenizer(text in texts(), lowercase: bool) {
        let tokenizer = bert(lowercase, 8);
        prop_assert_eq!(tokenizer.content(&text).unwrap(), whole(&tokenizer, &text));
    }

    #[test]
    fn a_cut_text_has_the_tokens_of_the_whole(text in texts(), max in 3usize..12, kind in 0..5) {
        let tokenizer = match kind {
            0 => bert(true, max),
            1 => bert(false, max),
            2 => roberta(max),
            3 => xlm_roberta(max),
            _ => Tokenizer::bytes(max),
        };
        let content = whole(&tokenizer, &text);
        // In parts, wherever the text may be cut.
        let (mut parts, mut rest) = (Vec::new(), text.as_str());
        while !rest.is_empty() {
            let part = tokenizer.0.cuts.head(rest, 1);
            parts.extend(whole(&tokenizer, part));
            rest = &rest[part.len()..];
        }
        prop_assert_eq!(&parts, &content);
        let room = max - 2;
        for truncate in [Truncate::End, Truncate::Start] {
            let encoded = tokenizer.encode(&text, truncate).unwrap();
            prop_assert_eq!(encoded.truncated, content.len() > room);
            let kept = match truncate {
                Truncate::End => &content[..room.min(content.len())],
                _ => &content[content.len().saturating_sub(room)..],
            };
            let ids = &encoded.windows[0].ids;
            let ids: Vec<u32> = ids[1..ids.len() - 1].iter().map(|id| *id as u32).collect();
            prop_assert_eq!(ids, kept);
        }
    }
}

#[test]
fn ids_become_a_text_that_has_them() {
    let rebuilt = |tokenizer: &Tokenizer, text| {
        let ids = tokenizer.ids(text).unwrap();
        let rebuilt = tokenizer.text(&ids)?;
        assert_eq!(tokenizer.ids(&rebuilt).unwrap(), ids);
        Some(rebuilt)
    };
    let bert = bert(true, 64);
    assert_eq!(rebuilt(&bert, "The  Embeddings, É!").as_deref(), Some("the embeddings, e!"));
    assert_eq!(rebuilt(&bert, "").as_deref(), Some(""));
    // A word that is not in the vocabulary.
    assert_eq!(rebuilt(&bert, "a \u{1f355} b").as_deref(), Some("a \u{13000} b"));
    let roberta = rebuilt(&roberta(64), "The thing\u{1f355}").unwrap();
    assert_eq!(roberta.trim(), "The thing\u{1f355}");
    assert_eq!(rebuilt(&xlm_roberta(64), "the thing").unwrap().trim(), "the thing");
    // Nothing says how its tokens are written.
    assert_eq!(rebuilt(&Tokenizer::bytes(64), "abc"), None);
}

#[test]
fn a_text_that_was_cut_within_a_word_may_not_be_had() {
    // `ding` is tokenized in another way at the beginning of a word.
    let tokenizer = bert(true, 4);
    let window = tokenizer.encode("the embedding", Truncate::Start).unwrap().windows.remove(0);
    assert_eq!(tokenizer.text(&window.ids).as_deref(), Some("embedding"));
    let tokenizer = bert(true, 3);
    let window = tokenizer.encode("the embedding", Truncate::Start).unwrap().windows.remove(0);
    assert_eq!(tokenizer.text(&window.ids), None);
    // No ids of this model's.
    for ids in [&[][..], &[2], &[2, -1, 3], &[2, i32::MAX, 3], &[9, 9, 9]] {
        assert_eq!(tokenizer.text(ids), None, "{ids:?}");
    }
}

proptest! {
    /// The longest pieces come first: those of a word's beginning are its own.
    #[test]
    fn of_words_pieces_every_beginning_can_be_had(
        words in prop::collection::vec(
            prop::sample::select(vec!["the", "Embeddings", "unin", "q", "漢字", "é", "'", "s.", "\u{1f355}"]),
            0..12,
        ),
        max in 3usize..12,
    ) {
        let tokenizer = bert(true, max);
        let ids = tokenizer.ids(&words.join(" ")).unwrap();
        let rebuilt = tokenizer.text(&ids).unwrap();
        prop_assert_eq!(tokenizer.content(&rebuilt).unwrap().len() + 2, ids.len());
        prop_assert_eq!(tokenizer.ids(&rebuilt).unwrap(), ids);
    }
}
