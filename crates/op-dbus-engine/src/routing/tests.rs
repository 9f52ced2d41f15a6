//! Whose turn it is, by costs that are made up.

use proptest::prelude::*;

use super::*;

/// A device whose batches take `fixed` microseconds and `each` more for a token.
fn cost(fixed: u64, each: u64) -> Cost {
    let mut cost = Cost::default();
    for octave in 3..14 {
        let tokens = 1 << octave;
        cost.learn(tokens, fixed + each * tokens as u64);
    }
    cost
}

fn idle(cost: &Cost, tokens_max: usize) -> Candidate<'_> {
    Candidate { cost, tokens_max, running: None }
}

/// Tokens of a text that waits alone.
const TEXT: usize = 20;

#[test]
fn small_work_stays_where_it_starts_at_once_and_large_work_goes_where_it_is_fast() {
    // A CPU, and a device that is twenty times as fast once it has begun.
    let (cpu, device) = (cost(100, 100), cost(5_000, 5));
    let (cpu, device) = (idle(&cpu, 512), idle(&device, 8192));
    assert_eq!(wait_for_others(&cpu, [device], TEXT, 0), None);
    assert!(wait_for_others(&device, [cpu], TEXT, 0).is_some());
    assert!(wait_for_others(&cpu, [device], 500, 0).is_some());
    assert_eq!(wait_for_others(&device, [cpu], 500, 0), None);
}

#[test]
fn a_slow_pool_helps_with_what_the_fast_one_would_not_come_to() {
    let (cpu, device) = (cost(0, 100), cost(1_000, 5));
    let running = Some(Running { class: Priority::Interactive, tokens: 8192, started_us: 0 });
    let (cpu, device) = (idle(&cpu, 512), Candidate { running, ..idle(&device, 8192) });
    // The device needs 42 ms for the batch that it runs, and 42 ms for each that follows.
    let left = |tokens, now_us| wait_for_others(&cpu, [device], tokens, now_us).is_some();
    assert!(!left(400, 0), "40 ms here are sooner than 42 and another 3 there");
    assert!(left(400, 20_000), "22 and another 3 are sooner");
    assert!(left(8192, 40_000), "it will be through in 45 ms");
    assert!(!left(3 * 8192, 40_000), "it will be busy for 129 ms");
}

#[test]
fn a_pool_that_is_late_is_relied_on_less_and_less() {
    let (slow, fast) = (cost(0, 1_000), cost(0, 10));
    let running = Some(Running { class: Priority::Interactive, tokens: 100, started_us: 0 });
    let (slow, fast) = (idle(&slow, 512), Candidate { running, ..idle(&fast, 512) });
    let left = |now_us| wait_for_others(&slow, [fast], TEXT, now_us);
    // 20 ms here; it was to be done after 1 ms there.
    assert_eq!(left(500), Some(Duration::from_millis(20)));
    assert!(left(10_000).is_some());
    assert_eq!(left(60_000), None);
}

#[test]
fn without_anybody_else_or_any_knowledge_the_batch_is_taken() {
    let (known, unknown) = (cost(0, 1), Cost::default());
    let (mine, untried) = (idle(&known, 512), idle(&unknown, 512));
    assert_eq!(wait_for_others(&mine, [], TEXT, 0), None);
    assert_eq!(wait_for_others(&mine, [untried], TEXT, 0), None);
    assert_eq!(wait_for_others(&untried, [mine], TEXT, 0), None);
}

#[test]
fn a_bad_moment_moves_nothing_and_several_do() {
    let (mut cpu, device) = (cost(1_300, 0), cost(4_400, 0));
    let stays =
        |cpu: &Cost| wait_for_others(&idle(cpu, 512), [idle(&device, 8192)], TEXT, 0).is_none();
    cpu.learn(TEXT, 500_000);
    assert!(stays(&cpu), "{:?}", cpu.of(TEXT));
    (0..3).for_each(|_| cpu.learn(TEXT, 500_000));
    assert!(!stays(&cpu), "{:?}", cpu.of(TEXT));
    // What cost nothing so far is no bound for what comes.
    let mut free = cost(0, 0);
    (0..40).for_each(|_| free.learn(TEXT, 1_000));
    assert!(free.of(TEXT).is_some_and(|us| us > 900));
}

