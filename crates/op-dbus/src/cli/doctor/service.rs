//! The running service, beside what would run if it were started now.

use op_dbus_daemon::settings::{Bus, Origin};

use super::super::Failure;
use super::super::client::{Properties, connect};
use super::check::Check;
use super::facts;

const NAME: &str = "service";

/// Whether the service answers, and what it runs; and what is wrong with the bus, if that does not answer and is
/// one that somebody asked for: of the system's the machine may have none yet. The service is not started for the
/// question. `is_unit` is whether systemd has it.
pub async fn checks(bus: &Bus, origin: &Origin, is_unit: bool) -> Vec<Check> {
    let running = async {
        let service = connect(bus).await?;
        Ok::<_, Failure>(service.is_running().await?.then_some(service))
    };
    let service = match running.await {
        Ok(Some(service)) => service,
        Ok(None) => {
            return vec![Check::unchecked(NAME, format!("does not run on the bus {bus}"))];
        }
        Err(failure) if *bus == Bus::System => {
            return vec![Check::unchecked(NAME, failure.message())];
        }
        Err(failure) => {
            let next = format!("name a bus that answers; this one comes from {origin}");
            let wrong = Check::wrong("bus", failure.message(), next);
            return vec![Check::unchecked(NAME, "needs the bus"), wrong];
        }
    };
    let asked = async {
        let manager = service.manager().await?;
        service.told(manager.get_status()).await
    };
    vec![match asked.await {
        Ok(status) => {
            let status = Properties(status);
            told(status.text("state"), status.text("status"), is_unit)
        }
        Err(failure) => {
            let next = match is_unit {
                true => "type `journalctl -u op-dbus`",
                false => "read what the service has written to its log",
            };
            Check::wrong(NAME, failure.message(), next)
        }
    }]
}

fn told(state: &str, summary: &str, is_unit: bool) -> Check {
    let found = format!("answers, {state}: {summary}");
    match state {
        "failed" | "degraded" => {
            let mend = facts::known(summary).unwrap_or("mend what else is said here");
            let restart = match is_unit {
                true => "type `systemctl restart op-dbus`",
                false => "end the service and start it anew",
            };
            Check::wrong(NAME, found, format!("{mend}, then {restart}"))
        }
        _ => Check::ok(NAME, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_service_of_systemd_is_restarted_by_it() {
        let next = |is_unit| told("failed", "no model", is_unit).next.unwrap();
        assert!(next(true).ends_with("then type `systemctl restart op-dbus`"), "{}", next(true));
        assert!(!next(false).contains("systemctl"), "{}", next(false));
    }
}
