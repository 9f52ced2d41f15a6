//! Whose turn it is, by costs that are made up.

use proptest::prelude::*;

use super::*;

/// A pool whose batches take `fixed` microseconds and `each` more for a token.
fn cost(fixed: u64, each: u64) -> Cost {
    let mut cost = Cost::default();
    for octave in 3..14 {
        let tokens = 1 << octave;
        cost.learn(tokens, fixed + each * tokens as u64);
    }
    cost
}

fn lane<'a>(cost: &'a Cost, tokens_max: usize, workers: &[Option<Running>]) -> Lane<'a> {
    Lane { cost, tokens_max, workers: workers.to_vec() }
}

const TEXT: Waiting = Waiting { tokens: 20, bulk: false };

#[test]
fn small_work_stays_where_it_starts_at_once_and_large_work_goes_where_it_is_fast() {
    // A CPU, and a device that is twenty times as fast once it has begun.
    let (cpu, device) = (cost(100, 100), cost(5_000, 5));
    let (cpu, device) = (lane(&cpu, 512, &[None]), lane(&device, 8192, &[None]));
    assert_eq!(leave(&cpu, std::slice::from_ref(&device), TEXT, 0), None);
    assert!(leave(&device, std::slice::from_ref(&cpu), TEXT, 0).is_some());
    let much = Waiting { tokens: 500, bulk: false };
    assert!(leave(&cpu, std::slice::from_ref(&device), much, 0).is_some());
    assert_eq!(leave(&device, std::slice::from_ref(&cpu), much, 0), None);
}

#[test]
fn a_slow_pool_helps_with_what_the_fast_one_would_not_come_to() {
    let (cpu, device) = (cost(0, 100), cost(1_000, 5));
    let busy = Some(Running { class: Priority::Interactive, tokens: 8192, started_us: 0 });
    let (cpu, device) = (lane(&cpu, 512, &[None]), lane(&device, 8192, &[busy]));
    // The device needs 42 ms for the batch that it runs, and 42 ms for each that follows.
    let waiting = |tokens, bulk| Waiting { tokens, bulk };
    let left = |work, now_us| leave(&cpu, std::slice::from_ref(&device), work, now_us).is_some();
    assert!(!left(waiting(400, false), 0), "40 ms here are sooner than 42 and another 3 there");
    assert!(left(waiting(400, false), 20_000), "22 and another 3 are sooner");
    assert!(left(waiting(8192, true), 40_000), "it will be through in 45 ms");
    assert!(!left(waiting(3 * 8192, true), 40_000), "it will be busy for 129 ms");
}

#[test]
fn a_pool_that_is_late_is_relied_on_less_and_less() {
    let (slow, fast) = (cost(0, 1_000), cost(0, 10));
    let running = Some(Running { class: Priority::Interactive, tokens: 100, started_us: 0 });
    let (slow, fast) = (lane(&slow, 512, &[None]), lane(&fast, 512, &[running]));
    let left = |now_us| leave(&slow, std::slice::from_ref(&fast), TEXT, now_us);
    // 20 ms here; it was to be done after 1 ms there.
    assert_eq!(left(500), Some(Duration::from_millis(20)));
    assert!(left(10_000).is_some());
    assert_eq!(left(60_000), None);
}

#[test]
fn without_anybody_else_or_any_knowledge_the_batch_is_taken() {
    let (known, unknown) = (cost(0, 1), Cost::default());
    let mine = lane(&known, 512, &[None]);
    assert_eq!(leave(&mine, &[], TEXT, 0), None);
    assert_eq!(leave(&mine, &[lane(&unknown, 512, &[None])], TEXT, 0), None);
    assert_eq!(leave(&mine, &[lane(&known, 512, &[])], TEXT, 0), None, "nobody is left there");
    let untried = lane(&unknown, 512, &[None]);
    assert_eq!(leave(&untried, &[lane(&known, 512, &[None])], TEXT, 0), None);
}

#[test]
fn a_bad_moment_moves_nothing_and_several_do() {
    let (mut cpu, device) = (cost(1_300, 0), cost(4_400, 0));
    let stays = |cpu: &Cost| {
        let others = [lane(&device, 8192, &[None])];
        leave(&lane(cpu, 512, &[None]), &others, TEXT, 0).is_none()
    };
    cpu.learn(TEXT.tokens, 500_000);
    assert!(stays(&cpu), "{:?}", cpu.of(TEXT.tokens));
    (0..3).for_each(|_| cpu.learn(TEXT.tokens, 500_000));
    assert!(!stays(&cpu), "{:?}", cpu.of(TEXT.tokens));
    // What cost nothing so far is no bound for what comes.
    let mut free = cost(0, 0);
    (0..40).for_each(|_| free.learn(TEXT.tokens, 1_000));
    assert!(free.of(TEXT.tokens).is_some_and(|us| us > 900));
}

/// The rest may be from a bad moment, and nothing else corrects it.
#[test]
fn what_has_run_outlives_a_measurement_of_other_sizes() {
    let known = |tokens, us| BatchCost { tokens, us };
    let mut cost = Cost::of_known(&[16, 64, 256].map(|tokens| known(tokens, 9_000)));
    cost.leave();
    cost.learn(64, 9_000);
    cost.measured(&[known(20, 50)]);
    assert_eq!(cost.known(), [known(20, 50), known(64, 9_000)]);
}

proptest! {
    #[test]
    fn costs_are_near_a_line_that_was_seen(fixed in 0u64..100_000, each in 1u64..1000, tokens in 8usize..20_000) {
        let seen = cost(fixed, each).of(tokens).unwrap() as f64;
        let true_us = (fixed + each * tokens as u64) as f64;
        // Beyond what was seen a fixed part grows as well.
        let slack = if tokens > 8192 { 2.5 } else { 1.01 };
        prop_assert!(seen <= true_us * slack + 2.0 && seen * slack + 2.0 >= true_us, "{seen} {true_us}");
    }

    #[test]
    fn somebody_takes_the_work(
        costs in prop::collection::vec((0u64..100_000, 1u64..1000, 1usize..10_000), 2..4),
        tokens in 1usize..100_000,
        bulk in any::<bool>(),
    ) {
        // All idle: whatever the costs, one of them does not leave it to the others.
        let known: Vec<_> = costs.iter().map(|(fixed, each, _)| cost(*fixed, *each)).collect();
        let lanes = |but: Option<usize>| -> Vec<_> {
            let all = known.iter().zip(&costs).enumerate();
            let others = all.filter(|(index, _)| Some(*index) != but);
            others.map(|(_, (cost, (_, _, max)))| lane(cost, *max, &[None])).collect()
        };
        let waiting = Waiting { tokens, bulk };
        let takes = |index: usize| leave(&lanes(None)[index], &lanes(Some(index)), waiting, 0).is_none();
        prop_assert!((0..known.len()).any(takes));
    }
}
