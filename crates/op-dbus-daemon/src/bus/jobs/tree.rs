//! What leads to jobs: the objects above them, whose introspection lists each caller's own alone, and
//! the object manager, which does the same.

use std::collections::HashMap;

use op_dbus_api::ErrorName;
use op_dbus_api::{JOB_INTERFACE, JOBS_PATH, ROOT_PATH};
use zbus::message::Header;
use zbus::object_server::{Interface, SignalEmitter};
use zbus::{Connection, ObjectServer, OwnedObjectPath, OwnedVariant, fdo, interface};

use super::super::calls::Calls;
use super::super::embedder::Embedder;
use super::super::manager::Manager;
use super::job::{Handle, Job};

/// The properties of a job, by name.
pub type Values = HashMap<String, OwnedVariant>;

/// Properties of an object, by interface.
type Object = HashMap<&'static str, Values>;

/// Every object has it, and answers everybody.
const PEER: &str = r#"  <interface name="org.freedesktop.DBus.Peer">
    <method name="Ping"/>
    <method name="GetMachineId">
      <arg name="machine_uuid" type="s" direction="out"/>
    </method>
  </interface>
"#;

/// Puts both on a finished connection that has the objects of the service.
///
/// # Errors
/// Never while it has nothing else at these paths.
pub async fn plant(connection: &Connection, calls: &Calls) -> zbus::Result<()> {
    let server = connection.object_server();
    server.at(JOBS_PATH, ObjectManager { calls: calls.clone() }).await?;
    let ends = JOBS_PATH.match_indices('/').skip(1).map(|(end, _)| end).chain([JOBS_PATH.len()]);
    let mut before = 0;
    for end in ends {
        let (above, child) = (&JOBS_PATH[..before], JOBS_PATH[before + 1..end].to_owned());
        let path = if above.is_empty() { "/" } else { above };
        branch(server, path, Some(child), calls).await?;
        before = end;
    }
    branch(server, JOBS_PATH, None, calls).await
}

/// Replaces the introspection of one object above jobs.
async fn branch(
    server: &ObjectServer,
    path: &str,
    child: Option<String>,
    calls: &Calls,
) -> zbus::Result<()> {
    let properties = server.interface::<_, fdo::Properties>(path).await?;
    let mut interfaces = xml(&*properties.get().await);
    if path == ROOT_PATH {
        interfaces += &xml(&*server.interface::<_, Embedder>(path).await?.get().await);
        interfaces += &xml(&*server.interface::<_, Manager>(path).await?.get().await);
    }
    if path == JOBS_PATH {
        interfaces += &xml(&*server.interface::<_, ObjectManager>(path).await?.get().await);
    }
    let branch = Introspectable { interfaces, child, calls: calls.clone() };
    let name = Introspectable::name();
    server.remove_named(path, name).await?;
    server.at(path, branch).await.map(drop)
}

/// The introspection of an interface.
pub fn xml(interface: &dyn Interface) -> String {
    let mut xml = String::new();
    interface.introspect_to_writer(&mut xml, 2);
    xml
}

/// The introspection of an object.
pub fn document(interfaces: &str, children: &[&str]) -> String {
    let children = children.iter().map(|name| format!("  <node name=\"{name}\"/>\n"));
    let children: String = children.collect();
    format!(
        "<!DOCTYPE node PUBLIC \"-//freedesktop//DTD D-BUS Object Introspection 1.0//EN\"\n \
         \"http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd\">\n\
         <node>\n{PEER}{interfaces}{children}</node>\n"
    )
}

/// The user who calls.
///
/// # Errors
/// `AccessDenied` when the bus does not tell, `LimitsExceeded` while it answers nothing.
pub async fn own(calls: &Calls, connection: &Connection, header: &Header<'_>) -> fdo::Result<u32> {
    let caller = calls.callers.enter(connection, header).await;
    let caller = caller.map_err(|error| match error.name() {
        ErrorName::Overloaded => fdo::Error::LimitsExceeded(error.message().to_owned()),
        _ => fdo::Error::AccessDenied(error.message().to_owned()),
    })?;
    Ok(caller.uid)
}

