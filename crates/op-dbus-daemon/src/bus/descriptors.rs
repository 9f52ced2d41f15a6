//! File descriptors that came over the bus, in whose place zbus has stubs. The close of the last copy of one takes as
//! long as who sent it likes, as where a socket lingers, or a pipe's writer stands still. zbus closes what a message
//! brought where it lets go of that: on the threads that serve everybody. A stub closes at once. What is there as long
//! as a message is has a bound, for each sender and for all.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use op_dbus_api::{Error, ErrorName};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tracing::warn;

/// Threads that may hang while they close what others sent. Behind them what is to be closed waits, and stays open: that
/// has no bound, as the bus hands on whatever comes, and what hangs takes a thread or stays. Who has such descriptors
/// can have the bus hang with one of them, which dbus-daemon closes on its only thread where nobody takes it.
const THREADS_MAX: usize = 16;
/// Where none of them got any further for so long, they hang.
const HANGS: Duration = Duration::from_secs(10);

/// What came with messages that are there.
#[derive(Debug)]
pub struct Descriptors {
    held: Mutex<Held>,
    closing: Arc<Mutex<Closing>>,
    /// How many of the service's descriptors there may be for messages of one sender, and for those of all.
    most: (usize, usize),
}

/// Device and inode, which no two pipes have at a time.
type Pipe = (u64, u64);

/// What is held until its stub is gone or somebody takes it.
#[derive(Debug, Default)]
struct Held {
    /// By the pipe that the stub is an end of.
    came: HashMap<Pipe, OwnedFd>,
    /// Descriptors of the service that are there for messages of each sender.
    senders: HashMap<String, usize>,
    /// And for those of all.
    all: usize,
}

/// What came with one message, until it is known whose that is.
#[derive(Debug)]
pub struct Arrived {
    all: Arc<Descriptors>,
    pipe: Pipe,
    /// The other end of the pipe of its stubs.
    ours: AsyncFd<OwnedFd>,
    came: Vec<OwnedFd>,
    /// The stubs, that end, and what is held.
    count: usize,
}

/// What waits to be closed, and the threads that do it.
#[derive(Debug, Default)]
struct Closing {
    waiting: VecDeque<OwnedFd>,
    threads: usize,
    /// When one of them has last begun with one.
    begun: Option<Instant>,
    /// Whether the journal has that they hang.
    is_told: bool,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self::of(None)
    }
}

impl Descriptors {
    /// Of a service that may have so many: those that are there for messages are an eighth of them at most, and a
    /// quarter of that for one sender.
    pub fn of(descriptors: Option<u64>) -> Self {
        let descriptors = descriptors.and_then(|most| usize::try_from(most).ok());
        let all = descriptors.unwrap_or(usize::MAX) / 8;
        Self { held: Mutex::default(), closing: Arc::default(), most: (all / 4, all) }
    }

    /// Stubs of what came with one message, as many, and what they stand for, which is to be [kept](Self::keep); none
    /// where the service may have no more open. Has to be called within a Tokio runtime.
    pub fn hold(self: &Arc<Self>, came: Vec<OwnedFd>) -> Option<(Vec<OwnedFd>, Arrived)> {
        let Ok((pipe, ours, stubs)) = stubs(came.len()) else {
            self.close(came);
            return None;
        };
        let count = stubs.len() + 2;
        Some((stubs, Arrived { all: self.clone(), pipe, ours, came, count }))
    }

    /// Keeps what came with a message of this sender until its stub is gone; without one it counts as nobody's. No
    /// method takes more than one descriptor, so that none of several is held. Has to be called within a Tokio runtime.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`: it is closed then, and its stubs stand for nothing.
    pub fn keep(&self, mut arrived: Arrived, sender: Option<&str>) -> Result<(), Error> {
        let mut held = self.held.lock();
        if let Some(sender) = sender {
            held.add(sender, arrived.count, self.most)?;
        }
        let alone = if arrived.came.len() == 1 { arrived.came.pop() } else { None };
        held.came.extend(alone.map(|alone| (arrived.pipe, alone)));
        drop(held);
        self.close(mem::take(&mut arrived.came));
        let sender = sender.map(str::to_owned);
        tokio::spawn(async move {
            // Nobody writes into it: it is readable once all ends for that are closed.
            let _ = arrived.ours.readable().await;
            let left = {
                let mut held = arrived.all.held.lock();
                if let Some(sender) = sender {
                    held.remove(&sender, arrived.count);
                }
                held.came.remove(&arrived.pipe)
            };
            arrived.all.close(left);
        });
        Ok(())
    }

