//! Whose batches, and whose times, count for a pool, and who stands in for whom.

use super::*;
use crate::backend::DEVICES_MAX;
use crate::sim::SimBackend;

/// Of two workers, and a third in reserve, whose batches have 1,000 tokens at most.
fn registry() -> Registry {
    let batch = BatchLimits { tokens_max: 1_000, tokens_measured: true, ..BatchLimits::default() };
    let pools = [config::Pool { reserved: 1, batch, ..pool() }];
    of_workers(&pools, vec![(0, loaded(0)), (0, loaded(0))])
}

pub(super) fn pool() -> config::Pool {
    config::Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(4)))))
}

/// Of workers that have loaded, each with the place of its pool.
pub(super) fn of_workers(pools: &[config::Pool], workers: Vec<(usize, Loaded)>) -> Registry {
    let mut registry = Registry::new(pools, &ModelShape::new(4, 64));
    registry.add(workers);
    registry
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
    let mut registry = registry();
    for number in 0..5_000 {
        registry.moved(0, &format!("gpu:{number}"));
        registry.learn(0, 1_000, 1_000);
    }
    assert_eq!(registry.pools[0].costs.len(), DEVICES_MAX);
    assert_eq!(registry.workers[0].device_index, DEVICES_MAX - 1);
}

/// A worker that can't be had again.
fn give_up(registry: &mut Registry, worker: usize) {
    let error = BackendError::Lost("on purpose".into());
    registry.lost(worker, &error);
    while !registry.is_given_up(&registry.workers[worker]) {
        registry.load_failed(worker, &error, 0);
    }
}

#[test]
fn who_has_measured_nothing_or_is_given_up_bounds_no_batch() {
    let mut registry = registry();
    registry.loaded(2, loaded(0));
    registry.loaded(0, loaded(500));
    registry.loaded(1, loaded(100));
    let tokens_max = |registry: &mut Registry| registry.planner(0).unwrap().tokens_max();
    assert_eq!(tokens_max(&mut registry), 100);
    give_up(&mut registry, 1);
    assert_eq!(tokens_max(&mut registry), 500);
}

#[test]
fn what_a_worker_in_reserve_takes_is_no_cost_of_the_others() {
    let (mut registry, batch) = (registry(), Batch { ids: &[1; 100], lengths: &[100] });
    registry.ran(0, &batch, (1_000, true), MemoryUse::default());
    let costs = registry.costs(100);
    registry.ran(2, &batch, (9_000, true), MemoryUse::default());
    assert_eq!((registry.costs(100), costs.is_empty()), (costs, false));
}

#[test]
fn nobody_counts_on_the_speed_of_who_is_given_up() {
    let mut registry = registry();
    registry.learn(0, 1_000, 1_000_000);
    let rates = |registry: &Registry| (registry.tokens_per_s(), registry.tokens_per_s_seen());
    assert_eq!(rates(&registry), (2_000.0, Some(2_000.0)));
    give_up(&mut registry, 1);
    assert_eq!(rates(&registry), (1_000.0, Some(1_000.0)));
}

/// The one that is woken may have none.
#[test]
fn of_two_pools_whose_costs_are_unknown_all_are_woken() {
    let registry = of_workers(&[pool(), pool()], vec![(0, loaded(0)), (1, loaded(0))]);
    assert!(registry.is_choosy(100));
}

#[test]
fn nobody_stands_in_for_who_is_given_up_and_computes() {
    let pools = [config::Pool { losses_max: Some(2), ..pool() }, pool()];
    let mut registry = of_workers(&pools, vec![(0, loaded(0)), (1, loaded(0))]);
    let error = BackendError::Lost("on purpose".into());
    (0..2).for_each(|_| registry.lost_batch(0, None, &error));
    assert!(registry.is_failing() && registry.stand_in().is_none());
    registry.lost(0, &error);
    assert!(registry.stand_in().is_some());
}

#[test]
fn who_was_given_up_is_not_back_by_an_unload() {
    let mut registry = of_workers(&[pool(), pool()], vec![(0, loaded(0)), (1, loaded(0))]);
    give_up(&mut registry, 0);
    for _ in 0..2 {
        (0..2).for_each(|worker| registry.unloaded(worker));
        assert!(!registry.is_failing() && registry.stand_in().is_some());
        registry.loaded(1, loaded(0));
        assert!(registry.stand_in().is_some());
    }
    registry.loaded(0, loaded(0));
    assert!(registry.stand_in().is_none());
    registry.unloaded(0);
    assert!(registry.stand_in().is_none(), "it was there when it was unloaded");
}
