//! What workers would be told, without any.

mod again;
mod checks;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::admission::{Admission, Claim, Permit};
use crate::backend::Backend;
use crate::call::{Priority, Truncate};
use crate::clock::MADE_UP_US;
use crate::config::{BatchLimits, ModelShape, Pool};
use crate::job::Terms;
use crate::output::Output;
use crate::registry::Loaded;
use crate::routing::BatchCost;
use crate::sim::SimBackend;

const DIMENSIONS: usize = 4;
/// Tokens of each row.
const TOKENS: usize = 4;
/// How long bulk waits behind interactive work.
const BULK_WAIT_US: u64 = 100;

/// Of one worker, whose batches are of two rows. Nothing is done unless the test does it.
fn scheduler() -> Scheduler {
    scheduler_of(|pool| pool)
}

/// The same, of another kind.
fn scheduler_of(kind: impl Fn(Pool) -> Pool) -> Scheduler {
    MADE_UP_US.set(Some(0));
    let model = ModelShape::new(DIMENSIONS, 2 * TOKENS);
    let batch = BatchLimits { tokens_max: 2 * TOKENS, ..BatchLimits::default() };
    let pool = Pool { batch, ..Pool::new(Box::new(|_| Ok(Box::new(SimBackend::new(DIMENSIONS))))) };
    let mut registry = Registry::new(&[kind(pool)], &model);
    registry.add(vec![(0, Loaded::of(&SimBackend::new(DIMENSIONS) as &dyn Backend))]);
    let limits = Limits { bulk_wait_us_max: BULK_WAIT_US, ..Limits::default() };
    Scheduler::new(&limits, Duration::from_secs(3600), registry, Arc::default())
}

fn loaded(provider: &str) -> (usize, Loaded) {
    (0, Loaded::of(&SimBackend::of(provider, DIMENSIONS) as &dyn Backend))
}

/// With a worker on each of two devices, of which the second is known to take a millisecond for a batch.
fn of_two(first_us: u64) -> Scheduler {
    let cost =
        |(device, us): (&str, u64)| (device.to_owned(), vec![BatchCost { tokens: 2 * TOKENS, us }]);
    let costs = BTreeMap::from([("one:0", first_us), ("two:0", 1_000)].map(cost));
    let scheduler = scheduler_of(|pool| Pool { costs: costs.clone(), ..pool });
    scheduler.registry(|registry| registry.add(["one", "two"].map(loaded).into()));
    scheduler
}

/// A call of user 1.
fn job(class: Priority, rows: usize) -> Arc<Job> {
    let admission = Admission::new(&Limits::default(), Arc::default());
    let permit = admission.admit(Claim::new(1, rows * TOKENS, class), 1.0).unwrap();
    job_of(permit, class, rows)
}

fn job_of(permit: Permit, class: Priority, rows: usize) -> Arc<Job> {
    let (full, dimensions) = (DIMENSIONS, DIMENSIONS);
    let terms = Terms {
        uid: 1,
        class,
        truncate: Truncate::End,
        output: Output { full, dimensions, normalise: true, normalise_all: false },
        arrived_us: 0,
        deadline_us: None,
    };
    Job::new(terms, rows, permit, None, None).0
}

/// The same, with its rows in the queue.
fn queued(scheduler: &Scheduler, class: Priority, rows: usize) -> Arc<Job> {
    let job = job(class, rows);
    queue(scheduler, &job, class, rows);
    job
}

fn queue(scheduler: &Scheduler, job: &Arc<Job>, class: Priority, rows: usize) {
    scheduler.push(entries(scheduler, job, class, rows));
}

fn entries(scheduler: &Scheduler, job: &Arc<Job>, class: Priority, rows: usize) -> Vec<Entry> {
    let entry = |text| Entry {
        uid: 1,
        class,
        tokens: TOKENS,
        enqueued_us: scheduler.clock.now_us(),
        failed_on: None,
        lost: false,
        missed: 0,
        item: Row { job: Arc::clone(job), slot: Slot { text, window: 0 }, ids: [7; TOKENS].into() },
    };
    (0..rows as u32).map(entry).collect()
}

fn given_up(scheduler: &Scheduler, job: &Job) {
    job.abandon();
    scheduler.cancelled(job);
}