    /// What came in the place of this stub; itself, if nothing did.
    pub fn take(&self, stub: OwnedFd) -> OwnedFd {
        let came = identity(&stub).ok().and_then(|pipe| self.held.lock().came.remove(&pipe));
        came.unwrap_or(stub)
    }

    /// Closes them on threads that nobody waits for.
    pub fn close(&self, descriptors: impl IntoIterator<Item = OwnedFd>) {
        let mut closing = self.closing.lock();
        closing.waiting.extend(descriptors);
        if closing.waiting.is_empty() {
            return;
        }
        if closing.threads == THREADS_MAX {
            closing.tell();
            return;
        }
        closing.threads += 1;
        let all = Arc::clone(&self.closing);
        let work = move || {
            while let Some(one) = next(&all) {
                close(one);
            }
        };
        if thread::Builder::new().name("close".to_owned()).spawn(work).is_err() {
            // The next one to be closed has the thread that there is none for now.
            closing.threads -= 1;
        }
    }
}

impl Drop for Descriptors {
    /// Nor does the end of the service wait for one.
    fn drop(&mut self) {
        let left = mem::take(&mut self.held.lock().came);
        self.close(left.into_values());
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        self.all.close(mem::take(&mut self.came));
    }
}

impl Held {
    /// Counts so many for a message of a sender.
    fn add(&mut self, sender: &str, count: usize, most: (usize, usize)) -> Result<(), Error> {
        let (own_max, all_max) = most;
        let (own, all) = (self.senders.get(sender).copied().unwrap_or_default(), self.all);
        if own.saturating_add(count) > own_max {
            let message = format!(
                "calls of {sender} that are under way have {own} of {own_max} file descriptors of the service, and \
                 this one takes {count} more; wait for their replies"
            );
            return Err(Error::new(ErrorName::QuotaExceeded, message));
        }
        if all.saturating_add(count) > all_max {
            let message = format!(
                "calls of all users that are under way have {all} of {all_max} file descriptors of the service, and \
                 this one takes {count} more; try again later"
            );
            return Err(Error::new(ErrorName::Overloaded, message));
        }
        self.senders.insert(sender.to_owned(), own + count);
        self.all = all + count;
        Ok(())
    }

    /// The message is gone.
    fn remove(&mut self, sender: &str, count: usize) {
        self.all -= count;
        if let Some(own) = self.senders.get_mut(sender) {
            *own -= count;
            if *own == 0 {
                self.senders.remove(sender);
            }
        }
    }
}

impl Closing {
    /// Tells the journal that all threads hang, once for each time that they do.
    fn tell(&mut self) {
        if self.is_told || self.begun.is_none_or(|begun| begun.elapsed() < HANGS) {
            return;
        }
        self.is_told = true;
        warn!(
            "{THREADS_MAX} descriptors that callers have sent hang while they are closed; {} others stay open until one \
             of them is",
            self.waiting.len()
        );
    }
}

/// The next to be closed by a thread, which ends where there is none.
fn next(closing: &Mutex<Closing>) -> Option<OwnedFd> {
    let mut closing = closing.lock();
    let next = closing.waiting.pop_front();
    if next.is_some() {
        (closing.begun, closing.is_told) = (Some(Instant::now()), false);
    } else {
        closing.threads -= 1;
    }
    next
}

/// Closes what may hang, on a thread that nobody waits for. No socket lingers: the bus has it as well, may be the last to
/// close it, and would hang then. No method takes one, so nobody misses that.
pub fn close(descriptor: OwnedFd) {
    // What is no socket does not linger.
    setsockopt(&descriptor, sockopt::Linger, &linger { l_onoff: 0, l_linger: 0 }).ok();
    drop(descriptor);
}

/// Ends of a new pipe for so many descriptors, which pipe it is, and its other end.
fn stubs(count: usize) -> io::Result<(Pipe, AsyncFd<OwnedFd>, Vec<OwnedFd>)> {
    let (ours, first) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
    let pipe = identity(&first)?;
    let more = (1..count).map(|_| first.try_clone()).collect::<io::Result<Vec<_>>>()?;
    // SAFETY: an `OwnedFd` is the same open file until it is dropped, and the `AsyncFd`, which owns it, is the only
    // one that can drop it.
    let ours = unsafe { AsyncFd::register_with_interest(ours, Interest::READABLE)? };
    Ok((pipe, ours, more.into_iter().chain([first]).collect()))
}

fn identity(fd: impl AsFd) -> io::Result<Pipe> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}

#[cfg(test)]
pub mod tests;
