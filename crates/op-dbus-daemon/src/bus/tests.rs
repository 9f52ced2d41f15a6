//! The bus objects over a socket pair: no bus daemon, simulated vectors computed in-process.

mod bulk;
mod embedding;

use std::num::NonZeroUsize;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use futures_util::StreamExt;
use op_dbus_api::{EmbedderProxy, Error, ErrorName, ManagerProxy};
use op_dbus_engine::sim::SimBackend;
use op_dbus_engine::{Backend, BackendError};
use zbus::connection::Builder;
use zbus::{Connection, Guid, Message, MessageStream};

use super::Objects;
use crate::devices::Reader;
use crate::service::{Means, Service, Spawner};
use crate::settings::{Settings, Sources};

/// Both ends of a socket pair, with the objects on one of them.
pub(super) struct Pair {
    client: Connection,
    pub(super) service: Service,
    _root: tempfile::TempDir,
    _server: Connection,
}

impl Pair {
    async fn embedder(&self) -> EmbedderProxy<'_> {
        EmbedderProxy::new(&self.client).await.unwrap()
    }

    async fn manager(&self) -> ManagerProxy<'_> {
        ManagerProxy::new(&self.client).await.unwrap()
    }
}

fn in_process() -> Spawner {
    Arc::new(|blueprint, _| {
        let dimensions = blueprint.region.dimensions;
        Box::new(move |_| {
            let backend: Box<dyn Backend> = Box::new(SimBackend::new(dimensions));
            Ok(backend)
        })
    })
}

/// A service that has loaded nothing.
pub(super) fn idle() -> Service {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state.json").display().to_string();
    let sources = Sources::under(root.path()).with_flags(&[("state_file", &*state)]);
    let spawner: Spawner =
        Arc::new(|_, _| Box::new(|_| Err(BackendError::Failed("none is made".to_owned()))));
    let means = Means { spawner, devices: None };
    Service::new(Settings::load(&sources).unwrap(), means, None)
}

/// Both ends of a socket pair, with no object on either.
pub(super) async fn peers() -> (Connection, Connection) {
    let (near, far) = UnixStream::pair().unwrap();
    let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
    tokio::try_join!(far.build(), Builder::unix_stream(near).p2p().build()).unwrap()
}

/// A connection of which the other end reads no more than two messages before it is asked for them.
pub(super) async fn slow_peer() -> (Connection, MessageStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
    let near = Builder::unix_stream(near).p2p().max_queued(NonZeroUsize::MIN);
    let (server, client) = tokio::try_join!(far.build(), near.build()).unwrap();
    (server, MessageStream::from(client))
}

/// Sends so much to a slow peer that nothing more leaves before that is read.
pub(super) async fn fill(server: &Connection) {
    let fills = Message::signal("/", "a.b", "c").build(&"x".repeat(4 << 20)).unwrap();
    for _ in 0..4 {
        let (server, fills) = (server.clone(), fills.clone());
        tokio::spawn(async move { server.send(&fills).await });
        tokio::task::yield_now().await;
    }
}

/// A connection to a bus, which has let it in and answers nothing more by itself; and what that bus is asked.
pub(super) async fn on_bus() -> (Connection, Connection, MessageStream) {
    let (near, far) = UnixStream::pair().unwrap();
    let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
    let plays_bus = async {
        let bus = far.build().await.unwrap();
        let mut asked = MessageStream::from(&bus);
        let hello = asked.next().await.unwrap().unwrap();
        bus.reply(&hello.header(), &":1.0").await.unwrap();
        (bus, asked)
    };
    let (server, (bus, asked)) = tokio::join!(Builder::unix_stream(near).build(), plays_bus);
    (server.unwrap(), bus, asked)
}

/// Serves simulated vectors under these settings, which count as flags, with the model loaded.
pub(super) async fn ready(flags: &[(&str, &str)]) -> Pair {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state.json").display().to_string();
    let base = [("cpu_engine", "sim"), ("state_file", &*state)];
    let sources = Sources::under(root.path()).with_flags(&base).with_flags(flags);
    let means = Means { spawner: in_process(), devices: None };
    let service = Service::new(Settings::load(&sources).unwrap(), means, None);
    let (near, far) = UnixStream::pair().unwrap();
    // No driver is asked.
    let devices = Arc::new(Reader::new("/nowhere/op-dbus".into()));
    let objects = Objects::new(service.clone(), devices);
    let far = Builder::unix_stream(far).server(Guid::generate()).p2p();
    let (server, client) =
        tokio::join!(objects.serve(far).build(), Builder::unix_stream(near).p2p().build(),);
    let (server, client) = (server.unwrap(), client.unwrap());
    tokio::spawn(objects.changes(&server));
    service.start().await;
    Pair { client, service, _root: root, _server: server }
}

/// The error of ours that a call was answered with.
fn refusal<T: std::fmt::Debug>(result: zbus::Result<T>) -> (ErrorName, String) {
    let error = result.expect_err("a refusal");
    let ours = Error::from_reply(&error).unwrap_or_else(|| panic!("not an error of ours: {error}"));
    (ours.name(), ours.message().to_owned())
}
