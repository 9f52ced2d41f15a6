//! Whole histories of a small engine, made up from a seed: calls come, wait, leave and run out of time,
//! workers compute, fail, die and are unloaded, in any order that threads could have.
//!
//! Everything is the engine's own code, driven by one thread: while a backend computes, what would
//! happen on other threads happens inside its `run`, down to other workers' batches. The seed of a
//! history that breaks a promise is printed; `OP_DBUS_HISTORY` runs that one alone.

use std::cell::RefCell;
use std::pin::pin;
use std::task::{Context, Waker};

use super::*;
use crate::admission::Claim;
use crate::call::{Priority, Truncate};
use crate::clock::MADE_UP_US;
use crate::config::Limits;
use crate::job::{Job, Terms};
use crate::output::Output;
use crate::prepare::{Chunk, Input};
use crate::presence::Absence;
use crate::registry::Registry;
use crate::sim::SimBackend;
use crate::tokenizer::Tokenizer;
use scripted::backend;
use text::Text;
use world::{Asked, DIMENSIONS, INPUT_MAX, Random, World, workers};

mod scripted;
mod text;
mod world;

/// What happens in a history before it comes to its end.
const EVENTS: usize = 60;
/// How deep one thing may happen inside another.
const DEPTH_MAX: usize = 3;
/// Rounds after which everything that is left must have ended.
const ROUNDS_MAX: usize = 2_000;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn world<T>(with: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| with(world.as_mut().unwrap()))
}

fn scheduler() -> Arc<Scheduler> {
    world(|w| Arc::clone(&w.preparer.scheduler))
}

/// Whether there is a fault here: one in `n` times, while there may be any.
fn fails(n: u64) -> bool {
    world(|w| {
        let fails = w.faulty && w.random.one_in(n);
        w.faults += usize::from(fails);
        fails
    })
}

/// Something happens on another thread, unless this is deep inside of others already.
fn happens() {
    let deep = world(|w| {
        w.depth += 1;
        w.depth > DEPTH_MAX
    });
    if !deep {
        for _ in 0..world(|w| w.random.below(3)) {
            event();
        }
    }
    world(|w| w.depth -= 1);
}

fn event() {
    match world(|w| w.random.below(20)) {
        0..=4 => arrive(),
        5..=7 => tokenize(),
        8..=13 => work(world(|w| w.random.below(w.workers.len() as u64)) as usize),
        14 => leave(),
        15 | 16 => time_passes(),
        17 => {
            let admission = world(|w| Arc::clone(&w.admission));
            let why = world(|w| w.random.of(&[Absence::Idle, Absence::Asked]));
            scheduler().unload_if(why, Duration::ZERO, || admission.is_idle());
        }
        18 => begin(scheduler().sleep()),
        _ => {
            if world(|w| w.random.one_in(2)) {
                begin(async { _ = scheduler().trim().await });
            }
            if world(|w| w.random.one_in(4)) {
                scheduler().change(Registry::keep_trying);
            }
            scheduler().wake();
        }
    }
    check_bounds();
}

/// No more tokens are queued than were admitted, and no more of them than may be.
fn check_bounds() {
    world(|w| {
        let Limits { queue_tokens_max, quota_tokens, .. } = w.limits;
        let (_, queued) = w.preparer.scheduler.waiting();
        let (all, most) = w.ledger.in_flight();
        assert!(queued <= all, "{queued} tokens are queued, {all} were admitted");
        assert!(all <= queue_tokens_max, "{all} tokens of all, {queue_tokens_max} at most");
        assert!(most <= quota_tokens, "{most} tokens of one user, {quota_tokens} at most");
    });
}

