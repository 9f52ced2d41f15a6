//! The batch that comes next, planned while a device computes another one: between two batches it waits for
//! all that is done then.

use super::{Entry, Next, Row, Scheduler, fail};
use crate::call::Priority;
use crate::error::Error;
use crate::planner::{self, Plan};
use crate::reserve::Serves;
use crate::routing::Running;

impl Scheduler {
    /// Plans the batch that `worker` computes after the one that it is at: where full batches wait for every
    /// worker, so that none gets smaller, or finds nothing to do, by that. Otherwise the plan stays
    /// as it is.
    pub fn plan_ahead(&self, worker: usize, plan: &mut Plan<Row>) {
        // Of a batch that is computed in parts each asks for it.
        if !plan.batch.is_empty() {
            return;
        }
        let mut guard = self.lock();
        let (state, now_us) = (&mut *guard, self.clock.now_us());
        let serves = state.roster.serves(worker);
        let is_settled = state.duty(worker).is_none() && serves == Serves::Everybody;
        // Who computes a batch of those is decided when it begins.
        if !is_settled || state.roster.is_mixed() || state.roster.minds_memory() {
            return;
        }
        let Some(first) = planner::first(&state.queue, serves, now_us) else { return };
        let (class, is_new) = (first.class, first.failed_on.is_none());
        let full = state.roster.planner(worker).map_or(usize::MAX, |planner| planner.tokens_max());
        let needed = full.saturating_mul(state.roster.ordinary_workers());
        if !is_new || state.queue.tokens_of(class) < needed {
            return;
        }
        let alive = |entry: &Entry| entry.item.job.is_alive(now_us);
        state.plan(worker, now_us, &alive, plan);
        drop(guard);
        // As where a batch is planned that begins at once.
        fail(std::mem::take(&mut plan.dead), &Error::DeadlineExceeded);
    }

    /// Puts a batch that was planned ahead into `plan`, as the one that `worker` begins now. It goes back into
    /// the queue if it is bulk and somebody waits whose turn comes first.
    pub fn take_ahead(
        &self,
        worker: usize,
        ahead: &mut Plan<Row>,
        plan: &mut Plan<Row>,
    ) -> Option<Next> {
        let first = ahead.batch.first()?;
        let (class, uid, tokens) =
            (first.class, first.uid, ahead.batch.iter().map(|entry| entry.tokens).sum());
        let mut state = self.lock();
        if class == Priority::Bulk && state.queue.has_interactive() {
            drop(state);
            self.put_back(&mut ahead.batch);
            return None;
        }
        let started_us = self.clock.now_us();
        state.roster.runs(worker, Running { class, tokens, started_us });
        state.mix.saw(class, uid);
        std::mem::swap(ahead, plan);
        ahead.batch.clear();
        Some(Next::Batch)
    }
}
