//! The machine's sleep, as logind tells of it: devices are let go before, and loaded again after.

use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use zbus::fdo::DBusProxy;
use zbus::proxy::CacheProperties;
use zbus::{Connection, OwnedFd};

use crate::bus::question::again;
use crate::service::Service;

const LOGIND: &str = "org.freedesktop.login1";
/// logind waits 5 s for those who delay, unless its InhibitDelayMaxSec says otherwise; a worker that
/// takes longer than this is not waited for.
const RELEASE_TIME: Duration = Duration::from_secs(30);
/// How long logind has for its answer each time that it is asked to delay a sleep: the bus drops one that it has no
/// room for, and one that is late is as good.
const PATIENCE: [Duration; 2] = [Duration::from_secs(10), Duration::MAX];
/// How often logind is asked whether the sleep is over.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// The part of logind that tells of sleep.
#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Logind {
    /// Delays a sleep for as long as the descriptor is open.
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    /// The machine is about to sleep, or is awake again.
    #[zbus(signal)]
    fn prepare_for_sleep(&self, start: bool) -> zbus::Result<()>;

    /// Whether it is about to sleep, or sleeps.
    #[zbus(property)]
    fn preparing_for_sleep(&self) -> zbus::Result<bool>;
}

/// Follows logind for as long as the connection lives. Where there is none, nobody says when the
/// machine sleeps, and workers that lose their device are replaced when that is noticed.
pub async fn follow(connection: Connection, service: Service) {
    if let Err(error) = try_follow(&connection, &service).await {
        warn!("the sleep of the machine can't be followed: {error}");
    }
}

async fn try_follow(connection: &Connection, service: &Service) -> zbus::Result<()> {
    let logind = LogindProxy::builder(connection).cache_properties(CacheProperties::No);
    let logind = logind.build().await?;
    let mut owners = pin!(logind.inner().receive_owner_changed().await?);
    let bus = DBusProxy::new(connection).await?;
    // Asking for the name does not start it, as a call would.
    let is_there = bus.name_has_owner(LOGIND.try_into()?).await?;
    // Whoever else sends such a signal is passed over by the proxy. But anybody can, and where nobody takes them
    // off its queue the whole connection stands still: from here on nothing is waited for but in the loop.
    let mut sleeps = pin!(logind.receive_prepare_for_sleep().await?);
    let mut delay = None;
    let mut asked = pin!(OptionFuture::from(is_there.then(|| inhibit(&logind))));
    // While devices are released the machine may sleep, whose time does not count, and wake up.
    let mut release = pin!(OptionFuture::from(None));
    let mut over = pin!(OptionFuture::from(None));
    loop {
        let begins = tokio::select! {
            Some(answer) = &mut asked => {
                asked.set(None.into());
                delay = answer;
                continue;
            }
            Some(released) = &mut release => {
                release.set(None.into());
                match released {
                    Ok(()) => info!("the machine is about to sleep; devices are released"),
                    Err(_) => warn!("a device is still in use, or being loaded, while the machine falls asleep"),
                }
                drop(delay.take());
                continue;
            }
            Some(()) = &mut over => false,
            signal = sleeps.next() => match signal {
                Some(signal) => signal.args()?.start,
                None => return Ok(()),
            },
            owner = owners.next() => match owner {
                Some(Some(_)) => {
                    asked.set(Some(inhibit(&logind)).into());
                    continue;
                }
                // Nobody would tell us that the machine is awake.
                Some(None) => {
                    asked.set(None.into());
                    release.set(None.into());
                    over.set(None.into());
                    drop(delay.take());
                    service.wake();
                    continue;
                }
                None => return Ok(()),
            },
        };
        // While it sleeps an answer would be of no use.
        asked.set((!begins).then(|| inhibit(&logind)).into());
        release.set(begins.then(|| timeout(RELEASE_TIME, service.sleep())).into());
        over.set(begins.then(|| is_over(&logind)).into());
        if !begins {
            info!("the machine is awake; every worker proves itself again");
            service.wake();
        }
    }
}

/// Returns once logind says that the machine does not sleep: a bus that has no room for the signal drops it, and
/// tells nobody.
async fn is_over(logind: &LogindProxy<'_>) {
    loop {
        sleep(ASK_EVERY).await;
        // An answer may be lost as well.
        if let Ok(Ok(false)) = timeout(ASK_EVERY, logind.preparing_for_sleep()).await {
            return;
        }
    }
}

/// What delays the next sleep until the devices are released.
async fn inhibit(logind: &LogindProxy<'_>) -> Option<OwnedFd> {
    const MAY_SLEEP: &str = "the machine may sleep before the devices are released";
    let why = "Releasing the devices that embeddings are computed on";
    let question = || logind.inhibit("sleep", "op-dbus", why, "delay");
    let seconds = PATIENCE[0].as_secs();
    let missed = || warn!("{MAY_SLEEP}: logind has not answered in {seconds} s");
    let answer = again(question, missed, PATIENCE).await?;
    answer.inspect_err(|error| warn!("{MAY_SLEEP}: {error}")).ok()
}
