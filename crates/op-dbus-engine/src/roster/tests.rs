//! Whose batches, and whose times, count for a pool, and who stands in for whom.

use super::*;
use crate::backend::DEVICES_MAX;
use crate::sim::SimBackend;

/// Of two workers, and a third in reserve, whose batches have 1,000 tokens at most.
fn roster() -> Roster {
    let batch = BatchLimits { tokens_max: 1_000, tokens_measured: true, ..BatchLimits::default() };
    let pools = [config::Pool { reserved: 1, batch, ..pool() }];
    of_workers(&pools, vec![(0, loaded(0)), (0, loaded(0))])
}

pub(super) fn pool() -> config::Pool {
    config::Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(4)))))
}

/// Of workers that have loaded, each with the place of its pool.
pub(super) fn of_workers(pools: &[config::Pool], workers: Vec<(usize, Loaded)>) -> Roster {
    let (normalized, matryoshka) = (true, Vec::new());
    let model = ModelShape { dimensions: 4, max_input_tokens: 64, normalized, matryoshka };
    let mut roster = Roster::new(pools, &model);
    roster.add(workers);
    roster
}

pub(super) fn loaded(batch_tokens: usize) -> Loaded {
    let description = Description { batch_tokens, ..SimBackend::new(4).description().clone() };
    Loaded { description, memory: MemoryUse::default() }
}

pub(super) fn loaded_on(device: &str) -> Loaded {
    let device = device.to_owned();
    let description = Description { device, ..SimBackend::new(4).description().clone() };
    Loaded { description, memory: MemoryUse::default() }
}

/// As many processes may tell of, one after another.
#[test]
fn ever_new_devices_of_a_worker_take_no_more_room() {
    let mut roster = roster();
    for number in 0..5_000 {
        roster.moved(0, &format!("gpu:{number}"));
        roster.learn(0, 1_000, 1_000);
    }
    assert_eq!(roster.pools[0].known.len(), DEVICES_MAX);
    assert_eq!(roster.workers[0].lane, DEVICES_MAX - 1);
}

/// A worker that can't be had again.
fn give_up(roster: &mut Roster, worker: usize) {
    let error = BackendError::Lost("on purpose".into());
    roster.lost(worker, &error);
    while roster.can_be_had(&roster.workers[worker]) {
        roster.load_failed(worker, &error, 0);
    }
}

#[test]
fn who_has_measured_nothing_or_is_given_up_bounds_no_batch() {
    let mut roster = roster();
    roster.loaded(2, loaded(0));
    roster.loaded(0, loaded(500));
    roster.loaded(1, loaded(100));
    let tokens_max = |roster: &mut Roster| roster.planner(0).unwrap().tokens_max();
    assert_eq!(tokens_max(&mut roster), 100);
    give_up(&mut roster, 1);
    assert_eq!(tokens_max(&mut roster), 500);
}

#[test]
fn what_a_worker_in_reserve_takes_is_no_cost_of_the_others() {
    let (mut roster, batch) = (roster(), Batch { ids: &[1; 100], lengths: &[100] });
    roster.ran(0, &batch, (1_000, true), MemoryUse::default());
    let costs = roster.costs(100);
    roster.ran(2, &batch, (9_000, true), MemoryUse::default());
    assert_eq!((roster.costs(100), costs.is_empty()), (costs, false));
}

#[test]
fn nobody_counts_on_the_speed_of_who_is_given_up() {
    let mut roster = roster();
    roster.learn(0, 1_000, 1_000_000);
    let rates = |roster: &Roster| (roster.tokens_per_s(), roster.tokens_per_s_seen());
    assert_eq!(rates(&roster), (2_000.0, Some(2_000.0)));
    give_up(&mut roster, 1);
    assert_eq!(rates(&roster), (1_000.0, Some(1_000.0)));
}

/// The one that is woken may have none.
#[test]
fn of_two_pools_whose_costs_are_unknown_all_are_woken() {
    let roster = of_workers(&[pool(), pool()], vec![(0, loaded(0)), (1, loaded(0))]);
    assert!(roster.is_choosy(100));
}

#[test]
fn nobody_stands_in_for_who_is_given_up_and_computes() {
    let pools = [config::Pool { losses_max: Some(2), ..pool() }, pool()];
    let mut roster = of_workers(&pools, vec![(0, loaded(0)), (1, loaded(0))]);
    let error = BackendError::Lost("on purpose".into());
    (0..2).for_each(|_| roster.lost_batch(0, None, &error));
    assert!(roster.is_hopeless() && roster.stand_in().is_none());
    roster.lost(0, &error);
    assert!(roster.stand_in().is_some());
}

#[test]
fn who_was_given_up_is_not_back_by_an_unload() {
    let mut roster = of_workers(&[pool(), pool()], vec![(0, loaded(0)), (1, loaded(0))]);
    give_up(&mut roster, 0);
    for _ in 0..2 {
        (0..2).for_each(|worker| roster.unloaded(worker));
        assert!(!roster.is_hopeless() && roster.stand_in().is_some());
        roster.loaded(1, loaded(0));
        assert!(roster.stand_in().is_some());
    }
    roster.loaded(0, loaded(0));
    assert!(roster.stand_in().is_none());
    roster.unloaded(0);
    assert!(roster.stand_in().is_none(), "it was there when it was unloaded");
}
