//! The threads that read and write direct connections: two for each user that has some. A peer may send
//! descriptors whose very closing hangs, as a socket that lingers or a file system that does not answer has
//! it, and that is to hold up nobody else. On the bus that is the bus's own to bear.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::runtime::{self, Handle, Runtime};

use super::super::bulk::Place;

/// Threads of one user. One for each connection would cost a call a fifth more, as more of them are woken for
/// it (docs/performance.md).
const THREADS_OF_USER: usize = 2;

/// The threads of all users, which last as long as there is a connection on them.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    users: Arc<Mutex<HashMap<u32, User>>>,
}

#[derive(Debug)]
struct User {
    threads: Ended,
    connections: usize,
}

/// A runtime that may be dropped anywhere: then what hangs on it is not waited for.
#[derive(Debug)]
struct Ended(Option<Runtime>);

/// One connection's share of its user's threads. With the last of them they end.
#[derive(Debug)]
pub struct Seat {
    threads: Threads,
    runtime: Handle,
    uid: u32,
    place: Option<Place>,
}

impl Threads {
    /// A share of the user's threads, which begin with the first of them.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn of(&self, uid: u32, place: Place) -> io::Result<Seat> {
        let mut users = self.users();
        let user = match users.entry(uid) {
            Entry::Occupied(user) => user.into_mut(),
            Entry::Vacant(none) => {
                let mut threads = runtime::Builder::new_multi_thread();
                threads.worker_threads(THREADS_OF_USER).thread_name("direct").enable_all();
                none.insert(User { threads: Ended(Some(threads.build()?)), connections: 0 })
            }
        };
        let running = user.threads.0.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let runtime = running.handle().clone();
        user.connections += 1;
        Ok(Seat { threads: self.clone(), runtime, uid, place: Some(place) })
    }

    fn users(&self) -> MutexGuard<'_, HashMap<u32, User>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Where the connection lives.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Has a connection served until it ends.
    pub fn serve(self, connection: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.clone();
        runtime.spawn(async move {
            connection.await;
            drop(self);
        });
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut users = self.threads.users();
        let Entry::Occupied(mut user) = users.entry(self.uid) else { return };
        user.get_mut().connections -= 1;
        if user.get().connections > 0 {
            return;
        }
        let (mut threads, place) = (user.remove().threads, self.place.take());
        // The last place is free once its threads have ended, or who leaves them hanging could do so again and
        // again.
        let ending = move || {
            drop(threads.0.take());
            drop(place);
        };
        if let Err(error) = thread::Builder::new().name("direct-end".to_owned()).spawn(ending) {
            tracing::warn!(
                "the threads of a user's direct connections are not waited for: {error}"
            );
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
