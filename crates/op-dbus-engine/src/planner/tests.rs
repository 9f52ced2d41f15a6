//! The queue and the planner, driven as the workers drive them, with time and arrivals made up.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::call::Priority::{Bulk, Interactive};
use crate::reserve::Serves;

mod classes;

const WAIT_US: u64 = 100;

#[derive(Clone, Debug)]
struct Item {
    number: usize,
    alive: bool,
}

fn entry(uid: u32, class: Priority, tokens: usize, item: Item) -> Entry<Item> {
    let (failed_on, lost, missed) = Default::default();
    Entry { uid, class, tokens, enqueued_us: item.number as u64, failed_on, lost, missed, item }
}

fn simple(uid: u32, class: Priority, tokens: usize) -> Entry<Item> {
    entry(uid, class, tokens, Item { number: 0, alive: true })
}

fn budget(layout: BatchLayout, tokens_max: usize) -> BatchLimits {
    let (rows_max, attention_max, padding_percent_max) = (512, u64::MAX, 100);
    let tokens_measured = false;
    BatchLimits {
        layout,
        tokens_max,
        tokens_measured,
        rows_max,
        attention_max,
        padding_percent_max,
        threads: 1,
    }
}

fn padded(tokens_max: usize) -> BatchLimits {
    budget(BatchLayout::Padded, tokens_max)
}

fn layouts() -> impl Strategy<Value = BatchLayout> {
    prop_oneof![Just(BatchLayout::Padded), Just(BatchLayout::Packed)]
}

/// A plan by a new planner.
fn plan(
    queue: &mut Queue<Item>,
    budget: &BatchLimits,
    now_us: u64,
    alive: &dyn Fn(&Entry<Item>) -> bool,
) -> Plan<Item> {
    let mut plan = Plan::default();
    Planner::new(*budget).plan(queue, (Serves::Everybody, now_us), alive, &mut plan);
    if let Some(first) = plan.batch.first() {
        queue.begun(first.class, plan.aged, now_us);
    }
    plan
}

fn is_alive(entry: &Entry<Item>) -> bool {
    entry.item.alive
}

fn check_batch(batch: &[Entry<Item>], budget: &BatchLimits) -> Result<(), TestCaseError> {
    let longest = batch.iter().map(|entry| entry.tokens).max().unwrap_or(0);
    let real: usize = batch.iter().map(|entry| entry.tokens).sum();
    let padded = batch.len() * longest;
    if batch.len() > 1 {
        prop_assert!(batch.len() <= budget.rows_max);
        prop_assert!(batch.iter().all(|entry| entry.failed_on.is_none()));
    }
    if batch.len() > 1 && budget.layout == BatchLayout::Packed {
        let squares: usize = batch.iter().map(|entry| entry.tokens * entry.tokens).sum();
        prop_assert!(real <= budget.tokens_max);
        prop_assert!(squares as u64 <= budget.attention_max);
    } else if batch.len() > 1 {
        prop_assert!(padded <= budget.tokens_max);
        prop_assert!((padded * longest) as u64 <= budget.attention_max);
        let padding = (padded - real) * 100;
        let allowed = padded * budget.padding_percent_max;
        prop_assert!(padded <= PADDING_EXEMPT_TOKENS || padding <= allowed);
    }
    prop_assert!(batch.iter().all(|entry| entry.class == batch[0].class));
    Ok(())
}

fn budgets() -> impl Strategy<Value = BatchLimits> {
    (layouts(), 1usize..300, 1usize..20, 1u64..20_000, 0usize..40).prop_map(
        |(layout, tokens_max, rows_max, attention_max, padding_percent_max)| BatchLimits {
            tokens_measured: false,
            layout,
            tokens_max,
            rows_max,
            attention_max,
            padding_percent_max,
            threads: 1,
        },
    )
}

type Arrival = (u32, bool, usize, bool, bool);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    let arrival = (0u32..4, any::<bool>(), 1usize..60, prop::bool::weighted(0.9), any::<bool>());
    prop::collection::vec(arrival, 0..200)
}