/// `org.freedesktop.DBus.Introspectable` of an object above jobs.
struct Introspectable {
    interfaces: String,
    /// What leads on; below the last are jobs.
    child: Option<String>,
    calls: Calls,
}

#[interface(name = "org.freedesktop.DBus.Introspectable", introspection_docs = false)]
impl Introspectable {
    #[zbus(out_args("xml_data"))]
    async fn introspect(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<String> {
        let interfaces = xml(self) + &self.interfaces;
        if let Some(child) = &self.child {
            return Ok(document(&interfaces, &[child]));
        }
        let uid = own(&self.calls, connection, &header).await?;
        let jobs = self.calls.jobs.as_ref().map(|jobs| jobs.of(uid)).unwrap_or_default();
        let names: Vec<&str> = jobs.iter().map(|job| job.name.as_str()).collect();
        Ok(document(&interfaces, &names))
    }
}

/// `org.freedesktop.DBus.ObjectManager`
struct ObjectManager {
    calls: Calls,
}

#[interface(name = "org.freedesktop.DBus.ObjectManager", introspection_docs = false)]
impl ObjectManager {
    #[zbus(out_args("objects"))]
    async fn get_managed_objects(
        &self,
        #[zbus(connection)] connection: &Connection,
        #[zbus(header)] header: Header<'_>,
    ) -> fdo::Result<HashMap<OwnedObjectPath, Object>> {
        let uid = own(&self.calls, connection, &header).await?;
        let mut objects = HashMap::new();
        for job in self.calls.jobs.as_ref().map(|jobs| jobs.of(uid)).unwrap_or_default() {
            let handle = Handle::new(job.clone(), self.calls.clone());
            let object = object(properties(&handle, connection).await?);
            // It may be over by now, which is no state.
            if job.is_of(uid) {
                objects.insert(job.path.clone(), object);
            }
        }
        Ok(objects)
    }

    #[zbus(signal)]
    async fn interfaces_added(
        emitter: &SignalEmitter<'_>,
        object: &OwnedObjectPath,
        interfaces: Object,
    ) -> zbus::Result<()>;

    #[zbus(signal)]
    async fn interfaces_removed(
        emitter: &SignalEmitter<'_>,
        object: &OwnedObjectPath,
        interfaces: &[&str],
    ) -> zbus::Result<()>;
}

fn object(properties: Values) -> Object {
    HashMap::from([(JOB_INTERFACE, properties)])
}

/// The properties of a job.
pub async fn properties(handle: &Handle, connection: &Connection) -> fdo::Result<Values> {
    let emitter = SignalEmitter::new(connection, &*handle.job.path)?;
    handle.get_all(connection.object_server(), connection, None, &emitter).await
}

/// Tells the owner of a job, and nobody else, that it is there; returns what its properties were told as.
pub async fn added(handle: &Handle, connection: &Connection) -> zbus::Result<Values> {
    let job = &handle.job;
    let values = properties(handle, connection).await?;
    let (emitter, object) = (to_owner(job, connection, JOBS_PATH)?, object(values.clone()));
    ObjectManager::interfaces_added(&emitter, &job.path, object).await?;
    Ok(values)
}

/// Tells the owner of a job, and nobody else, that it is gone.
pub async fn removed(job: &Job, connection: &Connection) -> zbus::Result<()> {
    let emitter = to_owner(job, connection, JOBS_PATH)?;
    ObjectManager::interfaces_removed(&emitter, &job.path, &[JOB_INTERFACE]).await
}

/// Signals of `path` that go to the owner of a job alone.
pub fn to_owner<'a>(
    job: &'a Job,
    connection: &Connection,
    path: &'a str,
) -> zbus::Result<SignalEmitter<'a>> {
    let emitter = SignalEmitter::new(connection, path)?;
    Ok(emitter.set_destination(job.owner.as_str().try_into()?))
}