/// Else a user who has much there could keep everybody waiting with calls that fail.
#[test]
fn calls_that_fail_have_no_batch_look_at_all_that_their_user_has_queued() {
    const LIVE: usize = 1000;
    let scheduler = scheduler();
    let _live = queued(&scheduler, Priority::Bulk, LIVE);
    let looks = Cell::new(0);
    let before_a_batch = || {
        let alive = |entry: &Entry| {
            looks.set(looks.get() + 1);
            entry.item.job.is_alive(0)
        };
        scheduler.lock().purge(&alive).len()
    };
    for _ in 0..LIVE {
        given_up(&scheduler, &job(Priority::Interactive, 1));
        assert_eq!(before_a_batch(), 0);
    }
    assert_eq!(looks.get(), 0, "none had a row there");
    let mut dropped = 0;
    for _ in 0..LIVE {
        given_up(&scheduler, &queued(&scheduler, Priority::Interactive, 1));
        dropped += before_a_batch();
        assert!(8 * (scheduler.waiting().0 - LIVE) < scheduler.waiting().0, "they hold an eighth");
    }
    assert!(dropped > 0);
    assert!(looks.get() <= 8 * dropped, "{} looks, {dropped} rows", looks.get());
    // Where a call needs their room.
    scheduler.purge();
    assert_eq!(scheduler.waiting(), (LIVE, LIVE * TOKENS));
    // Nor has one that is refused.
    let mut purges = 0;
    for _ in 0..LIVE {
        given_up(&scheduler, &queued(&scheduler, Priority::Interactive, 1));
        let waiting = scheduler.waiting();
        scheduler.purge();
        purges += usize::from(scheduler.waiting() != waiting);
    }
    assert!((1..=LIVE / 4).contains(&purges), "{purges} looks at all for {LIVE} calls");
}

/// It counts for no tokens, and for a call until it is gone.
#[test]
fn the_engines_own_call_leaves_nothing_where_no_worker_comes_by() {
    let scheduler = scheduler();
    let admission = Admission::new(&Limits::default(), Arc::default());
    let job = job_of(admission.admit_own().unwrap(), Priority::Interactive, 1);
    queue(&scheduler, &job, Priority::Interactive, 1);
    job.abandon();
    scheduler.cancelled(&job);
    drop(job);
    scheduler.purge();
    assert_eq!((scheduler.waiting(), admission.in_flight()), ((0, 0), (0, 0)));
}

/// A user may leave a million of them at once.
#[test]
fn rows_that_nobody_waits_for_leave_a_worker_no_memory_behind() {
    let scheduler = scheduler();
    let job = queued(&scheduler, Priority::Bulk, 64);
    given_up(&scheduler, &job);
    let mut plan = Plan::default();
    assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Nothing);
    assert_eq!((scheduler.lock().queue.tokens(), plan.dead.capacity()), (0, 0));
}

/// A worker that waits, on a thread of its own, and what it is told then.
fn waits(scheduler: &Arc<Scheduler>, worker: usize) -> mpsc::Receiver<Next> {
    let (tells, told) = mpsc::channel();
    let waits = Arc::clone(scheduler);
    std::thread::spawn(move || {
        tells.send(waits.next_batch(worker, &mut Plan::default(), true)).unwrap();
    });
    while !scheduler.work.has_waiters(&scheduler.lock()) {
        std::thread::yield_now();
    }
    told
}

/// Under load no worker waits, and the system would be asked to wake nobody for each call.
#[test]
fn who_waits_is_notified_and_nobody_else() {
    let scheduler = Arc::new(scheduler());
    let _first = queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(scheduler.next_batch(0, &mut Plan::default(), false), Next::Batch);
    assert_eq!(scheduler.work.notified(), [0, 0]);
    let told = waits(&scheduler, 0);
    let _second = queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Next::Batch));
    assert_eq!(scheduler.work.notified(), [1, 0]);
    let _third = queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(scheduler.work.notified(), [1, 0], "nobody waits any more");
}

/// Like cards leave each other nothing, and a slow one that wakes alone would tell nobody.
#[test]
fn all_are_notified_only_where_the_one_that_wakes_may_leave_it_to_another() {
    for (first_us, notified) in [(1_200, [1, 0]), (10_000, [0, 1])] {
        let scheduler = Arc::new(of_two(first_us));
        let told = waits(&scheduler, 1);
        let _call = queued(&scheduler, Priority::Interactive, 1);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(Next::Batch));
        assert_eq!(scheduler.work.notified(), notified, "{first_us} us");
    }
}