proptest! {
    #[test]
    fn nothing_is_lost_or_doubled_and_budgets_hold(
        arrivals in arrivals(),
        budget in budgets(),
        plans_between in 0usize..3,
    ) {
        let mut queue = Queue::new(WAIT_US);
        let mut left = vec![0; arrivals.len()];
        let mut now_us = 0;
        let (mut planner, mut plan) = (Planner::new(budget), Plan::default());
        let mut take = |queue: &mut Queue<Item>| -> Result<bool, TestCaseError> {
            now_us += 7;
            planner.plan(queue, (Serves::Everybody, now_us), &is_alive, &mut plan);
            check_batch(&plan.batch, &budget)?;
            for entry in &plan.batch {
                prop_assert!(entry.item.alive);
                left[entry.item.number] += 1;
            }
            for entry in &plan.dead {
                prop_assert!(!entry.item.alive);
                left[entry.item.number] += 1;
            }
            Ok(!plan.batch.is_empty())
        };
        for (number, (uid, bulk, tokens, alive, alone)) in arrivals.iter().enumerate() {
            let class = if *bulk { Bulk } else { Interactive };
            let mut entry = entry(*uid, class, *tokens, Item { number, alive: *alive });
            entry.failed_on = (*alone && number % 5 == 0).then_some(0);
            if entry.failed_on.is_some() { queue.push_front(entry) } else { queue.push(entry) }
            if number % 10 == 0 {
                for _ in 0..plans_between {
                    take(&mut queue)?;
                }
            }
        }
        while take(&mut queue)? {}
        prop_assert!(left.iter().all(|count| *count == 1));
        prop_assert_eq!((queue.texts(), queue.tokens(), queue.oldest_us()), (0, 0, None));
    }

    #[test]
    fn users_who_wait_share_by_tokens(
        layout in layouts(),
        lengths in prop::collection::vec(1usize..60, 2..5),
        tokens_max in 60usize..600,
    ) {
        let mut queue = Queue::new(WAIT_US);
        for (uid, tokens) in (0..).zip(&lengths) {
            for _ in 0..20_000 / tokens {
                queue.push(simple(uid, Interactive, *tokens));
            }
        }
        let mut served = vec![0; lengths.len()];
        for _ in 0..10_000 / tokens_max {
            for entry in plan(&mut queue, &budget(layout, tokens_max), 0, &is_alive).batch {
                served[entry.uid as usize] += entry.tokens;
            }
            let (least, most) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            prop_assert!(most - least <= 3 * tokens_max, "{served:?}");
        }
    }

    #[test]
    fn a_long_text_is_not_put_off_for_short_ones(
        layout in layouts(),
        long in 40usize..80,
        before in 0usize..5,
        arrivals in prop::collection::vec((0u32..3, 1usize..20), 1..6),
    ) {
        const TOKENS_MAX: usize = 64;
        let budget = budget(layout, TOKENS_MAX);
        let mut queue = Queue::new(WAIT_US);
        for _ in 0..before {
            queue.push(simple(0, Interactive, 10));
        }
        queue.push(entry(0, Interactive, long, Item { number: 1, alive: true }));
        let mut now = 1;
        // Each that was there before it and itself, with what may overtake each; as much for the
        // two others, and some batches that each of the three may be ahead of the others.
        let served_max = 3 * ((before + 1) * (10 + 64 * 20) + 5 * TOKENS_MAX);
        let mut served = 0;
        loop {
            for (uid, tokens) in &arrivals {
                now += 1;
                queue.push(entry(*uid, Interactive, *tokens, Item { number: now, alive: true }));
            }
            let batch = plan(&mut queue, &budget, 0, &is_alive).batch;
            check_batch(&batch, &budget)?;
            served += batch.iter().map(|entry| entry.tokens).sum::<usize>();
            prop_assert!(served <= served_max);
            if batch.iter().any(|entry| entry.item.number == 1) {
                break;
            }
        }
    }
}

