//! A client's end of the bus: connecting, what the service says of itself, errors as exit codes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use op_dbus_api::{
    BUS_NAME, EMBEDDER_INTERFACE, EmbedderProxy, ErrorName, ManagerProxy, ROOT_PATH,
};
use op_dbus_daemon::settings::Bus;
use zbus::fdo::PropertiesProxy;
use zbus::names::{InterfaceName, WellKnownName};
use zbus::proxy::{CacheProperties, MethodFlags};
use zbus::wire::DynamicDeserialize;
use zbus::{Connection, OwnedVariant, Variant, fdo};

use super::{Failure, tell};

/// How long a bus may take to let us in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a service may take to tell what it knows, and to be started for it: a bus gives a start
/// 25 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a service that is not ready is asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a wait for a model goes without a word.
const QUIET_WAIT: Duration = Duration::from_secs(1);

/// The service on one bus.
#[derive(Clone)]
pub struct Service {
    connection: Connection,
    bus: Bus,
    /// How long it may take to tell what it knows.
    patience: Duration,
}

/// Connects to `bus`. Whether the service is there shows at the first call.
///
/// # Errors
/// Exit code 3 when there is no such bus or it does not let us in.
pub async fn connect(bus: &Bus) -> Result<Service, Failure> {
    let unreachable = |reason: String| {
        Failure::unreachable(format!("can't reach {} ({reason}): {}", place(bus), bus.remedy()))
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, bus.builder().build()).await {
        Ok(Ok(connection)) => {
            Ok(Service { connection, bus: bus.clone(), patience: ANSWER_TIMEOUT })
        }
        Ok(Err(error)) => Err(unreachable(error.to_string())),
        Err(_) => Err(unreachable(format!("no answer in {} s", CONNECT_TIMEOUT.as_secs()))),
    }
}

