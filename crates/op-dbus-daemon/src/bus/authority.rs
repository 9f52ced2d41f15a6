//! Who may change the service: root and our own user always, everybody else as polkit decides.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use op_dbus_api::{Error, ErrorName};
use tokio::time::timeout;
use zbus::message::{Flags, Header};
use zbus::proxy::CacheProperties;
use zbus::{Connection, fdo};
use zbus_polkit::policykit1::{
    AuthorityProxy, AuthorizationResult, CheckAuthorizationFlags, Subject,
};

use super::bulk::{Budget, Work, while_wanted};
use super::caller::Caller;

/// How long polkit may take to answer where nobody is asked for a password. A bus may have dropped its answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Another level, provider or device, or other settings. `dbus-policy/org.opdbus.embedding1.policy` declares it.
pub const CONFIGURE: &str = "org.opdbus.embedding1.configure";
/// Memory is taken or given back. It is declared there, too.
pub const MANAGE_MEMORY: &str = "org.opdbus.embedding1.manage-memory";

/// Lets the caller through, or says why not. `id` is the name in polkit's rules, and `deed` stands after "may not".
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
    (id, deed): (&str, &str),
) -> Result<(), Error> {
    let own = nix::unistd::geteuid().as_raw();
    if caller.uid == 0 || caller.uid == own {
        return Ok(());
    }
    let _question = budget.place(caller.uid, Work::Question)?;
    let answer = async { Ok(check(&caller.connection, header, id, ANSWER_MAX).await) };
    let Err((name, reason)) = while_wanted(caller, None, answer).await? else { return Ok(()) };
    let message = format!("user {} may not {deed}: {reason}; use sudo", caller.uid);
    Err(Error::new(name, message))
}

/// Asks about the connection that calls, never about a process id, which may be another program's
/// by the time that polkit looks. A dialog about a caller that has left is closed by polkit.
///
/// # Errors
/// Why polkit did not say yes, as [`authorize`].
async fn check(
    connection: &Connection,
    header: &Header<'_>,
    id: &str,
    answer_max: Duration,
) -> Result<(), (ErrorName, String)> {
    let denied = |reason| Err((ErrorName::AccessDenied, reason));
    let absent = |why: &str| {
        denied(format!("only root and the service's own user may, as polkit is not there ({why})"))
    };
    let unasked = |why: &str| denied(format!("polkit could not be asked about {id} ({why})"));
    if !connection.is_bus() {
        return absent("the connection has no bus");
    }
    let interactive = header.primary().flags().contains(Flags::ALLOW_INTERACTIVE_AUTH);
    let flags = if interactive {
        CheckAuthorizationFlags::ALLOW_USER_INTERACTION
    } else {
        CheckAuthorizationFlags::empty()
    };
    let subject = match Subject::new_for_message_header(header) {
        Ok(subject) => subject,
        Err(error) => return unasked(&error.to_string()),
    };
    let answer = async {
        let polkit = AuthorityProxy::builder(connection).cache_properties(CacheProperties::No);
        let polkit = polkit.build().await?;
        polkit.check_authorization(&subject, id, &HashMap::new(), flags, "").await
    };
    let answer = match interactive {
        true => answer.await,
        false => match timeout(answer_max, answer).await {
            Ok(answer) => answer,
            Err(_) => {
                return unasked(&format!("it has not answered in {} s", answer_max.as_secs()));
            }
        },
    };
    match answer {
        Ok(AuthorizationResult { is_authorized: true, .. }) => Ok(()),
        Ok(AuthorizationResult { is_challenge: true, .. }) if interactive => denied(format!(
            "polkit asks for a password for {id}, and no agent is there to ask with"
        )),
        Ok(AuthorizationResult { is_challenge: true, .. }) => Err((
            ErrorName::InteractiveAuthorizationRequired,
            format!(
                "polkit asks for a password for {id}, and the call did not allow to ask for one"
            ),
        )),
        Ok(_) => denied(format!("polkit does not allow {id}")),
        // Nobody owns polkit's name, and nobody could be started to.
        Err(zbus::Error::FDO(error))
            if matches!(*error, fdo::Error::ServiceUnknown(_) | fdo::Error::NameHasNoOwner(_)) =>
        {
            absent(&zbus::Error::FDO(error).to_string())
        }
        Err(error) => unasked(&error.to_string()),
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
        let reason = "polkit could not be asked about id (it has not answered in 0 s)".to_owned();
        assert_eq!(refusal, Err((ErrorName::AccessDenied, reason)));
        let patient = call().with_flags(Flags::ALLOW_INTERACTIVE_AUTH).build(&()).unwrap();
        let header = patient.header();
        let waits = check(&server, &header, "id", Duration::ZERO);
        assert!(timeout(Duration::from_millis(10), waits).await.is_err());
    }
}
