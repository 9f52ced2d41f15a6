//! Direct connections: a client's own line to the service, past the bus and its queues. What it may do
//! there, and in whose name, was settled when it was opened over the bus.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gate;
mod setting;
mod socket;
mod threads;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use op_dbus_api::{Error, ErrorName, ROOT_PATH};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::debug;
use zbus::connection::Builder;
use zbus::{Connection, Guid};

use super::bulk::Work;
use super::caller::{Caller, Callers};
use super::calls::Calls;
use super::changes::{self, Told};
use super::embedder::Embedder;
use crate::service::{Error as ServiceError, Phase};
pub use gate::Gate;
#[cfg(test)]
pub use gate::UserRoom;
use socket::Socket;
use threads::Threads;

/// How long a client may take to authenticate.
const AUTHENTICATION_MAX: Duration = Duration::from_secs(30);

/// The direct connections of all users.
#[derive(Debug, Default)]
pub struct Direct {
    threads: Threads,
    /// Every connection listens.
    ends: watch::Sender<bool>,
}

/// One direct connection.
struct Line {
    socket: Socket,
    /// Who opened it. It ends when they leave the bus, and all it does is theirs.
    opener: Caller,
    calls: Calls,
    callers: Arc<Callers>,
}

impl Direct {
    /// Ends all connections, each once the calls under way on it have their replies.
    pub async fn end(&self) {
        self.ends.send_replace(true);
        self.ends.closed().await;
    }
}

impl Calls {
    /// Opens a direct connection for `caller`, and returns the client's end of it.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`; `InvalidArgument` on a connection that is direct already;
    /// `ShuttingDown`; `NoSpace` when there are no more file descriptors or threads.
    pub fn open_direct(&self, caller: Caller) -> Result<OwnedFd, Error> {
        let Some(direct) = &self.direct else {
            let message = "this connection is a direct one; open others over the bus";
            return Err(Error::new(ErrorName::InvalidArgument, message.to_owned()));
        };
        if matches!(self.service.now().phase, Phase::Draining(_)) {
            return Err(ServiceError::ShuttingDown.into());
        }
        let place = self.budget.place(caller.uid, Work::Direct)?;
        let made = direct.threads.of(caller.uid, place).and_then(|seat| {
            let (ours, theirs) = UnixStream::pair()?;
            // Who sends a descriptor makes another one of it; a reply that can't be made is no refusal.
            drop(theirs.try_clone()?);
            let _of_runtime = seat.runtime().enter();
            Ok((Socket::new(ours, seat.room())?, theirs, seat))
        });
        let (socket, theirs, seat) = made.map_err(|error| {
            let message = format!("no direct connection can be had ({error}); try again later");
            Error::new(ErrorName::NoSpace, message)
        })?;
        let ends = direct.ends.subscribe();
        let callers = Arc::new(Callers::of_one(&caller, socket.gate()));
        let calls = self.on_direct(callers.clone());
        debug!(uid = caller.uid, sender = caller.sender(), "a direct connection is opened");
        seat.serve(Line { socket, opener: caller, calls, callers }.serve(ends));
        Ok(theirs.into())
    }
}

/// Waits until all connections are to end.
async fn told(ends: &mut watch::Receiver<bool>) {
    // Who can't tell any more has ended itself.
    let _ = ends.wait_for(|ends| *ends).await;
}

impl Line {
    async fn serve(self, mut ends: watch::Receiver<bool>) {
        let (left, socket) = (self.opener.cancel.clone(), self.socket.clone());
        let over = async {
            tokio::select! {
                () = left.cancelled() => {}
                () = socket.hung_up() => {}
            }
        };
        let mut over = std::pin::pin!(over);
        // Before anybody can ask for properties, so that no change behind their answer counts as told.
        let nothing = Arc::new(Told::new(&self.calls.service));
        let connection = tokio::select! {
            connection = self.connect() => connection,
            () = &mut over => None,
            () = told(&mut ends) => None,
        };
        if let Some(connection) = connection {
            let service = self.calls.service.clone();
            let changes = changes::follow(service, connection.clone(), nothing, false);
            let drains = tokio::select! {
                () = connection.closed() => false,
                () = &mut over => false,
                () = told(&mut ends) => true,
                () = async { changes.await; std::future::pending().await } => false,
            };
            if drains {
                // What is under way is answered; who hangs up meanwhile has no more to come.
                tokio::select! {
                    () = connection.graceful_shutdown() => {}
                    () = &mut over => {}
                }
            }
        }
        // Only now, so that no call is registered behind it that would go on.
        self.socket.shut_down();
        self.callers.end();
        debug!(uid = self.opener.uid, sender = self.opener.sender(), "a direct connection ended");
    }

    /// Authenticates the client and listens. What it says there was not looked at by a bus, so a fault
    /// of the parser is the end of this line alone.
    async fn connect(&self) -> Option<Connection> {
        let builder = Builder::socket(self.socket.clone())
            .server(Guid::generate())
            .p2p()
            .user_id(self.opener.uid)
            .serve_at(ROOT_PATH, Embedder::new(self.calls.clone()));
        let built = timeout(AUTHENTICATION_MAX, AssertUnwindSafe(builder.build()).catch_unwind());
        let why = match built.await {
            Ok(Ok(Ok(connection))) => return Some(connection),
            Ok(Ok(Err(error))) => error.to_string(),
            Ok(Err(_panic)) => "its lines can't be read".to_owned(),
            Err(_) => format!("it took longer than {} s", AUTHENTICATION_MAX.as_secs()),
        };
        debug!(uid = self.opener.uid, "a direct connection did not authenticate: {why}");
        None
    }
}
