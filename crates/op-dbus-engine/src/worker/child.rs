//! A worker process: started, watched, killed and reaped.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::link::Link;
use super::{RegionShape, Timeouts};
use crate::backend::{Backend, BackendError, Description, Footprint, LoadErrorKind, Meanwhile};
use crate::batch::Batch;
use crate::usage::MemoryUse;

/// What is killed, or has closed its end because it ends, has ended by then, unless the kernel keeps it.
const END_TIME: Duration = Duration::from_secs(1);
/// How often it is looked for. Not by a thread: a worker may be lost because there are none left.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// So many more looks are taken after that: where the machine stood still meanwhile, the process had no time to end
/// either, and one that was killed for want of memory would count as lost.
const LAST_LOOKS: u32 = 100;

/// So many of one command line may be killed and not have ended: each holds memory and a place among the tasks of
/// the service, and the next would end in the same call of the same driver.
const UNREAPED_MAX: usize = 3;
/// Those that the kernel keeps, with the arguments of each, whoever has started them: the next engine has the same.
static UNREAPED: Mutex<Vec<Unreaped>> = Mutex::new(Vec::new());
/// A device that is slow to let go has done so by then.
const LET_GO_TIME: Duration = Duration::from_secs(30);

/// A process that is killed and has not ended.
struct Unreaped {
    arguments: Vec<OsString>,
    child: Child,
    since: Instant,
}

/// A backend in a child process. Dropping it kills the process and reaps it.
#[derive(Debug)]
pub struct ChildBackend {
    link: Link,
    process: Process,
    description: Description,
    /// As it was told last.
    memory: MemoryUse,
    /// Why there is no process any more, once that is so.
    lost: Option<BackendError>,
}

impl ChildBackend {
    /// Starts `command`, which has to call [`serve`](super::serve()), and waits until it is ready.
    /// Its standard input becomes the control socket, its output is discarded, its errors go where
    /// ours go. `shape` bounds the batches that can be run.
    ///
    /// # Errors
    /// `Load`, of the kind that the worker gave, or `Other` if it could not be started, ended,
    /// exceeded its time or made no sense, or if too many before it were killed and have not ended; `Killed`. The
    /// process is gone then.
    pub fn spawn(
        mut command: Command,
        shape: RegionShape,
        timeouts: Timeouts,
    ) -> Result<Self, BackendError> {
        let arguments: Vec<OsString> = command.get_args().map(ToOwned::to_owned).collect();
        refuse_more(&arguments)?;
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|errno| cannot("make the worker's socket", &errno.into()))?;
        // The greeting waits in the socket: a worker that ends at once is then seen to have ended.
        let link = Link::open(ours, shape, timeouts.run)
            .map_err(|error| cannot("share memory with a worker", &error))?;
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::inherit());
        let child = command.spawn().map_err(|error| {
            cannot(&format!("start the worker {}", command.get_program().display()), &error)
        })?;
        let id = child.id();
        let mut process = Process { child: Some(child), arguments };
        // It keeps the worker's end open, and the end of the worker would go unseen.
        drop(command);
        match link.wait_loaded(id, timeouts) {
            Ok(description) => {
                let memory = MemoryUse::default();
                Ok(Self { link, process, description, memory, lost: None })
            }
            Err(BackendError::Load { kind: kind @ LoadErrorKind::Other, message }) => {
                let load = |message| BackendError::Load { kind, message };
                Err(process.end(&link, message, load))
            }
            Err(error) => Err(error),
        }
    }
}

impl Backend for ChildBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.run_while(batch, out, &mut |_| ())
    }

    fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(), BackendError> {
        let (moved, memory) = self.asked(|link| link.run_while(batch, out, meanwhile))?;
        if let Some(device) = moved {
            self.description.device = device;
        }
        self.memory = memory;
        Ok(())
    }

    fn forget_begun(&mut self) {
        // What has become of the worker meanwhile the next one who asks is told.
        let _ = self.asked(Link::forget_begun);
    }

    fn begins(&self) -> bool {
        true
    }

    fn has_read_nothing(&self) -> bool {
        self.link.has_read_nothing
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
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let result = ask(&mut self.link);
        let Err(BackendError::Lost(why)) = result else { return result };
        let error = self.process.end(&self.link, why, BackendError::Lost);
        self.lost = Some(error.clone());
        Err(error)
    }
}

/// Kills and reaps.
#[derive(Debug)]
struct Process {
    child: Option<Child>,
    arguments: Vec<OsString>,
}

impl Process {
    /// Ends the process of `link` for this reason, and tells what it is `otherwise` if nobody else has ended it
    /// before.
    fn end(
        &mut self,
        link: &Link,
        why: String,
        otherwise: impl FnOnce(String) -> BackendError,
    ) -> BackendError {
        // One that says nothing, or closes its end and goes on, is killed by us.
        let has_ended = link.has_left() && self.has_ended();
        let (told, signal) = self.kill();
        let why = format!("{why}; {told}");
        match signal {
            Some(Signal::SIGKILL) if has_ended => BackendError::Killed(format!(
                "{why}, as the kernel has it where memory runs out (`journalctl -k` tells)"
            )),
            Some(Signal::SIGTERM) if has_ended => BackendError::Killed(why),
            _ => otherwise(why),
        }
    }

