//! Whether the service manager hears that the service is alive.

use std::time::Duration;

use op_dbus_engine::{Error, WorkerState};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::warn;

use crate::notify;
use crate::service::{Phase, Service};
use crate::settings::Provider;

/// A worker that has taken too long is gone by then.
const REPLACED: Duration = Duration::from_secs(5);

/// Feeds the watchdog only while texts are really embedded, or nothing is there to embed them: no model
/// serves, or it is unloaded. An unloaded model is not loaded to be looked at. What others' machines do not
/// compute is no fault of this service, which a new start would not mend; and a worker that hangs is replaced
/// without one, which would cost every call in flight.
pub(super) async fn feed(service: Service) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let (period, check_max) = pace(limit);
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let end = timeout(check_max, alive(&service)).await;
        let end = end.unwrap_or(Err(Error::DeadlineExceeded));
        // A device that hangs while it is loaded is given its time, and then the next provider is.
        let excused = || waits_for_a_fleet(&service) || service.now().is_failing_over();
        match judged(end, excused, || computes_in_time(&service)) {
            Ok(()) => notify::watchdog(),
            Err(Error::DeadlineExceeded) => {
                warn!("the watchdog is not fed: the check takes too long");
            }
            Err(error) => warn!("the watchdog is not fed: the check failed ({error})"),
        }
    }
}

/// How often to check where the manager waits for `limit`, and how long a check may take: where one fails, the next
/// still ends in time.
fn pace(limit: Duration) -> (Duration, Duration) {
    let period = limit / 3;
    (period, period / 2)
}

/// How a check that ended so is taken: as well where it is `excused`, or late behind workers that compute `in_time`.
/// It may be late by our limit or by the engine's own.
fn judged(
    end: Result<(), Error>,
    excused: impl Fn() -> bool,
    in_time: impl Fn() -> bool,
) -> Result<(), Error> {
    match end {
        Err(_) if excused() => Ok(()),
        Err(Error::DeadlineExceeded) if in_time() => Ok(()),
        end => end,
    }
}

/// Whether a worker is kept by others' machines: it computes there, or tries to have them again. Neither
/// goes on for ever, as its process is ended when its time is over.
fn waits_for_a_fleet(service: &Service) -> bool {
    let now = service.now();
    let Phase::Serving(served) = &now.phase else { return false };
    let fleet = Provider::Remote.to_string();
    let workers = served.engine.descriptions();
    workers.iter().any(|one| one.description.provider == fleet && one.state != WorkerState::Idle)
}

/// Whether workers compute, none of them for longer than it may until it is replaced; or are being replaced, since
/// the check began that one of them was lost with.
fn computes_in_time(service: &Service) -> bool {
    let now = service.now();
    let Phase::Serving(served) = &now.phase else { return false };
    // A batch, and the engine's own text where that has failed.
    let limit = 2 * Duration::from_secs(now.settings().batch_timeout_s) + REPLACED;
    served.engine.busy_for().map_or_else(|| served.engine.is_away(), |busy| busy < limit)
}

async fn alive(service: &Service) -> Result<(), Error> {
    let now = service.now();
    match &now.phase {
        Phase::Serving(served) => served.engine.canary().await,
        Phase::Disabled | Phase::Loading(_) | Phase::Failed(_) | Phase::Draining(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_check_is_excused_by_work_and_a_failed_one_is_not() {
        let is_well = |end, excused, in_time| judged(end, || excused, || in_time).is_ok();
        assert!(is_well(Ok(()), false, false));
        let late = || Err(Error::DeadlineExceeded);
        assert!(is_well(late(), true, false) && is_well(late(), false, true));
        assert!(!is_well(late(), false, false));
        let failed = || Err(Error::ShuttingDown);
        assert!(is_well(failed(), true, false) && !is_well(failed(), false, true));
    }

    #[test]
    fn one_check_may_fail() {
        let limit = Duration::from_secs(60);
        let (period, check_max) = pace(limit);
        assert!(2 * period + check_max < limit && check_max < period);
    }
}
