//! What the costliest tokenizer files that are taken cost: they are read in the service itself, and a file is
//! easily had from a stranger. Each is as large as one of the bounds lets it be. Counted by the allocator, for
//! the whole process, so that there is one test here.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use op_dbus_engine::Tokenizer;

/// Bytes that reading a file may take beyond the file, and so may a text.
const BYTES_MAX: usize = 800 << 20;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

fn more(bytes: usize) {
    let now = NOW.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(now, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, which is the same.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there for a moment.
        more(size);
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`, which is the same.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What `work` gives, and the bytes that it took at its worst.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let done = work();
    (done, PEAK.load(Ordering::Relaxed) - before)
}

const WORDS: &str = r#"{"type": "WordLevel", "vocab": {"x": 0}, "unk_token": "x"}"#;

/// A `tokenizer.json` of these parts.
fn file(normalizer: &str, pre_tokenizer: &str, added: &str, model: &str) -> String {
    format!(
        r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [{added}],
        "normalizer": {normalizer}, "pre_tokenizer": {pre_tokenizer}, "post_processor": null,
        "decoder": null, "model": {model}}}"#
    )
}

fn model(model: &str) -> String {
    file("null", "null", "", model)
}

/// `count` parts, with commas between.
fn list(count: usize, part: impl Fn(&mut String, usize)) -> String {
    let mut list = String::new();
    for number in 0..count {
        list.push_str(if number == 0 { "" } else { "," });
        part(&mut list, number);
    }
    list
}

fn unigram(count: usize, tail: &str) -> String {
    let pieces = list(count, |list, n| write!(list, r#"["{n:06x}{tail}",-1]"#).unwrap());
    model(&format!(r#"{{"type": "Unigram", "unk_id": 0, "vocab": [{pieces}]}}"#))
}

fn costliest() -> Vec<(&'static str, String)> {
    let words = |count| list(count, |list, n| write!(list, r#""{n:x}":{n}"#).unwrap());
    let merges = list(390_000, |list, _| list.push_str(r#"["1","1"]"#));
    let added = list(4_000, |list, n| {
        let tail = "abcdefg".repeat(35);
        write!(
            list,
            r#"{{"id": {n}, "content": "{n:x}{tail}", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": false}}"#
        )
        .unwrap();
    });
    let in_vain = |parts: String| {
        model(&format!(
            r#"{{"type": "WordLevel", "vocab": {{"x": 0}}, "unk_token": "x", "y": [{parts}]}}"#
        ))
    };
    let pattern = r"a\\w".repeat(150);
    let split = format!(
        r#"{{"type": "Split", "pattern": {{"Regex": "{pattern}"}}, "behavior": "Isolated", "invert": false}}"#
    );
    vec![
        ("long pieces", unigram(8_500, &"a".repeat(240))),
        ("short pieces", unigram(780_000, "a")),
        (
            "words",
            model(&format!(
                r#"{{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "1"}}"#,
                words(2_390_000)
            )),
        ),
        (
            "merges",
            model(&format!(
                r#"{{"type": "BPE", "vocab": {{{}}}, "merges": [{merges}]}}"#,
                words(1_200_000)
            )),
        ),
        ("values", in_vain(list(1_190_000, |list, _| list.push_str("[0]")))),
        ("objects", in_vain(list(65_000, |list, _| list.push_str(r#"{"":0}"#)))),
        ("added tokens", file("null", "null", &added, WORDS)),
        ("patterns", file("null", &split, "", WORDS)),
    ]
}

/// A thread outlives the models that it tokenizes for.
fn words_go_with_their_tokenizer() {
    let load_and_use = || {
        let tokenizer = Tokenizer::bytes(64);
        (0..5_000).for_each(|n| drop(tokenizer.ids(&format!("the word {n}")).unwrap()));
    };
    // What is made once stays.
    load_and_use();
    let before = NOW.load(Ordering::Relaxed);
    (0..3).for_each(|_| load_and_use());
    let left = NOW.load(Ordering::Relaxed).saturating_sub(before);
    assert!(left < 16 << 10, "{left} bytes");
}

/// Nor does a tokenizer keep them that is still there.
fn words_go_with_their_text() {
    let json = model(r#"{"type": "Unigram", "unk_id": 0, "vocab": [["x", -1], ["a", -1]]}"#);
    let tokenizer = Tokenizer::from_bytes(json.as_bytes(), 8).unwrap();
    let letters = "a".repeat(245);
    let tokenize = |n: usize| drop(tokenizer.ids(&format!("{n:05}{letters}")).unwrap());
    tokenize(0);
    let before = NOW.load(Ordering::Relaxed);
    (1..=10_000).for_each(tokenize);
    let left = NOW.load(Ordering::Relaxed).saturating_sub(before);
    assert!(left < 16 << 10, "{left} bytes");
}

#[test]
fn the_costliest_files_and_texts_stay_within_their_bounds() {
    for (what, json) in costliest() {
        let (tokenizer, bytes) = measured(|| Tokenizer::from_bytes(json.as_bytes(), 8));
        println!("{what}: {} MiB for a file of {} MiB", bytes >> 20, json.len() >> 20);
        tokenizer.unwrap();
        assert!(bytes <= BYTES_MAX, "{what}: {bytes} bytes");
    }
    let grows = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "BBBBBBBB"}"#;
    let grows = grows.replace("BBBBBBBB", &"b".repeat(250));
    let tokenizer = Tokenizer::from_bytes(file(&grows, "null", "", WORDS).as_bytes(), 8).unwrap();
    for (text, is_taken) in [(1 << 20, false), (12_500, true)] {
        let (ids, bytes) = measured(|| tokenizer.ids(&"a".repeat(text)));
        println!("a text of {text} bytes: {} MiB", bytes >> 20);
        assert_eq!(ids.is_ok(), is_taken, "{text}");
        assert!(bytes <= BYTES_MAX, "a text of {text} bytes: {bytes} bytes");
    } // A token for each letter, and as many letters as the normalizer may make.
    let grows = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "bbb"}"#;
    let prefix = "#".repeat(32);
    let pieces = format!(
        r#"{{"type": "WordPiece", "unk_token": "b", "max_input_chars_per_word": 100,
        "continuing_subword_prefix": "{prefix}", "vocab": {{"b": 0, "{prefix}b": 1}}}}"#
    );
    let json = file(grows, r#"{"type": "WhitespaceSplit"}"#, "", &pieces);
    let tokenizer = Tokenizer::from_bytes(json.as_bytes(), 4 << 20).unwrap();
    let words = "a".repeat(33) + " ";
    let (ids, bytes) = measured(|| tokenizer.ids(&words.repeat((1 << 20) / words.len())));
    println!("a token for each letter: {} MiB", bytes >> 20);
    assert!(ids.unwrap().len() > 2_900_000 && bytes <= BYTES_MAX, "{bytes} bytes");
    // A model's own kind of tokenizer is given parts of a text that has no spaces.
    let bert = r#"{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true}"#;
    let pieces = r###"{"type": "WordPiece", "unk_token": "x", "max_input_chars_per_word": 100,
        "continuing_subword_prefix": "##", "vocab": {"x": 0, "!": 1}}"###;
    let json = file(bert, r#"{"type": "BertPreTokenizer"}"#, "", pieces);
    let tokenizer = Tokenizer::from_bytes(json.as_bytes(), 4 << 20).unwrap();
    let (ids, bytes) = measured(|| tokenizer.ids(&("é".to_owned() + &"!".repeat(1 << 20))));
    println!("marks without a space: {} MiB", bytes >> 20);
    assert_eq!(ids.unwrap().len(), (1 << 20) + 1);
    assert!(bytes <= 64 << 20, "{bytes} bytes");
    words_go_with_their_tokenizer();
    words_go_with_their_text();
}