/// The rest may be from a bad moment, and nothing else corrects it.
#[test]
fn what_has_run_outlives_a_measurement_of_other_sizes() {
    let known = |tokens, us| BatchCost { tokens, us };
    let mut cost = Cost::of_known(&[16, 64, 256].map(|tokens| known(tokens, 9_000)));
    cost.note_left();
    cost.learn(64, 9_000);
    cost.measured(&[known(20, 50)]);
    assert_eq!(cost.known(), [known(20, 50), known(64, 9_000)]);
}

/// Tokens of a full batch.
const FULL: usize = 512;

/// How many of so many full batches that wait each of two devices takes, of which the second is asked first.
fn shared_out(costs: &[Cost; 2], mut batches: usize) -> [usize; 2] {
    let (mut running, mut taken, mut now_us) = ([None; 2], [0, 0], 0);
    loop {
        for worker in [1, 0] {
            let of = |n: usize| Candidate { running: running[n], ..idle(&costs[n], FULL) };
            let (own, other) = (of(worker), of(1 - worker));
            let is_asked = batches > 0 && own.running.is_none();
            if is_asked && wait_for_others(&own, [other], batches * FULL, now_us).is_none() {
                let (class, tokens, started_us) = (Priority::Bulk, FULL, now_us);
                running[worker] = Some(Running { class, tokens, started_us });
                (batches, taken[worker]) = (batches - 1, taken[worker] + 1);
            }
        }
        let end = |n: usize| running[n].map(|it| it.started_us + costs[n].of(FULL).unwrap());
        let ends = [end(0), end(1)];
        let Some(next_us) = ends.iter().flatten().min() else { return taken };
        now_us = *next_us;
        for (running, end) in running.iter_mut().zip(ends) {
            if end == Some(now_us) {
                *running = None;
            }
        }
    }
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
    ) {
        // All idle: whatever the costs, one of them does not leave it to the others.
        let known: Vec<_> = costs.iter().map(|(fixed, each, _)| cost(*fixed, *each)).collect();
        let all: Vec<_> = known.iter().zip(&costs).map(|(cost, of)| idle(cost, of.2)).collect();
        let takes = |index: usize| {
            let others = all.iter().enumerate().filter(|(other, _)| *other != index);
            wait_for_others(&all[index], others.map(|(_, other)| *other), tokens, 0).is_none()
        };
        prop_assert!((0..all.len()).any(takes));
    }

    #[test]
    fn devices_that_are_alike_leave_each_other_nothing(
        us in 100u64..100_000,
        percent in 100u64..120,
        tokens in 1usize..100_000,
    ) {
        let costs = [cost(us, 0), cost(us * percent / 100, 0)];
        let [one, other] = [0, 1].map(|n: usize| idle(&costs[n], FULL));
        prop_assert_eq!(wait_for_others(&one, [other], tokens, 0), None);
        prop_assert_eq!(wait_for_others(&other, [one], tokens, 0), None);
    }

    /// Neither has nothing to do for longer than the slow one's batch takes, and little work is the quick one's.
    #[test]
    fn a_queue_is_shared_in_proportion(
        quick in (0u64..10_000, 1u64..100),
        times in 2u64..10,
        batches in 1usize..200,
    ) {
        let (fixed, each) = quick;
        let costs = [cost(fixed, each), cost(fixed * times, each * times)];
        let [quick_us, slow_us] = [0, 1].map(|n: usize| costs[n].of(FULL).unwrap());
        let taken = shared_out(&costs, batches);
        prop_assert_eq!(taken[0] + taken[1], batches);
        let busy_us = [taken[0] as u64 * quick_us, taken[1] as u64 * slow_us];
        prop_assert!(busy_us[0].abs_diff(busy_us[1]) <= slow_us + quick_us, "{taken:?}");
        if (batches as u64) < times {
            prop_assert_eq!(taken[1], 0);
        }
    }
}
