//! When workers are told to make sure that they compute.

use super::*;

/// How long a worker goes without here.
const HOUR_US: u64 = 3_600_000_000;

/// Nor is it ever idle: its next batch is planned, and may have begun, before it has computed this one.
#[test]
fn who_always_has_something_to_compute_is_told_as_well() {
    for begun in [false, true] {
        let (scheduler, mut plan, mut ahead) = (scheduler(), Plan::default(), Plan::default());
        let _bulk = queued(&scheduler, Priority::Bulk, 12);
        assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Batch);
        scheduler.plan_ahead(0, &mut ahead);
        assert_eq!(ahead.batch.len(), 2);
        MADE_UP_US.set(Some(HOUR_US));
        let next = scheduler.take_ahead(0, (&mut ahead, begun), &mut plan);
        assert_eq!((next, ahead.batch.len()), (begun, 0));
        scheduler.plan_ahead(0, &mut ahead);
        assert!(ahead.batch.is_empty(), "it would come first");
        assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Check);
        scheduler.change(|registry| registry.obeyed(0, Order::Check, Default::default()));
        for now_us in [HOUR_US, 2 * HOUR_US - 1] {
            MADE_UP_US.set(Some(now_us));
            assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Batch);
        }
        MADE_UP_US.set(Some(2 * HOUR_US));
        assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Check);
    }
}

#[test]
fn a_worker_in_reserve_is_told_while_it_is_needed() {
    let scheduler = scheduler_of(|pool| Pool { reserved: 1, ..pool });
    let next = || scheduler.next_batch(1, &mut Plan::default(), false);
    let both = || [Priority::Bulk, Priority::Interactive].map(|class| queued(&scheduler, class, 1));
    let _calls = both();
    assert_eq!(next(), Next::Load);
    scheduler.loaded(1, loaded("sim").1);
    assert_eq!(next(), Next::Nothing);
    MADE_UP_US.set(Some(HOUR_US));
    assert_eq!(next(), Next::Unload);
    let _calls = both();
    assert_eq!(next(), Next::Check);
}

/// However much it computes in between.
#[test]
fn who_has_left_work_to_others_for_long_is_measured_with_its_next_check() {
    let scheduler = of_two(10_000);
    let _call = queued(&scheduler, Priority::Interactive, 1);
    let next = || scheduler.next_batch(0, &mut Plan::default(), false);
    assert_eq!(next(), Next::Nothing);
    MADE_UP_US.set(Some(10 * HOUR_US - 1));
    assert_eq!((next(), scheduler.is_to_measure(0)), (Next::Check, false));
    MADE_UP_US.set(Some(10 * HOUR_US));
    assert!(scheduler.is_to_measure(0));
    scheduler.registry(|registry| registry.measured(0, "one:0", &[]));
    assert!(!scheduler.is_to_measure(0), "until it has left others as long");
}

/// What it was woken for waits on, and nobody else was.
#[test]
fn who_is_told_wakes_another_one_for_what_waits() {
    let scheduler = Arc::new(scheduler());
    scheduler.registry(|registry| registry.add(["sim", "sim"].map(loaded).into()));
    let next = || scheduler.next_batch(0, &mut Plan::default(), false);
    assert_eq!(next(), Next::Nothing);
    let told = waits(&scheduler, 1);
    let job = job(Priority::Interactive, 1);
    // As if the first alone had been notified.
    let row = entries(&scheduler, &job, Priority::Interactive, 1).remove(0);
    scheduler.lock().queue.push(row);
    MADE_UP_US.set(Some(HOUR_US));
    assert_eq!((next(), scheduler.work.notified()), (Next::Check, [1, 0]));
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Next::Batch));
}

/// Else it would come to nothing else.
#[test]
fn who_is_told_without_a_pause_computes_in_between() {
    let registry = scheduler().state.into_inner().unwrap().registry;
    let scheduler = Scheduler::new(&Limits::default(), Duration::ZERO, registry, Arc::default());
    let _calls = queued(&scheduler, Priority::Bulk, 4);
    let next = || scheduler.next_batch(0, &mut Plan::default(), false);
    assert_eq!(next(), Next::Batch);
    MADE_UP_US.set(Some(1_000));
    assert_eq!(next(), Next::Check);
    scheduler.change(|registry| registry.obeyed(0, Order::Check, Default::default()));
    assert_eq!(next(), Next::Batch);
}
