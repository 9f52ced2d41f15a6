//! Rows of batches that failed.

use super::*;

#[test]
fn what_nobody_waits_for_or_computes_is_not_tried_again_and_not_counted() {
    let (scheduler, mut plan) = (scheduler(), Plan::default());
    let over = queued(&scheduler, Priority::Interactive, 1);
    let _waits = queued(&scheduler, Priority::Interactive, 1);
    assert_eq!(scheduler.next_batch(0, &mut plan, false), Next::Batch);
    assert_eq!(plan.batch.len(), 2);
    over.abandon();
    let error = BackendError::Failed("on purpose".to_owned());
    scheduler.try_again(0, &mut plan.batch, &error, false);
    assert_eq!((scheduler.stats.snapshot().retries, scheduler.waiting().0), (1, 1));
    let late = job(Priority::Interactive, 1);
    let mut late = entries(&scheduler, &late, Priority::Interactive, 1);
    scheduler.stop();
    scheduler.try_again(0, &mut late, &error, false);
    assert_eq!((scheduler.stats.snapshot().retries, scheduler.waiting().0), (1, 0));
}