#[test]
fn what_did_not_fit_makes_batches_smaller_for_a_time() {
    let mut planner = Planner::new(padded(1_000));
    let rows_at = |planner: &mut Planner, now_us| {
        let (mut queue, mut plan) = (Queue::new(WAIT_US), Plan::default());
        (0..100).for_each(|_| queue.push(simple(1, Bulk, 10)));
        planner.plan(&mut queue, (Serves::Everybody, now_us), &is_alive, &mut plan);
        plan.batch.len()
    };
    assert_eq!(rows_at(&mut planner, 0), 100);
    assert_eq!(planner.did_not_fit(1_000, 0), Some(500));
    assert_eq!(planner.did_not_fit(500, 1), Some(250));
    assert_eq!(planner.did_not_fit(800, 2), None, "batches are smaller already");
    assert_eq!(rows_at(&mut planner, TIGHT_US), 25);
    assert_eq!(rows_at(&mut planner, TIGHT_US + 1), 50);
    assert_eq!(rows_at(&mut planner, TIGHT_US + 2), 50);
    assert_eq!(rows_at(&mut planner, 2 * TIGHT_US + 1), 100);
    // A single row goes in any case, and after a long time all is as it was.
    assert_eq!(planner.did_not_fit(1, 0), Some(1));
    assert_eq!((rows_at(&mut planner, 0), rows_at(&mut planner, 10 * TIGHT_US)), (1, 100));
}

#[test]
fn packed_batches_are_filled_in_the_order_of_turns() {
    let mut queue = Queue::new(WAIT_US);
    for (number, (uid, tokens)) in
        [(1, 30), (1, 50), (2, 8), (2, 40), (1, 15), (2, 7)].into_iter().enumerate()
    {
        queue.push(entry(uid, Interactive, tokens, Item { number, alive: true }));
    }
    let packed = budget(BatchLayout::Packed, 100);
    let mut numbers = || -> Vec<usize> {
        let batch = plan(&mut queue, &packed, 0, &is_alive).batch;
        batch.iter().map(|entry| entry.item.number).collect()
    };
    // 50 of the first user does not fit behind 30 + 8 + 40; 15 does, and so does 7.
    assert_eq!(numbers(), [0, 2, 3, 4, 5]);
    assert_eq!(numbers(), [1]);
}

#[test]
fn packed_batches_of_a_deep_queue_are_full_whatever_the_lengths() {
    let mut queue = Queue::new(WAIT_US);
    for number in 0..3000 {
        queue.push(simple(number % 3, Bulk, 4 + (number as usize * 7919) % 250));
    }
    let (mut batches, mut real) = (0, 0);
    while queue.texts() > 100 {
        let batch = plan(&mut queue, &budget(BatchLayout::Packed, 512), 0, &is_alive).batch;
        real += batch.iter().map(|entry| entry.tokens).sum::<usize>();
        batches += 1;
    }
    assert!(real * 100 >= batches * 512 * 95, "{real} tokens in {batches} batches");
}

#[test]
fn who_comes_back_after_each_batch_does_not_push_others_aside() {
    let mut queue = Queue::new(WAIT_US);
    let mut served = BTreeMap::from([(1, 0), (2, 0)]);
    for _ in 0..100 {
        queue.push(simple(1, Interactive, 50));
    }
    for _ in 0..50 {
        queue.push(simple(2, Interactive, 50));
        for entry in plan(&mut queue, &padded(50), 0, &is_alive).batch {
            *served.entry(entry.uid).or_default() += 1;
        }
    }
    assert!(served[&1] >= 24 && served[&2] >= 24, "{served:?}");
}

