//! What is refused since it would not be done by its deadline, by what is expected of texts.

use std::time::{Duration, Instant};

use op_dbus_engine::{BatchLimits, Call, Error, Limits, Truncate};

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
