//! A worker process: started, watched, killed and reaped.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::link::Link;
use super::{RegionShape, Timeouts};
use crate::backend::{Backend, BackendError, Description, Footprint, LoadErrorKind};
use crate::batch::Batch;
use crate::usage::MemoryUse;

/// What is killed has ended by then, unless the kernel keeps it.
const END_TIME: Duration = Duration::from_secs(1);

/// A backend in a child process. Dropping it kills the process and reaps it.
#[derive(Debug)]
pub struct ChildBackend {
    link: Link,
    process: Process,
    description: Description,
    /// As it was told last.
    memory: MemoryUse,
    /// Why the process was ended, once it was.
    lost: Option<String>,
}

impl ChildBackend {
    /// Starts `command`, which has to call [`serve`](super::serve()), and waits until it is ready.
    /// Its standard input becomes the control socket, its output is discarded, its errors go where
    /// ours go. `shape` bounds the batches that can be run.
    ///
    /// A process that somebody kills meanwhile is started once more: what waits for it need not end with it.
    ///
    /// # Errors
    /// `Load`, of the kind that the worker gave, or `Other` if it could not be started, ended,
    /// exceeded its time or made no sense. The process is gone then.
    pub fn spawn(
        mut command: Command,
        shape: RegionShape,
        timeouts: Timeouts,
    ) -> Result<Self, BackendError> {
        match Self::start(&mut command, shape, timeouts) {
            Err(Refusal { was_killed: true, error }) => {
                tracing::warn!("a worker is started once more: {error}");
                Self::start(&mut command, shape, timeouts)
            }
            result => result,
        }
        .map_err(|refusal| refusal.error)
    }

    fn start(
        command: &mut Command,
        shape: RegionShape,
        timeouts: Timeouts,
    ) -> Result<Self, Refusal> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|errno| cannot("make the worker's socket", &errno.into()))?;
        // The greeting waits in the socket: a worker that ends at once is then seen to have ended.
        let link = Link::open(ours, shape, timeouts.run)
            .map_err(|error| cannot("share memory with a worker", &error))?;
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| cannot("start the worker", &error))?;
        let id = child.id();
        let mut process = Process(Some(child));
        // It keeps the worker's end open otherwise, and the end of the worker would go unseen.
        command.stdin(Stdio::null());
        match link.wait_loaded(id, timeouts) {
            Ok(description) => {
                let memory = MemoryUse::default();
                Ok(Self { link, process, description, memory, lost: None })
            }
            Err(error) => {
                // One that says nothing is killed by us.
                let has_left = matches!(error, BackendError::Lost(_));
                let (BackendError::Load { kind: LoadErrorKind::Other, message }
                | BackendError::Lost(message)) = error
                else {
                    return Err(error.into());
                };
                let End { told, killed } = process.end();
                let message = format!("{message}; {told}");
                let error = BackendError::Load { kind: LoadErrorKind::Other, message };
                Err(Refusal { error, was_killed: has_left && killed })
            }
        }
    }
}

/// Why there is no backend.
struct Refusal {
    error: BackendError,
    /// Whether somebody else has ended the process.
    was_killed: bool,
}

impl From<BackendError> for Refusal {
    fn from(error: BackendError) -> Self {
        Self { error, was_killed: false }
    }
}

impl Backend for ChildBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.run_while(batch, out, &mut || ())
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<(), BackendError> {
        let (moved, memory) = self.asked(|link| link.run_while(batch, out, meanwhile))?;
        if let Some(device) = moved {
            self.description.device = device;
        }
        self.memory = memory;
        Ok(())
    }

    fn trim(&mut self) -> Result<Footprint, BackendError> {
        let (footprint, memory) = self.asked(Link::trim)?;
        self.memory = memory;
        Ok(footprint)
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }
}

impl ChildBackend {
    /// Asks for something, and ends the process if it can't be trusted with the answer.
    fn asked<T>(
        &mut self,
        ask: impl FnOnce(&mut Link) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        if let Some(reason) = &self.lost {
            return Err(BackendError::Lost(reason.clone()));
        }
        let result = ask(&mut self.link);
        let Err(BackendError::Lost(reason)) = result else { return result };
        let reason = format!("{reason}; {}", self.process.end().told);
        self.lost = Some(reason.clone());
        Err(BackendError::Lost(reason))
    }
}

/// Kills and reaps.
#[derive(Debug)]
struct Process(Option<Child>);

/// How a process has ended.
struct End {
    told: String,
    /// By a signal that asks a process to end, ours included.
    killed: bool,
}

impl Process {
    /// Ends the process; says how it had ended, if it had by itself. One that the kernel does not let go,
    /// as a driver that hangs has it, is not waited for: the worker's batch is somebody else's by then.
    fn end(&mut self) -> End {
        let unknown = |told| End { told, killed: false };
        let Some(mut child) = self.0.take() else { return unknown("its process has ended".into()) };
        let id = child.id();
        // Fails only if it has ended and been waited for.
        let _ = child.kill();
        let (sender, ended) = mpsc::sync_channel(1);
        let reap = move || drop(sender.send(child.wait()));
        if let Err(error) = thread::Builder::new().name("reap".to_owned()).spawn(reap) {
            return unknown(format!("process {id} can't be waited for ({error})"));
        }
        let status = match ended.recv_timeout(END_TIME) {
            Ok(Ok(status)) => status,
            Ok(Err(error)) => {
                return unknown(format!("process {id} can't be waited for ({error})"));
            }
            Err(_) => return unknown(format!("process {id} is killed, and has not ended yet")),
        };
        let is = |signal: Signal| status.signal() == Some(signal as i32);
        let told = match is(Signal::SIGABRT) {
            // What a process does that is refused memory.
            true => format!(
                "process {id} gave up ({status}), see its last message; if that is about memory, \
                 worker_memory_max is too small for the model or the batch"
            ),
            false => format!("process {id} ended with {status}"),
        };
        End { told, killed: is(Signal::SIGKILL) || is(Signal::SIGTERM) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn cannot(what: &str, error: &io::Error) -> BackendError {
    let message = format!("can't {what} ({error}); check the limits of the service");
    BackendError::Load { kind: LoadErrorKind::Other, message }
}