/// Who was to take it may sleep, where it was not notified or costs have changed since.
#[test]
fn who_leaves_the_same_to_another_again_wakes_it() {
    let scheduler = Arc::new(of_two(10_000));
    let _call = queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(scheduler.work.notified(), [0, 0], "nobody waits yet");
    let told = waits(&scheduler, 0);
    let end = Instant::now() + Duration::from_secs(60);
    let reaches = |times: usize| {
        while scheduler.work.notified()[1] < times {
            assert!(told.try_recv().is_err(), "the quick one has that done before");
            assert!(Instant::now() < end, "nobody was notified");
            std::thread::yield_now();
        }
    };
    // And again, if that was not heard.
    reaches(1);
    reaches(2);
    assert_eq!(scheduler.next_batch(1, &mut Plan::default(), false), Next::Batch);
}

#[test]
fn a_slow_device_computes_bulk_beside_interactive_work_that_it_leaves_to_a_quick_one() {
    let (scheduler, mut plan) = (of_two(10_000), Plan::default());
    let mut next = |worker: usize| {
        let next = scheduler.next_batch(worker, &mut plan, false);
        (next, plan.batch.first().map(|entry| entry.class))
    };
    let _interactive = queued(&scheduler, Priority::Interactive, 6);
    let _little = queued(&scheduler, Priority::Bulk, 2);
    assert_eq!(next(0), (Next::Nothing, None), "the other has done that before");
    let _much = queued(&scheduler, Priority::Bulk, 20);
    assert_eq!(next(0), (Next::Batch, Some(Priority::Bulk)));
    assert_eq!(next(1), (Next::Batch, Some(Priority::Interactive)));
    // Bulk leaves by its age; that some leaves beside it does not make it leave so twice in a row.
    MADE_UP_US.set(Some(BULK_WAIT_US));
    assert_eq!(next(1), (Next::Batch, Some(Priority::Bulk)));
    assert_eq!(next(0), (Next::Batch, Some(Priority::Bulk)));
    MADE_UP_US.set(Some(2 * BULK_WAIT_US));
    assert_eq!(next(1), (Next::Batch, Some(Priority::Interactive)));
}

#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_for_the_end_of_an_unload_is_told_of_a_call_that_ends_it() {
    let scheduler = scheduler();
    assert!(scheduler.unload_if(Absence::Asked, Duration::ZERO, || true));
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut unloaded = pin!(scheduler.all_unloaded());
    assert!(unloaded.as_mut().poll(&mut context).is_pending());
    queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(unloaded.as_mut().poll(&mut context).is_ready());
}

/// The end of its process takes a while, and it loads behind that.
#[test]
fn who_waits_for_workers_does_not_count_one_that_lets_its_backend_go() {
    let (scheduler, mut plan) = (scheduler(), Plan::default());
    assert!(scheduler.unload_if(Absence::Asked, Duration::ZERO, || true));
    assert_eq!(scheduler.next_batch(0, &mut plan, true), Next::Unload);
    scheduler.load();
    let mut context = Context::from_waker(Waker::noop());
    let mut loaded = pin!(scheduler.all_loaded());
    assert!(loaded.as_mut().poll(&mut context).is_pending(), "it has none in a moment");
    scheduler.change(|registry| registry.unloaded(0));
    assert_eq!(scheduler.next_batch(0, &mut plan, true), Next::Load);
    scheduler.change(|registry| registry.set(0, WorkerState::Loading));
    assert!(loaded.as_mut().poll(&mut context).is_pending());
    scheduler.loaded(0, Loaded::of(&SimBackend::new(DIMENSIONS) as &dyn Backend));
    assert!(matches!(loaded.as_mut().poll(&mut context), Poll::Ready(Ok(()))));
}