    /// Whether the process, which ends if it is honest, has done so.
    fn has_ended(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(wait(child), Ok(Some(_))))
    }

    /// Kills the process and says how it has ended, which it may have by itself, and by which signal. One that
    /// the kernel does not let go, as a driver that hangs has it, is not waited for: the worker's batch is
    /// somebody else's by then.
    fn kill(&mut self) -> (String, Option<Signal>) {
        let Some(mut child) = self.child.take() else {
            return ("its process has ended".into(), None);
        };
        let id = child.id();
        // Fails only if it has ended and been waited for.
        let _ = child.kill();
        let status = match wait(&mut child) {
            Ok(Some(status)) => status,
            Ok(None) => {
                let arguments = std::mem::take(&mut self.arguments);
                unreaped().push(Unreaped { arguments, child, since: Instant::now() });
                return (format!("process {id} is killed, and has not ended yet"), None);
            }
            Err(error) => return (format!("process {id} can't be waited for ({error})"), None),
        };
        let signal = status.signal().and_then(|signal| Signal::try_from(signal).ok());
        let told = match signal {
            // What a process does that is refused memory.
            Some(Signal::SIGABRT) => format!(
                "process {id} gave up ({status}), see its last message; if that is about memory, \
                 worker_memory_max is too small for the model or the batch"
            ),
            _ => format!("process {id} ended with {status}"),
        };
        (told, signal)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Those that have not ended yet; what has is reaped.
fn unreaped() -> MutexGuard<'static, Vec<Unreaped>> {
    let mut all = UNREAPED.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain_mut(|unreaped| matches!(unreaped.child.try_wait(), Ok(None)));
    all
}

/// Refuses another process with these arguments where too many before it have not ended.
fn refuse_more(arguments: &[OsString]) -> Result<(), BackendError> {
    let is_alike =
        |other: &&Unreaped| other.arguments == arguments && other.since.elapsed() >= LET_GO_TIME;
    let alike = unreaped().iter().filter(is_alike).count();
    if alike < UNREAPED_MAX {
        return Ok(());
    }
    let message = format!(
        "{alike} processes of this worker are killed and have not ended, as the kernel keeps them, and at most \
         {UNREAPED_MAX} may be so; no other is started before one has ended: see `journalctl -k` for its driver, or \
         restart the machine"
    );
    Err(BackendError::Load { kind: LoadErrorKind::Other, message })
}

/// Waits for the end of a process, but not for one that does not come.
fn wait(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + END_TIME;
    let mut last_looks = LAST_LOOKS;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => {}
            None if last_looks > 0 => last_looks -= 1,
            status => return Ok(status),
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn cannot(what: &str, error: &io::Error) -> BackendError {
    let message = format!("can't {what} ({error}); check the limits of the service");
    BackendError::Load { kind: LoadErrorKind::Other, message }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::kill;
    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;

    const SHAPE: RegionShape = RegionShape { tokens_max: 8, rows_max: 8, dimensions: 8 };

    /// What a worker that can't be started says. It is a program that ends at once.
    fn refusal(argument: &str) -> String {
        let mut command = Command::new("true");
        command.arg(argument);
        ChildBackend::spawn(command, SHAPE, Timeouts::default()).unwrap_err().to_string()
    }

    /// A process that runs stands for one that the kernel keeps.
    #[test]
    fn processes_that_do_not_end_are_not_started_for_ever() {
        let sleeps = || Command::new("tail").args(["-f", "/dev/null"]).spawn().unwrap();
        let mut pid = Pid::this();
        for _ in 0..UNREAPED_MAX {
            assert!(refusal("one").contains("closed its socket"));
            let child = sleeps();
            pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
            let since = Instant::now() - LET_GO_TIME;
            unreaped().push(Unreaped { arguments: vec!["one".into()], child, since });
        }
        assert!(refusal("one").contains("3 processes of this worker are killed and have not"));
        assert!(refusal("other").contains("closed its socket"), "another device is no worse");
        kill(pid, Signal::SIGKILL).unwrap();
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert!(refusal("one").contains("closed its socket"), "one has ended");
        // A worker that was just killed is no sign of a driver that hangs.
        unreaped().iter_mut().for_each(|unreaped| unreaped.since = Instant::now());
        unreaped().push(Unreaped {
            arguments: vec!["one".into()],
            child: sleeps(),
            since: Instant::now(),
        });
        assert!(refusal("one").contains("closed its socket"), "they were killed just now");
        for mut unreaped in unreaped().drain(..) {
            unreaped.child.kill().unwrap();
            unreaped.child.wait().unwrap();
        }
    }
}
