//! Who may change the service: root and our own user always, everybody else as polkit decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::time::timeout;
use zbus::message::{Flags, Header};
use zbus::proxy::CacheProperties;
use zbus::{Connection, DBusError};
use zbus_polkit::policykit1::{
    AuthorityProxy, AuthorizationResult, CheckAuthorizationFlags, Subject,
};

use super::bulk::{Budget, Work, while_wanted};
use super::caller::Caller;

/// How long polkit may take to answer where nobody is asked for a password. A bus may have dropped its answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A kind of change, which `dbus-policy/org.opdbus.embedding1.policy` declares, and what it is, after "may
/// not".
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Another level, provider or device, or other settings.
    Configure(&'static str),
    /// Memory is taken or given back.
    ManageMemory(&'static str),
}

impl Action {
    /// The name in polkit's rules, and what it is.
    const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Configure(deed) => ("org.opdbus.embedding1.configure", deed),
            Self::ManageMemory(deed) => ("org.opdbus.embedding1.manage-memory", deed),
        }
    }
}

/// Why polkit did not say yes.
enum Refusal {
    /// There is no polkit to ask, with what the bus said.
    Absent(String),
    /// It could not be asked, with the reason.
    Unasked(String),
    /// It said no.
    No,
    /// It would have asked the user, whom the call did not allow to be asked.
    NotInteractive,
    /// It would have asked the user, and nothing is there to ask with.
    NoAgent,
}

/// Lets the caller through, or says why not.
///
/// # Errors
/// `InteractiveAuthorizationRequired` where the same call with `ALLOW_INTERACTIVE_AUTHORIZATION` would
/// have had polkit ask for a password; else `AccessDenied`, also when polkit can't be asked: nobody gains
/// a right by its absence. `Cancelled` where the caller leaves first: an answer that comes later is to nobody.
/// `QuotaExceeded` and `Overloaded` where polkit has not answered what it was asked before.
pub async fn authorize(
    budget: &Arc<Budget>,
    header: &Header<'_>,
    caller: &Caller,
    action: Action,
) -> Result<(), Error> {
    let own = nix::unistd::geteuid().as_raw();
    if caller.uid == 0 || caller.uid == own {
        return Ok(());
    }
    let _question = budget.place(caller.uid, Work::Question)?;
    let (id, deed) = action.words();
    let answer = async { Ok(check(&caller.connection, header, id, ANSWER_MAX).await) };
    let Err(refusal) = while_wanted(caller, None, answer).await? else { return Ok(()) };
    let name = match refusal {
        Refusal::NotInteractive => ErrorName::InteractiveAuthorizationRequired,
        _ => ErrorName::AccessDenied,
    };
    let reason = match refusal {
        Refusal::Absent(why) => {
            format!("only root and the service's own user may, as polkit is not there ({why})")
        }
        Refusal::Unasked(why) => format!("polkit could not be asked about {id} ({why})"),
        Refusal::No => format!("polkit does not allow {id}"),
        Refusal::NotInteractive => {
            format!(
                "polkit asks for a password for {id}, and the call did not allow to ask for one"
            )
        }
        Refusal::NoAgent => {
            format!("polkit asks for a password for {id}, and no agent is there to ask with")
        }
    };
    let message = format!("user {} may not {deed}: {reason}; use sudo", caller.uid);
    Err(Error::new(name, message))
}

/// Asks about the connection that calls, never about a process id, which may be another program's
/// by the time that polkit looks. A dialog about a caller that has left is closed by polkit.
async fn check(
    connection: &Connection,
    header: &Header<'_>,
    id: &str,
    answer_max: Duration,
) -> Result<(), Refusal> {
    if !connection.is_bus() {
        return Err(Refusal::Absent("the connection has no bus".to_owned()));
    }
    let interactive = header.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let flags = if interactive {
        CheckAuthorizationFlags::ALLOW_USER_INTERACTION
    } else {
        CheckAuthorizationFlags::empty()
    };
    let subject = Subject::new_for_message_header(header)
        .map_err(|error| Refusal::Unasked(error.to_string()))?;
    let answer = async {
        let polkit = AuthorityProxy::builder(connection).cache_properties(CacheProperties::No);
        let polkit = polkit.build().await?;
        polkit.check_authorization(&subject, id, &HashMap::new(), flags, "").await
    };
    let answer = match interactive {
        true => answer.await,
        false => timeout(answer_max, answer).await.map_err(|_| {
            Refusal::Unasked(format!("it has not answered in {} s", answer_max.as_secs()))
        })?,
    };
    match answer.map_err(unasked)? {
        AuthorizationResult { is_authorized: true, .. } => Ok(()),
        AuthorizationResult { is_challenge: true, .. } if interactive => Err(Refusal::NoAgent),
        AuthorizationResult { is_challenge: true, .. } => Err(Refusal::NotInteractive),
        AuthorizationResult { .. } => Err(Refusal::No),
    }
}

/// Nobody owns polkit's name and nobody could be started to, or something else went wrong.
fn unasked(error: zbus::Error) -> Refusal {
    let name = match &error {
        zbus::Error::MethodError(name, ..) => name.to_string(),
        zbus::Error::FDO(error) => DBusError::name(&**error).to_string(),
        _ => String::new(),
    };
    match name.as_str() {
        "org.freedesktop.DBus.Error.ServiceUnknown"
        | "org.freedesktop.DBus.Error.NameHasNoOwner" => Refusal::Absent(error.to_string()),
        _ => Refusal::Unasked(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use zbus::Message;

    use super::super::tests::on_bus;
    use super::*;

    /// A password takes as long as it takes.
    #[tokio::test]
    async fn an_answer_of_polkits_that_was_dropped_is_not_waited_for() {
        let (server, _silent, _asked) = on_bus().await;
        let call = || Message::method_call("/", "Reload").sender(":1.1");
        let plain = call().build(&()).unwrap();
        let refusal = check(&server, &plain.header(), "id", Duration::ZERO).await;
        assert!(
            matches!(refusal, Err(Refusal::Unasked(why)) if why == "it has not answered in 0 s")
        );
        let patient = call().with_flags(Flags::ALLOW_INTERACTIVE_AUTH).build(&()).unwrap();
        let header = patient.header();
        let waits = check(&server, &header, "id", Duration::ZERO);
        assert!(timeout(Duration::from_millis(10), waits).await.is_err());
    }
}
