//! The threads that read and write direct connections: two for each user that has some. A peer may send
//! descriptors whose very closing hangs, as a socket that lingers or a file system that does not answer has
//! it, and that is to hold up nobody else. What comes over the bus `bus/descriptors.rs` closes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use tokio::runtime::{self, Handle, Runtime};
use tokio::sync::oneshot;

use super::super::bulk::Place;
use super::gate::UserRoom;
use crate::memory_limit;

/// Threads of one user. One for each connection would cost a call a fifth more, as more of them are woken for
/// it (docs/performance.md).
const THREADS_OF_USER: usize = 2;

/// The threads of all users, which last as long as there is a connection on them.
#[derive(Clone, Debug, Default)]
pub struct Threads {
    users: Arc<Mutex<HashMap<u32, User>>>,
}

/// What the connections of one user share.
#[derive(Debug)]
struct User {
    threads: Vec<Thread>,
    room: UserRoom,
}

/// One thread of a user, which is not one of a runtime with several: that one panics where the system has no
/// thread left, and keeps those that it has started by then.
#[derive(Debug)]
struct Thread {
    runtime: Handle,
    connections: usize,
    /// Ends it. The place of the last connection is free once all threads of the user have ended, or who leaves
    /// them hanging could do so again and again.
    end: oneshot::Sender<Arc<Place>>,
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
    /// Of the user's threads.
    number: usize,
    place: Option<Place>,
    room: UserRoom,
}

impl Threads {
    /// A share of the user's threads, which begin with the first of them.
    ///
    /// # Errors
    /// When the system has no more threads or descriptors.
    pub fn of(&self, uid: u32, place: Place) -> io::Result<Seat> {
        let mut users = self.users.lock();
        let user = match users.entry(uid) {
            Entry::Occupied(user) => user.into_mut(),
            Entry::Vacant(none) => {
                let threads = (0..THREADS_OF_USER).map(|_| Thread::start());
                let threads = threads.collect::<io::Result<_>>()?;
                none.insert(User { threads, room: UserRoom::of(memory_limit::for_us()) })
            }
        };
        let room = user.room.clone();
        let threads = user.threads.iter_mut().enumerate();
        let (number, thread) =
            threads.min_by_key(|(_, thread)| thread.connections).ok_or(io::ErrorKind::NotFound)?;
        thread.connections += 1;
        let runtime = thread.runtime.clone();
        Ok(Seat { threads: self.clone(), runtime, uid, number, place: Some(place), room })
    }
}

impl Thread {
    fn start() -> io::Result<Self> {
        let made = runtime::Builder::new_current_thread().enable_all().build()?;
        let (runtime, (end, ended)) = (made.handle().clone(), oneshot::channel());
        let mut made = Ended(Some(made));
        let work = move || {
            let Some(runtime) = made.0.take() else { return };
            let place = runtime.block_on(ended);
            // Waits for whatever hangs there.
            drop(runtime);
            drop(place);
        };
        thread::Builder::new().name("direct".to_owned()).spawn(work)?;
        Ok(Self { runtime, connections: 0, end })
    }
}

impl Seat {
    /// Where the connection lives.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// What all connections of the user may hold.
    pub fn room(&self) -> UserRoom {
        self.room.clone()
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
        let mut users = self.threads.users.lock();
        let Entry::Occupied(mut user) = users.entry(self.uid) else { return };
        user.get_mut().threads[self.number].connections -= 1;
        if user.get().threads.iter().any(|thread| thread.connections > 0) {
            return;
        }
        let (threads, Some(place)) = (user.remove().threads, self.place.take()) else { return };
        let place = Arc::new(place);
        for thread in threads {
            // One that has ended already holds nothing.
            let _ = thread.end.send(place.clone());
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}
