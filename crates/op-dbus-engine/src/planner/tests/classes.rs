//! Users share whatever classes they send.

use std::collections::BTreeMap;

use super::*;

proptest! {
    #[test]
    fn neither_class_starves(
        layout in layouts(),
        batch_us in 1u64..300,
        interactive in 1usize..3,
        arrivals in prop::collection::vec(0usize..4, 50..200),
    ) {
        let mut queue = Queue::new(WAIT_US);
        for _ in 0..300 {
            queue.push(simple(1, Bulk, 50));
        }
        for _ in 0..interactive {
            queue.push(simple(2, Interactive, 50));
        }
        let (mut bulk_last_us, mut bulk_in_a_row) = (0, 0);
        for (now_us, arrived) in (0..).step_by(batch_us as usize).zip(arrivals) {
            let interactive_waits = queue.turn(Serves::Everybody, 0).is_some_and(|turn| turn.0 == Interactive);
            let plan = plan(&mut queue, &budget(layout, 50), now_us, &is_alive);
            match plan.batch.first().map(|entry| entry.class) {
                Some(Bulk) => {
                    bulk_last_us = now_us;
                    bulk_in_a_row = if interactive_waits { bulk_in_a_row + 1 } else { 0 };
                    prop_assert!(bulk_in_a_row <= 1, "bulk before interactive twice in a row");
                }
                _ => bulk_in_a_row = 0,
            }
            prop_assert!(now_us - bulk_last_us <= WAIT_US + 2 * batch_us);
            for _ in 0..arrived {
                queue.push(simple(2, Interactive, 50));
            }
        }
    }
}

#[test]
fn who_calls_everything_interactive_gets_no_more_than_a_share_beside_bulk() {
    for layout in [BatchLayout::Padded, BatchLayout::Packed] {
        let mut queue = Queue::new(u64::MAX);
        let mut served = BTreeMap::from([(1, 0), (2, 0), (3, 0)]);
        let mut largest = 0;
        for number in 0..4_000 {
            queue.push(simple(1, Interactive, 50));
            queue.push(simple(2, Bulk, 50));
            queue.push(simple(3, Bulk, 50));
            let batch = plan(&mut queue, &budget(layout, 50), number, &is_alive).batch;
            batch.iter().for_each(|entry| *served.entry(entry.uid).or_default() += entry.tokens);
            let (least, most) = (served.values().min().unwrap(), served.values().max().unwrap());
            largest = largest.max(most - least);
        }
        assert!(largest <= 8192 + 2 * 50, "{layout:?}: {served:?}");
        assert!(served[&1] > served[&2], "interactive work is ahead: {served:?}");
    }
}

#[test]
fn a_burst_of_calls_goes_before_bulk_of_others_and_before_the_users_own_in_any_case() {
    let mut queue = Queue::new(u64::MAX);
    for _ in 0..1_000 {
        queue.push(simple(1, Bulk, 50));
        queue.push(simple(2, Interactive, 50));
    }
    let mut class = |uid| {
        queue.push(simple(uid, Interactive, 50));
        plan(&mut queue, &padded(50), 0, &is_alive).batch[0].class
    };
    let burst = (0..8192 / 50).filter(|_| class(2) == Interactive).count();
    assert_eq!(burst, 8192 / 50, "within a burst");
    let both = (0..8192).step_by(50).filter(|_| class(1) == Interactive).count();
    assert_eq!(both, 8192 / 50 + 1, "whose bulk waits as well");
}

/// Whoever comes while it is computed waits for that.
#[test]
fn a_worker_in_reserve_gets_the_batch_of_one_thread() {
    let budget = BatchLimits { threads: 4, ..budget(BatchLayout::Packed, 400) };
    let mut planner = Planner::new(budget);
    let rows = |serves| {
        let mut queue = Queue::new(WAIT_US);
        (0..40).for_each(|_| queue.push(simple(1, Interactive, 10)));
        let mut plan = Plan::default();
        planner.plan(&mut queue, (serves, 0), &is_alive, &mut plan);
        plan.batch.len()
    };
    let taken = [Serves::Everybody, Serves::Interactive, Serves::Everybody].map(rows);
    assert_eq!(taken, [40, 10, 40]);
}

/// With a worker in reserve, which has nothing but interactive work to do and so gets a user ahead, and without.
#[test]
fn who_comes_anew_is_not_behind_those_who_wait() {
    for (layout, reserve) in [(BatchLayout::Padded, false), (BatchLayout::Packed, true)] {
        let mut queue = Queue::new(u64::MAX);
        let mut planner = Planner::new(budget(layout, 50));
        let mut plan = Plan::default();
        let mut waited = BTreeMap::new();
        let mut take = |queue: &mut Queue<Item>, serves| {
            planner.plan(queue, (serves, 0), &is_alive, &mut plan);
            plan.batch.iter().map(|entry| entry.uid).collect::<Vec<_>>()
        };
        for round in 0..3_000 {
            queue.push(simple(1, Interactive, 50));
            queue.push(simple(1, Interactive, 50));
            queue.push(simple(2, Bulk, 50));
            // One sends a bulk text when its last was served, one now and then an interactive one.
            for (uid, class, now) in [(3, Bulk, true), (4, Interactive, round % 100 == 99)] {
                if now && queue.texts_of(uid) == 0 {
                    queue.push(simple(uid, class, 50));
                    waited.insert(uid, round);
                }
            }
            if reserve {
                take(&mut queue, Serves::Interactive);
            }
            for uid in take(&mut queue, Serves::Everybody) {
                let since = waited.get(&uid).map_or(0, |since| round - since);
                // Until those have their turn who were served less, of whom there are two.
                assert!(since <= 4 || round < 400, "{layout:?}: {uid} waited {since} rounds");
            }
        }
        // Who was ahead has stopped, and others have the same wait as before.
        queue.purge(1, &|_| false);
        queue.push(simple(4, Interactive, 50));
        assert!(take(&mut queue, Serves::Everybody).contains(&4), "{layout:?}");
    }
}
