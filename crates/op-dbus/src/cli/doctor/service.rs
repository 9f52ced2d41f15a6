//! The running service, beside what would run if it were started now.

use op_dbus_daemon::settings::{Bus, Origin};

use super::super::Failure;
use super::super::client::{Properties, connect};
use super::check::Check;
use super::facts;

const NAME: &str = "service";

/// Whether the service answers, and what it runs; and what is wrong with the bus, if that does not answer and is
/// one that somebody asked for: of the system's the machine may have none yet. The service is not started for the
/// question.
pub async fn checks(bus: &Bus, origin: &Origin) -> (Check, Option<Check>) {
    let running = async {
        let service = connect(bus).await?;
        Ok::<_, Failure>(service.is_running().await?.then_some(service))
    };
    let service = match running.await {
        Ok(Some(service)) => service,
        Ok(None) => {
            return (Check::unchecked(NAME, format!("does not run on the bus {bus}")), None);
        }
        Err(failure) if *bus == Bus::System => {
            return (Check::unchecked(NAME, failure.message()), None);
        }
        Err(failure) => {
            let next = format!("name a bus that answers; this one comes from {origin}");
            let wrong = Check::wrong("bus", failure.message(), next);
            return (Check::unchecked(NAME, "needs the bus"), Some(wrong));
        }
    };
    let asked = async {
        let manager = service.manager().await?;
        service.told(manager.get_status()).await
    };
    let check = match asked.await {
        Ok(status) => told(&Properties(status)),
        Err(failure) => Check::wrong(NAME, failure.message(), "type `journalctl -u op-dbus`"),
    };
    (check, None)
}

fn told(status: &Properties) -> Check {
    let (state, summary) = (status.text("state"), status.text("status"));
    let found = format!("answers, {state}: {summary}");
    match state {
        "failed" | "degraded" => {
            let mend = facts::known(summary).unwrap_or("mend what else is said here");
            Check::wrong(NAME, found, format!("{mend}, then type `systemctl restart op-dbus`"))
        }
        _ => Check::ok(NAME, found),
    }
}