#[test]
fn who_sends_one_long_text_at_a_time_shares_by_tokens_too() {
    let mut queue = Queue::new(WAIT_US);
    let mut served = [0, 0];
    for number in 0..100 {
        queue.push(entry(0, Interactive, 50, Item { number, alive: true }));
    }
    for number in 100..160 {
        if queue.lane(Interactive, 1).is_none_or(|(_, lane)| lane.entries.is_empty()) {
            queue.push(entry(1, Interactive, 500, Item { number, alive: true }));
        }
        for entry in plan(&mut queue, &padded(50), 0, &is_alive).batch {
            served[entry.uid as usize] += entry.tokens;
        }
    }
    assert!(served[0].abs_diff(served[1]) <= 1000, "{served:?}");
}

#[test]
fn what_is_put_back_is_charged_once() {
    for layout in [BatchLayout::Padded, BatchLayout::Packed] {
        let budget = budget(layout, 64);
        let mut queue = Queue::new(WAIT_US);
        for uid in [1, 2] {
            (0..100).for_each(|_| queue.push(simple(uid, Interactive, 8)));
        }
        let (mut served, mut fails) = (BTreeMap::<u32, usize>::new(), true);
        // Every other batch of the first user's fails, and is tried once more.
        for _ in 0..40 {
            for mut entry in plan(&mut queue, &budget, 0, &is_alive).batch.into_iter().rev() {
                fails = !fails;
                if fails && entry.uid == 1 && entry.failed_on.is_none() {
                    entry.failed_on = Some(0);
                    queue.push_front(entry);
                } else {
                    *served.entry(entry.uid).or_default() += entry.tokens;
                }
            }
        }
        assert!(served[&1].abs_diff(served[&2]) <= 64, "{layout:?}: {served:?}");
    }
}

#[test]
fn the_nearest_in_length_join_the_oldest() {
    let mut queue = Queue::new(WAIT_US);
    for (number, tokens) in [30, 500, 31, 8, 29, 30].into_iter().enumerate() {
        queue.push(entry(1, Interactive, tokens, Item { number, alive: true }));
    }
    let batch = plan(&mut queue, &padded(125), 0, &is_alive).batch;
    let mut numbers: Vec<_> = batch.iter().map(|entry| entry.item.number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 2, 4, 5]);
    let next = plan(&mut queue, &padded(125), 0, &is_alive).batch;
    assert_eq!(next[0].tokens, 500, "a single row may exceed the budget");
}

#[test]
fn a_deep_queue_of_mixed_lengths_wastes_little() {
    let mut queue = Queue::new(WAIT_US);
    let mut seed = 7u64;
    for _ in 0..5000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        queue.push(simple(1, Bulk, 4 + (seed >> 33) as usize % 250));
    }
    let padding_percent_max = BatchLimits::default().padding_percent_max;
    let budget = BatchLimits { padding_percent_max, ..padded(512) };
    let (mut real, mut padded) = (0, 0);
    loop {
        let batch = plan(&mut queue, &budget, 0, &is_alive).batch;
        let Some(longest) = batch.iter().map(|entry| entry.tokens).max() else { break };
        real += batch.iter().map(|entry| entry.tokens).sum::<usize>();
        padded += longest * batch.len();
    }
    assert!(padded * 100 <= real * 115, "{padded} padded of {real}");
}

#[test]
fn purging_takes_one_users_dead_only() {
    let mut queue = Queue::new(WAIT_US);
    for (uid, alive) in [(1, true), (1, false), (2, false)] {
        queue.push(entry(uid, Bulk, 5, Item { number: 0, alive }));
    }
    queue.push(entry(1, Interactive, 7, Item { number: 0, alive: true }));
    assert_eq!((queue.tokens_of(Bulk), queue.tokens_of(Interactive)), (15, 7));
    assert_eq!(plan(&mut queue, &padded(512), 0, &is_alive).batch.len(), 1);
    assert_eq!((queue.tokens_of(Bulk), queue.tokens_of(Interactive)), (15, 0));
    assert_eq!(queue.purge(1, &is_alive).len(), 1);
    assert_eq!((queue.texts(), queue.tokens()), (2, 10));
    assert_eq!(queue.clear().len(), 2);
    assert_eq!((queue.texts(), queue.tokens()), (0, 0));
}
