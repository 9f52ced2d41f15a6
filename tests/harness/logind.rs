//! logind, as far as it tells of sleep.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use zbus::object_server::SignalEmitter;
use zbus::{Connection, OwnedFd};

use super::{Outcome, within};

/// Remembers who delays a sleep.
#[derive(Clone, Default)]
pub struct Logind {
    delays: Arc<Mutex<Vec<std::io::PipeReader>>>,
    /// Whether it answers nobody.
    pub is_deaf: Arc<AtomicBool>,
    /// Whether the machine is about to sleep, or sleeps.
    pub sleeps: Arc<AtomicBool>,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Logind {
    async fn inhibit(
        &self,
        what: String,
        who: String,
        _why: String,
        mode: String,
    ) -> zbus::fdo::Result<OwnedFd> {
        assert_eq!((&*what, &*who, &*mode), ("sleep", "op-dbus", "delay"));
        if self.is_deaf.load(Ordering::SeqCst) {
            std::future::pending().await
        }
        let (reader, writer) =
            std::io::pipe().map_err(|error| zbus::fdo::Error::Failed(error.to_string()))?;
        self.delays.lock().expect("no test panics in here").push(reader);
        Ok(std::os::fd::OwnedFd::from(writer).into())
    }

    #[zbus(property)]
    fn preparing_for_sleep(&self) -> bool {
        self.sleeps.load(Ordering::SeqCst)
    }

    #[zbus(signal)]
    async fn prepare_for_sleep(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

impl Logind {
    /// Its name on the bus.
    pub const NAME: &str = "org.freedesktop.login1";
    /// Its object.
    pub const PATH: &str = "/org/freedesktop/login1";

    /// Falls asleep or wakes up, and tells everybody.
    pub async fn turn(&self, connection: &Connection, start: bool) -> Outcome {
        self.sleeps.store(start, Ordering::SeqCst);
        Self::tell(connection, start).await
    }

    /// Sends the signal, whoever does that.
    pub async fn tell(connection: &Connection, start: bool) -> Outcome {
        let emitter = SignalEmitter::new(connection, Self::PATH)?;
        Ok(Self::prepare_for_sleep(&emitter, start).await?)
    }

    /// Waits until somebody delays the sleep, and returns what ends when nobody does any more.
    pub async fn delayed(&self) -> Outcome<std::io::PipeReader> {
        within("an inhibitor", async {
            loop {
                if let Some(reader) = self.delays.lock().expect("no test panics in here").pop() {
                    return reader;
                }
                tokio::task::yield_now().await;
            }
        })
        .await
    }
}

/// Waits until the other end of a pipe is closed.
pub async fn closed(mut reader: std::io::PipeReader) -> Outcome {
    let end = move || std::io::Read::read(&mut reader, &mut [0]);
    let bytes = within("the inhibitor to go", tokio::task::spawn_blocking(end)).await???;
    assert_eq!(bytes, 0);
    Ok(())
}
