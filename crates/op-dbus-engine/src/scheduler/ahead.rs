//! The batch that comes next, planned while a device computes another one: between two batches it waits for
//! all that is done then.

use super::{Entry, Next, Row, Scheduler, fail};
use crate::call::Priority;
use crate::error::Error;
use crate::planner::Plan;
use crate::reserve::Serves;
use crate::routing::Running;

impl Scheduler {
    /// Plans the batch that `worker` computes after the one that it is at, where a full one waits, so that none
    /// gets smaller by that. Otherwise the plan stays as it is.
    pub fn plan_ahead(&self, worker: usize, plan: &mut Plan<Row>) {
        // Of a batch that is computed in parts each asks for it.
        if !plan.batch.is_empty() {
            return;
        }
        let mut guard = self.lock();
        let (state, now_us) = (&mut *guard, self.clock.now_us());
        let serves = state.roster.serves(worker);
        let is_alone = state.roster.ordinary_workers() == 1 && serves == Serves::Everybody;
        // Where there are several, what one has planned would wait for it while another has nothing to do.
        if !is_alone || state.duty(worker).is_some() {
            return;
        }
        let alive = |entry: &Entry| entry.item.job.is_alive(now_us);
        let mut dead = state.purge(&alive);
        let full = state.roster.planner(worker).map_or(usize::MAX, |planner| planner.tokens_max());
        let ageing = state.queue.ageing();
        match state.queue.turn(serves, now_us) {
            // What interactive work waits for is decided when the batch begins.
            Some((class, false)) if state.queue.tokens_of(class) >= full => {
                state.plan(worker, now_us, &alive, plan);
                state.queue.restore_ageing(ageing);
                dead.append(&mut plan.dead);
            }
            _ => {}
        }
        drop(guard);
        // Those that were cancelled have been told already.
        fail(dead, &Error::DeadlineExceeded);
    }

    /// Puts a batch that was planned ahead into `plan`, as the one that `worker` begins now, without the rows
    /// that nobody waits for any more. It goes back into the queue if the worker is to do something else, or if
    /// it is the other class's turn by now.
    pub fn take_ahead(
        &self,
        worker: usize,
        ahead: &mut Plan<Row>,
        plan: &mut Plan<Row>,
    ) -> Option<Next> {
        let (class, uid) = ahead.batch.first().map(|entry| (entry.class, entry.uid))?;
        let mut state = self.lock();
        let now_us = self.clock.now_us();
        let turn = state.queue.turn(state.roster.serves(worker), now_us);
        let is_aged = turn == Some((Priority::Bulk, true));
        let is_late = match class {
            Priority::Bulk => turn == Some((Priority::Interactive, false)),
            Priority::Interactive => is_aged,
        };
        if is_late || state.duty(worker).is_some() {
            drop(state);
            self.put_back(&mut ahead.batch);
            return None;
        }
        plan.batch.clear();
        let alive = |entry: &mut Entry| entry.item.job.is_alive(now_us);
        plan.batch.extend(ahead.batch.extract_if(.., alive));
        let begins = !plan.batch.is_empty();
        if begins {
            let tokens = plan.batch.iter().map(|entry| entry.tokens).sum();
            state.queue.taken(class, is_aged, now_us);
            state.roster.runs(worker, Running { class, tokens, started_us: now_us });
            state.mix.saw(class, uid);
        }
        drop(state);
        fail(std::mem::take(&mut ahead.batch), &Error::DeadlineExceeded);
        begins.then_some(Next::Batch)
    }
}