/// A device that hangs may keep that for minutes.
#[test]
fn who_waits_for_the_end_of_what_computes_waits_for_no_load() {
    let scheduler = scheduler();
    scheduler.stop();
    let woken = Arc::<Woken>::default();
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut ended = pin!(scheduler.until_registry(Registry::all_but_loading_have_ended));
    assert!(ended.as_mut().poll(&mut context).is_pending(), "its worker may be in a batch");
    scheduler.change(|registry| registry.loads(0));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(ended.as_mut().poll(&mut context).is_ready());
    let mut all = pin!(scheduler.until_registry(Registry::all_have_ended));
    assert!(all.as_mut().poll(&mut context).is_pending());
    scheduler.change(|registry| registry.set(0, WorkerState::Stopped));
    assert!(all.as_mut().poll(&mut context).is_ready());
}

/// Nobody needs it before that, and its device may be gone for good.
#[test]
fn a_lost_worker_waits_longer_for_its_next_try_while_another_device_computes() {
    const HOUR: Duration = Duration::from_secs(3600);
    let scheduler = Arc::new(scheduler());
    scheduler.registry(|registry| registry.add(["one", "one", "two"].map(loaded).into()));
    let error = BackendError::Lost("on purpose".to_owned());
    scheduler.lost(0, &error);
    assert!(scheduler.pause(0, [HOUR, Duration::ZERO]));
    let (tells, told) = mpsc::channel();
    let waits = Arc::clone(&scheduler);
    std::thread::spawn(move || {
        tells.send(false).unwrap();
        tells.send(waits.pause(0, [Duration::ZERO, HOUR])).unwrap();
    });
    assert!(!told.recv().unwrap());
    scheduler.lost(2, &error);
    let waited = told.recv_timeout(Duration::from_secs(60));
    assert_eq!(waited, Ok(true), "it waits on, with its own device alone");
    assert!(scheduler.pause(0, [Duration::ZERO, HOUR]));
}

#[test]
fn bulk_that_was_planned_ahead_and_leaves_by_its_age_is_followed_by_interactive_work() {
    let scheduler = scheduler();
    let _bulk = queued(&scheduler, Priority::Bulk, 8);
    let (mut plan, mut ahead) = (Plan::default(), Plan::default());
    assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Batch);
    scheduler.plan_ahead(0, &mut ahead);
    assert_eq!(ahead.batch.len(), 2);
    let _interactive = queued(&scheduler, Priority::Interactive, 4);
    MADE_UP_US.set(Some(BULK_WAIT_US));
    let next = scheduler.take_ahead(0, (&mut ahead, false), &mut plan);
    assert_eq!((next, plan.batch[0].class), (true, Priority::Bulk));
    // It has waited as long again.
    MADE_UP_US.set(Some(2 * BULK_WAIT_US));
    assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Batch);
    assert_eq!(plan.batch[0].class, Priority::Interactive);
}

/// Each load waits as long for what is silent, and so do its callers.
#[test]
fn a_worker_that_takes_long_not_to_load_is_given_up_sooner_where_another_pool_takes_over() {
    let error = BackendError::Lost("nobody answers".to_owned());
    let (quick, slow) = (1_000_000, 5_000_000);
    let fail = |losses_max, holds_device, times_us: &[u64]| {
        let scheduler = scheduler_of(|pool| Pool { losses_max, holds_device, ..pool });
        times_us.iter().for_each(|took_us| scheduler.load_failed(0, &error, *took_us));
        scheduler
    };
    let is_failing = |scheduler: &Scheduler| scheduler.registry(|registry| registry.is_failing());
    let why = |scheduler: &Scheduler| scheduler.registry(|registry| registry.in_vain());
    for losses_max in [None, Some(2)] {
        assert!(!is_failing(&fail(losses_max, false, &[quick; 2])));
        let three = fail(losses_max, false, &[quick; 3]);
        assert_eq!((is_failing(&three), why(&three)), (true, None));
    }
    // Callers have nobody else.
    assert!(!is_failing(&fail(None, false, &[slow; 2])));
    assert!(!is_failing(&fail(Some(2), true, &[slow])));
    for given_up in [fail(Some(2), false, &[slow]), fail(Some(2), true, &[slow, quick])] {
        assert!(is_failing(&given_up));
        assert!(why(&given_up).is_some_and(|why| why.starts_with("could not be loaded again in ")));
        assert_eq!(given_up.registry(|registry| registry.losses()), None);
        given_up.change(Registry::keep_trying);
        assert_eq!((is_failing(&given_up), why(&given_up)), (false, None));
    }
}
