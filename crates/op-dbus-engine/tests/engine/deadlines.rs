//! What is refused since it would not be done by its deadline, by what is expected of texts.

use std::time::{Duration, Instant};

use op_dbus_engine::{BatchLimits, Call, Error, Inputs, Limits, Tokenizer, Truncate};
use serde_json::json;

use crate::support::*;

/// Others' short texts would else be expected to have a thousandth of their tokens, and be admitted in vain.
#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_texts_that_are_cut_tells_nothing_of_the_tokens_of_others() {
    const TEXTS: usize = 4;
    let batch = BatchLimits { tokens_max: 1024, ..BatchLimits::default() };
    // A hundred tokens a second, as far as is known.
    let gate = Gate::beginning(Limits::default(), batch, 10_000_000);
    let long = "x".repeat(1 << 20);
    let cut = Call { truncate: Truncate::End, ..call(1, &[long.as_str(); TEXTS]) };
    let cut = gate.begin(cut);
    let computing = gate.next_batch().len();
    while gate.engine.stats().queue_texts + computing < TEXTS {
        tokio::task::yield_now().await;
    }
    // 32 tokens each: some 19 s.
    let short = "x".repeat(INPUT_MAX - 2);
    let deadline = Some(Instant::now() + Duration::from_secs(18));
    let late = gate.engine.embed(Call { deadline, ..call(2, &[short.as_str(); 60]) }).await;
    assert!(matches!(late, Err(Error::Late { needed: 1920, before: 128, .. })), "{late:?}");
    (0..TEXTS).for_each(|_| gate.go());
    cut.await.unwrap().unwrap();
}

/// A token for each word, and one at each end.
fn words() -> Tokenizer {
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "decoder": null,
        "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0],
            "trim_offsets": true, "add_prefix_space": false},
        "model": {"type": "WordLevel", "unk_token": "x",
            "vocab": {"<s>": 0, "</s>": 1, "x": 2}},
    });
    Tokenizer::from_bytes(file.to_string().as_bytes(), INPUT_MAX).unwrap()
}

/// They would else be expected to have as few tokens as texts have for their bytes, and be admitted in vain.
#[tokio::test(flavor = "multi_thread")]
async fn lists_of_token_ids_have_as_many_as_they_are() {
    const TEXTS: usize = 4;
    let batch = BatchLimits { tokens_max: 1024, ..BatchLimits::default() };
    // A hundred tokens a second, as far as is known.
    let gate = Gate::tokenizing(words(), Limits::default(), batch, 10_000_000);
    // Of as many bytes as others have tokens, and three tokens.
    let word = "x".repeat(INPUT_MAX - 2);
    let texts = gate.begin(call(1, &[word.as_str(); TEXTS]));
    let computing = gate.next_batch().len();
    while gate.engine.stats().queue_texts + computing < TEXTS {
        tokio::task::yield_now().await;
    }
    let inputs = Inputs::Tokens(vec![vec![2; INPUT_MAX - 2]; 60]);
    let deadline = Some(Instant::now() + Duration::from_secs(18));
    let late = gate.engine.embed(Call { inputs, deadline, ..call(2, &[]) }).await;
    assert!(matches!(late, Err(Error::Late { needed: 1920, before: 12, .. })), "{late:?}");
    (0..TEXTS).for_each(|_| gate.go());
    texts.await.unwrap().unwrap();
}
