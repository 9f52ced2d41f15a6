//! The running service, beside what would run if it were started now.

use op_dbus_daemon::settings::Bus;

use super::super::client::{Properties, connect};
use super::check::Check;
use super::facts;

const NAME: &str = "service";

/// Whether the service answers, and what it runs. It is not started for the question.
pub async fn check(bus: &Bus) -> Check {
    let service = match connect(bus).await {
        Ok(service) => service,
        Err(failure) => return Check::unchecked(NAME, failure.message()),
    };
    match service.is_running().await {
        Ok(true) => {}
        Ok(false) => return Check::unchecked(NAME, format!("does not run on the bus {bus}")),
        Err(failure) => return Check::unchecked(NAME, failure.message()),
    }
    let asked = async {
        let manager = service.manager().await?;
        service.told(manager.get_status()).await
    };
    match asked.await {
        Ok(status) => told(&Properties(status)),
        Err(failure) => Check::wrong(NAME, failure.message(), "type `journalctl -u op-dbus`"),
    }
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
