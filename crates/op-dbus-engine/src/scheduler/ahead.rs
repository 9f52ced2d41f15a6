//! The batch that comes next, planned while a device computes another one: between two batches it waits for
//! all that is done then.

use super::{Entry, Row, Scheduler, fail};
use crate::call::Priority;
use crate::error::Error;
use crate::planner::Plan;
use crate::reserve::Serves;

/// What a batch takes at most that is begun before it is its turn.
const BEGUN_US_MAX: u64 = 50_000;

impl Scheduler {
    /// Plans the batch that `worker` computes after the one that it is at, where a full one waits, so that none
    /// gets smaller by that. Otherwise the plan stays as it is. Tells whether that batch may be begun at once: it
    /// takes little time, and nobody is to be expected who would be served before it.
    pub fn plan_ahead(&self, worker: usize, plan: &mut Plan<Row>) -> bool {
        // Of a batch that is computed in parts each asks for it.
        if !plan.batch.is_empty() {
            return false;
        }
        let mut guard = self.lock();
        let (state, now_us) = (&mut *guard, self.clock.now_us());
        let serves = state.registry.serves(worker);
        let is_alone = state.registry.ordinary_workers() == 1 && serves == Serves::Everybody;
        // Where there are several, what one has planned would wait for it while another has nothing to do.
        if !is_alone || self.duty(state, worker, now_us).is_some() {
            return false;
        }
        let alive = |entry: &Entry| entry.item.job.is_alive(now_us);
        let mut dead = state.purge(&alive);
        let full =
            state.registry.planner(worker).map_or(usize::MAX, |planner| planner.tokens_max());
        match state.queue.turn(serves, now_us) {
            // What interactive work waits for is decided when the batch begins.
            Some((class, false))
                if state.queue.tokens_of(class) >= full
                    && (class == Priority::Interactive || !state.queue.has_interactive()) =>
            {
                state.plan(worker, (serves, now_us), &alive, plan);
                dead.append(&mut plan.dead);
            }
            _ => {}
        }
        // Whoever comes meanwhile waits for one batch more.
        let waits =
            |entry: &Entry| entry.class == Priority::Bulk && state.recent.expects_interactive();
        let tokens = plan.batch.iter().map(|entry| entry.tokens).sum();
        let is_first = plan.batch.first().is_some_and(|first| !waits(first))
            && plan.batch.iter().all(|entry| entry.failed_on.is_none())
            && state.registry.is_quick(worker, tokens, BEGUN_US_MAX);
        drop(guard);
        // Those that were cancelled have been told already.
        fail(dead, &Error::DeadlineExceeded);
        is_first
    }

    /// Puts a batch that was planned ahead into `plan`, as the one that `worker` computes now, without the rows
    /// that nobody waits for any more; false where none is left. It goes back into the queue if the worker is to do
    /// something else, or if it is the other class's turn by now. One that was begun already is computed as it is.
    pub fn take_ahead(
        &self,
        worker: usize,
        (ahead, begun): (&mut Plan<Row>, bool),
        plan: &mut Plan<Row>,
    ) -> bool {
        let Some(&Entry { class, uid, .. }) = ahead.batch.first() else { return false };
        let mut state = self.lock();
        let now_us = self.clock.now_us();
        let turn = state.queue.turn(state.registry.serves(worker), now_us);
        let is_aged = turn == Some((Priority::Bulk, true));
        let is_late = match class {
            Priority::Bulk => turn == Some((Priority::Interactive, false)),
            Priority::Interactive => is_aged,
        };
        if !begun && (is_late || self.duty(&mut state, worker, now_us).is_some()) {
            drop(state);
            self.put_back(&mut ahead.batch);
            return false;
        }
        plan.batch.clear();
        let alive = |entry: &mut Entry| begun || entry.item.job.is_alive(now_us);
        plan.batch.extend(ahead.batch.extract_if(.., alive));
        let begins = !plan.batch.is_empty();
        if begins {
            state.queue.begun(class, is_aged && class == Priority::Bulk, now_us);
            state.runs(worker, &plan.batch, now_us);
            state.recent.note(class, uid);
        }
        drop(state);
        fail(std::mem::take(&mut ahead.batch), &Error::DeadlineExceeded);
        begins
    }
}