/// The service once `bus` is there, the service is on it and its model is loaded: for `limit` at most. The bus is asked
/// for it once, which starts one that is not running. One that ends is waited for until it is back.
///
/// # Errors
/// When it takes longer, the service could not load its model, or it is to have none.
pub async fn wait(bus: &Bus, limit: Duration) -> Result<Service, Failure> {
    let mut found = Err(silent(bus, limit));
    let settled = async {
        // What is said of a service that is not there, once it was asked for: each further question would start it, and
        // systemd refuses a unit that is started a few times in a minute.
        let mut absent: Option<Failure> = None;
        // By a new connection each time: what is not there yet may also go once more.
        loop {
            let asked = async {
                let service = connect(bus).await?;
                let is_running = service.is_running().await?;
                if let (false, Some(absent)) = (is_running, &absent) {
                    return Err(absent.clone());
                }
                let properties = service.properties().await;
                if !is_running {
                    let why = properties.as_ref().err().cloned();
                    absent = Some(why.unwrap_or_else(|| service.absent("")));
                }
                Ok((service, properties?))
            };
            found = match asked.await {
                Ok((service, properties)) => match properties.text("State") {
                    state @ ("loading" | "draining") => Ok(state.to_owned()),
                    _ => return (service, properties),
                },
                Err(failure) => Err(failure),
            };
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    match tokio::time::timeout(limit, settled).await {
        Ok((service, properties)) if matches!(properties.text("State"), "failed" | "disabled") => {
            let status = service.told(service.manager().await?.get_status()).await?;
            Err(Failure::refused(Properties(status).text("status").to_owned()))
        }
        Ok((service, _)) => Ok(service),
        // Absent and silent have their own sentences and exit code.
        Err(_) => found.and_then(|state| {
            let seconds = limit.as_secs();
            Err(Failure::refused(format!("the service is still {state} after {seconds} s")))
        }),
    }
}

fn silent(bus: &Bus, waited: Duration) -> Failure {
    Failure::unreachable(format!(
        "the service on {} has not answered for {} s: does it hang? its journal may tell",
        place(bus),
        waited.as_secs()
    ))
}

/// The bus in a sentence.
fn place(bus: &Bus) -> String {
    match bus {
        Bus::System => "the system bus".to_owned(),
        Bus::Session => "the session bus".to_owned(),
        Bus::Address(address) => format!("the bus at {address}"),
    }
}

impl Service {
    /// The same, of which no answer is waited for longer than this.
    pub fn patient_for(self, limit: Option<Duration>) -> Self {
        let patience = limit.map_or(self.patience, |limit| limit.min(self.patience));
        Self { patience, ..self }
    }

    /// The methods for embedding. Properties are read through [`Service::properties`].
    pub async fn embedder(&self) -> Result<EmbedderProxy<'static>, Failure> {
        let proxy = EmbedderProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        proxy.build().await.map_err(|error| self.failure(&error))
    }

    /// The same service over a direct connection, which ends with this one.
    ///
    /// # Errors
    /// When the service opens none.
    pub async fn direct(&self) -> Result<Self, Failure> {
        let direct = op_dbus_api::direct(&self.embedder().await?).await;
        let connection = direct.map_err(|error| self.failure(&error))?;
        Ok(Self { connection, ..self.clone() })
    }

    /// Asks for nothing, as every D-Bus service allows.
    ///
    /// # Errors
    /// Exit code 3 when the service is not there.
    pub async fn ping(&self) -> Result<(), Failure> {
        let peer = Some("org.freedesktop.DBus.Peer");
        let ping = self.connection.call_method(Some(BUS_NAME), ROOT_PATH, peer, "Ping", &());
        ping.await.map(drop).map_err(|error| self.failure(&error))
    }

    /// Whether somebody owns the name. Unlike a call this does not start the service.
    ///
    /// # Errors
    /// Exit code 3 when the bus goes away.
    pub async fn is_running(&self) -> Result<bool, Failure> {
        let bus = fdo::DBusProxy::new(&self.connection).await;
        let bus = bus.map_err(|error| self.failure(&error))?;
        let name = WellKnownName::from_static_str_unchecked(BUS_NAME).into();
        let owned = bus.name_has_owner(name).await;
        owned.map_err(|error| self.failure(&zbus::Error::from(error)))
    }

    /// The answer to a call for what the service knows without computing.
    ///
    /// # Errors
    /// As of every call; exit code 3 when there is none in 30 s, or [less](Self::patient_for).
    pub async fn told<T>(
        &self,
        call: impl Future<Output = Result<T, zbus::Error>>,
    ) -> Result<T, Failure> {
        match tokio::time::timeout(self.patience, call).await {
            Ok(answer) => answer.map_err(|error| self.failure(&error)),
            Err(_) => Err(self.silent(self.patience)),
        }
    }

    /// What to say of a service that has not answered for `waited`.
    pub fn silent(&self, waited: Duration) -> Failure {
        silent(&self.bus, waited)
    }

    /// The methods for administration.
    pub async fn manager(&self) -> Result<ManagerProxy<'static>, Failure> {
        let proxy = ManagerProxy::builder(&self.connection).cache_properties(CacheProperties::No);
        proxy.build().await.map_err(|error| self.failure(&error))
    }

    /// What a reading method of the manager tells. Unlike other calls this does not start a service
    /// that is not running.
    ///
    /// # Errors
    /// Exit code 3 when it is not.
    pub async fn read_if_running<T>(&self, method: &'static str) -> Result<T, Failure>
    where
        T: Default + for<'d> DynamicDeserialize<'d>,
    {
        let manager = self.manager().await?;
        let call = manager.inner().call_with_flags(method, MethodFlags::NO_AUTO_START, &());
        Ok(self.told(call).await?.unwrap_or_default())
    }

    /// Every property of the Embedder interface, in one call.
    ///
    /// # Errors
    /// Exit code 3 when the service is not there.
    pub async fn properties(&self) -> Result<Properties, Failure> {
        let builder = PropertiesProxy::builder(&self.connection)
            .destination(BUS_NAME)
            .path(ROOT_PATH)
            .cache_properties(CacheProperties::No);
        let proxy = builder.build().await.map_err(|error| self.failure(&error))?;
        let interface = InterfaceName::from_static_str_unchecked(EMBEDDER_INTERFACE);
        let all = async { proxy.get_all(interface).await.map_err(zbus::Error::from) };
        self.told(all).await.map(Properties)
    }

    /// The properties once the first model is loaded, or could not be: a service that was started by this
    /// very call, or just before it, refuses texts until then. A longer wait is told.
    ///
    /// # Errors
    /// As of every call.
    pub async fn settled(&self) -> Result<Properties, Failure> {
        let mut untold = Some(Instant::now() + QUIET_WAIT);
        loop {
            let properties = self.properties().await?;
            if properties.text("State") != "loading" {
                return Ok(properties);
            }
            if untold.take_if(|untold| *untold <= Instant::now()).is_some() {
                tell("the service is loading its model: waiting for it");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// A failed call as a sentence and an exit code.
    pub fn failure(&self, error: &zbus::Error) -> Failure {
        if let Some(refusal) = op_dbus_api::Error::from_reply(error) {
            return Failure::refused(match refusal.name() {
                ErrorName::AccessDenied | ErrorName::InteractiveAuthorizationRequired => {
                    format!("access denied: {}", refusal.message())
                }
                _ => refusal.message().to_owned(),
            });
        }
        if let Some(why) = absence(error) {
            return self.absent(why);
        }
        if is_lost(error) {
            return Failure::unreachable(format!(
                "the service or {} went away during the call ({error})",
                place(&self.bus)
            ));
        }
        Failure::refused(format!("the call failed: {error}"))
    }

    /// What to say of a service that is not on the bus, and why it is not, where that is known.
    fn absent(&self, why: &str) -> Failure {
        let why = match why.trim_end_matches('.') {
            "" => String::new(),
            why => format!(" ({why})"),
        };
        let start = match &self.bus {
            Bus::System => "`systemctl start op-dbus`".to_owned(),
            bus => format!("`op-dbus daemon --bus {bus}`"),
        };
        Failure::unreachable(format!(
            "the service {BUS_NAME} is not on {}{why}: start it with {start}",
            place(&self.bus)
        ))
    }
}

/// Why nobody owns the service's name and nobody is started to own it, if that is so; empty where nobody could
/// be.
pub fn absence(error: &zbus::Error) -> Option<&str> {
    match error {
        zbus::Error::FDO(error) => match &**error {
            fdo::Error::ServiceUnknown(_) => Some(""),
            fdo::Error::NameHasNoOwner(why)
            | fdo::Error::SpawnExecFailed(why)
            | fdo::Error::SpawnChildExited(why)
            | fdo::Error::SpawnChildSignaled(why)
            | fdo::Error::SpawnFailed(why)
            | fdo::Error::SpawnServiceNotFound(why) => Some(why),
            _ => None,
        },
        zbus::Error::MethodError(name, why, _) => {
            let of_systemd = name.as_str().starts_with("org.freedesktop.systemd1.");
            of_systemd.then(|| why.as_deref().unwrap_or_default())
        }
        _ => None,
    }
}

/// The connection or the service ended while a reply was awaited.
fn is_lost(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::FDO(error) => matches!(
            **error,
            fdo::Error::NoReply(_)
                | fdo::Error::Disconnected(_)
                | fdo::Error::Timeout(_)
                | fdo::Error::TimedOut(_)
                | fdo::Error::NoServer(_)
        ),
        zbus::Error::InputOutput(_) | zbus::Error::Connection(..) => true,
        _ => false,
    }
}

/// What the service says of itself at one moment: properties, or a dictionary of the manager.
pub struct Properties(pub HashMap<String, OwnedVariant>);

impl Properties {
    /// A text property; empty when the service does not have it.
    pub fn text(&self, name: &str) -> &str {
        match self.0.get(name).map(|value| &**value) {
            Some(Variant::Str(text)) => text.as_str(),
            _ => "",
        }
    }

    /// A number; `None` when the service does not have it.
    pub fn number(&self, name: &str) -> Option<usize> {
        match self.0.get(name).map(|value| &**value) {
            Some(Variant::U32(number)) => usize::try_from(*number).ok(),
            Some(Variant::U64(number)) => usize::try_from(*number).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_service_is_told_from_a_lost_one() {
        let absent = zbus::Error::FDO(Box::new(fdo::Error::ServiceUnknown(String::new())));
        let lost = zbus::Error::FDO(Box::new(fdo::Error::NoReply(String::new())));
        assert!(absence(&absent) == Some("") && !is_lost(&absent));
        assert!(is_lost(&lost) && absence(&lost).is_none());
        let failed = fdo::Error::NameHasNoOwner("activation failed: unit is masked.".to_owned());
        let failed = zbus::Error::FDO(Box::new(failed));
        assert_eq!(absence(&failed), Some("activation failed: unit is masked."));
    }
}