/// Asks for something and goes on without waiting for it.
fn begin(asked: impl Future<Output = ()>) {
    let _ = pin!(asked).as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

fn text(random: &mut Random) -> String {
    let bytes = random.of(&[0, 1, 5, 20, 40, 100]);
    (0..bytes).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// What `Engine::embed` does with a call.
fn arrive() {
    world(|w| {
        let rows = w.random.of(&[1, 1, 2, 5, 12]);
        let texts: Vec<String> = (0..rows).map(|_| text(&mut w.random)).collect();
        let truncate = w.random.of(&[Truncate::End, Truncate::Start, Truncate::Mean]);
        let cost = |text: &String| Input::cost(text, truncate, &w.preparer.tokenizer);
        let cost = texts.iter().map(cost).sum();
        let uid = w.random.below(3) as u32;
        let class = w.random.of(&[Priority::Interactive, Priority::Bulk]);
        let claim = Claim::new(uid, cost, class);
        let Ok(permit) = w.admission.admit(claim, 1e4) else { return };
        let deadline_us = w.random.one_in(4).then(|| w.now_us + w.random.below(300));
        let (full, dimensions) = (DIMENSIONS, DIMENSIONS);
        let terms = Terms {
            uid,
            class,
            truncate,
            output: Output { full, dimensions, normalise: true, normalise_all: false },
            arrived_us: w.now_us,
            deadline_us,
        };
        let (job, result) = Job::new(terms, rows, permit, None, None);
        let at = w.random.below(rows as u64 + 1) as usize;
        for (first, inputs) in [(0, &texts[..at]), (at as u32, &texts[at..])] {
            if !inputs.is_empty() {
                let inputs = inputs.iter().cloned().map(Text).collect();
                w.chunks.push(Chunk { job: Arc::clone(&job), first, inputs });
            }
        }
        w.calls.push(Asked { texts, truncate, deadline_us, job, result, over: false });
    });
}

/// A tokenizer thread takes a chunk.
fn tokenize() {
    let taken = world(|w| {
        let chunks = w.chunks.len() as u64;
        (chunks > 0).then(|| w.chunks.swap_remove(w.random.below(chunks) as usize))
    });
    if let Some(chunk) = taken {
        let preparer = world(|w| w.preparer.clone());
        preparer.embed(&chunk);
    }
}

/// A worker does what comes next, unless it is in the middle of something.
fn work(index: usize) {
    let Some(mut worker) = world(|w| w.workers[index].take()) else { return };
    if worker.step(&mut Plan::default(), false) {
        world(|w| w.workers[index] = Some(worker));
    } else {
        scheduler().change(|registry| registry.set(index, WorkerState::Stopped));
    }
}

/// A caller stops waiting.
fn leave() {
    let left = world(|w| {
        let calls = w.calls.len() as u64;
        let call = (calls > 0).then(|| w.random.below(calls) as usize)?;
        let call = w.calls.get_mut(call).filter(|call| !call.over)?;
        call.over = true;
        Some(Arc::clone(&call.job))
    });
    if let Some(job) = left {
        job.abandon();
        scheduler().cancelled(&job);
    }
}

fn time_passes() {
    let now_us = world(|w| {
        // At times so long that what was seen before counts no more.
        w.now_us += if w.random.one_in(50) { 70_000_000 } else { w.random.of(&[1, 10, 100, 1000]) };
        w.now_us
    });
    MADE_UP_US.set(Some(now_us));
    hear();
}

/// Callers take their answers, and those whose time is over go.
fn hear() {
    let gone = world(|w| {
        let mut gone = Vec::new();
        for index in 0..w.calls.len() {
            if !w.calls[index].over && w.told(index) {
                w.calls[index].over = true;
                gone.push(Arc::clone(&w.calls[index].job));
            }
        }
        gone
    });
    for job in gone {
        // Nothing to one that was answered.
        job.abandon();
        scheduler().cancelled(&job);
    }
}

/// Makes a world with workers that are loaded, and nothing to do.
fn begin_world(seed: u64, tokenizer: &Tokenizer) {
    MADE_UP_US.set(Some(0));
    let (world_now, shared) = World::new(seed, tokenizer, backend);
    // Nothing happens before all workers are there.
    WORLD.set(Some(World { depth: DEPTH_MAX, ..world_now }));
    let workers = workers(&shared);
    world(|w| {
        w.workers = workers.into_iter().map(Some).collect();
        w.depth = 0;
        w.faulty = true;
        w.meanwhile = || {
            if world(|w| w.random.one_in(8)) {
                happens();
            }
        };
    });
}

/// Lets everything come to its end: nothing fails from here on, so that everybody is answered.
fn settle() {
    world(|w| (w.faulty, w.meanwhile) = (false, || ()));
    scheduler().wake();
    for _ in 0..ROUNDS_MAX {
        while world(|w| !w.chunks.is_empty()) {
            tokenize();
        }
        // Nothing new from here on.
        world(|w| w.depth = DEPTH_MAX);
        for worker in 0..world(|w| w.workers.len()) {
            work(worker);
        }
        world(|w| w.depth = 0);
        time_passes();
        if world(|w| w.calls.iter().all(|call| call.over)) {
            return;
        }
    }
    panic!("a call waits for ever");
}

/// Stops the engine, whatever is in flight, and looks at what is left.
fn stop() {
    let admission = world(|w| Arc::clone(&w.admission));
    admission.close();
    world(|w| w.stopped = true);
    scheduler().stop();
    settle();
    for worker in 0..world(|w| w.workers.len()) {
        // One that has begun a batch computes it first.
        work(worker);
        work(worker);
    }
    assert!(world(|w| w.workers.iter().all(Option::is_none)), "a worker has not ended");
    world(|w| w.calls.clear());
    assert_eq!(scheduler().waiting(), (0, 0), "texts and tokens are left in the queue");
    assert_eq!(admission.in_flight(), (0, 0), "calls and tokens are left in the budget");
    assert_eq!(world(|w| w.ledger.in_flight()), (0, 0), "tokens are left in the ledger");
    assert!(!world(|w| w.broken), "something was found wrong while a backend computed or loaded");
}

/// One history; how many calls and faults it had.
fn history(seed: u64, tokenizer: &Tokenizer) -> (usize, usize) {
    begin_world(seed, tokenizer);
    for _ in 0..EVENTS {
        event();
    }
    hear();
    let any_is_there = scheduler().registry(|registry| registry.any_is_there());
    if !any_is_there {
        let waiting = scheduler().waiting();
        scheduler().purge();
        assert_eq!(scheduler().waiting(), waiting, "rows of calls that are over wait for nobody");
    }
    if world(|w| w.random.one_in(2)) {
        settle();
    }
    let ended = world(|w| (w.calls.len(), w.faults));
    stop();
    ended
}

#[test]
fn every_history_keeps_every_promise() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = match number("OP_DBUS_HISTORY") {
        Some(seed) => seed..seed + 1,
        None => 0..number("OP_DBUS_HISTORIES").unwrap_or(2_000),
    };
    let count = seeds.end - seeds.start;
    let tokenizer = Tokenizer::bytes(INPUT_MAX);
    let (mut calls, mut faults) = (0, 0);
    for seed in seeds {
        let run = std::panic::AssertUnwindSafe(|| history(seed, &tokenizer));
        let Ok(ended) = std::panic::catch_unwind(run) else {
            panic!("history {seed} breaks a promise; run it alone with OP_DBUS_HISTORY={seed}");
        };
        calls += ended.0;
        faults += ended.1;
    }
    println!("figure: {count} histories with {calls} calls and {faults} faults");
    assert!(calls > 0 && faults > 0, "{calls} calls, {faults} faults");
}

/// Nobody called in between, and the next loss is no part of that row.
#[test]
fn a_check_that_is_passed_ends_the_waiting_for_losses_before() {
    let well = |_| Ok::<Box<dyn Backend>, _>(Box::new(SimBackend::new(DIMENSIONS)));
    let (_world, shared) = World::new(1, &Tokenizer::bytes(INPUT_MAX), well);
    let mut worker = workers(&shared).remove(0);
    worker.strikes = 9;
    shared.scheduler.wake();
    assert!(worker.step(&mut Plan::default(), false));
    assert_eq!(worker.strikes, 0);
}

/// No worker comes by who would drop its rows.
#[test]
fn a_call_that_is_given_up_while_it_is_tokenized_leaves_nothing_in_the_queue() {
    MADE_UP_US.set(Some(0));
    let (world_now, _shared) = World::new(1, &Tokenizer::bytes(INPUT_MAX), backend);
    WORLD.set(Some(World { meanwhile: leave, ..world_now }));
    while world(|w| w.chunks.is_empty()) {
        arrive();
    }
    while world(|w| !w.chunks.is_empty()) {
        tokenize();
    }
    assert!(world(|w| w.calls.iter().all(|call| call.over)));
    assert_eq!(scheduler().waiting(), (0, 0));
}
