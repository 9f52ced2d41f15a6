//! Signals that end a command which has processes and folders of its own: those go first.

use std::future::poll_fn;
use std::process::ExitCode;
use std::task::Poll;
use std::{io, mem, ptr};

use nix::errno::Errno;
use nix::sys::signal::{SigHandler, Signal, raise, signal};
use tokio::signal::unix::{self, SignalKind};

use super::{Done, Failure, single_threaded};

/// What ends a program by itself, sent by a terminal or by who ends programs in order.
const ENDING: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];

/// As [`block_on`](super::block_on), for a command that would leave something behind if a signal ended it at
/// once: what `command` owns is dropped first, and then the signal does what it was sent for.
pub fn block_on_and_clear<F: Future<Output = Done>>(command: F) -> Done {
    let runtime = single_threaded()?;
    let ended = runtime.block_on(async {
        let mut signals = Signals::listen()
            .map_err(|error| Failure::refused(format!("can't listen for signals: {error}")))?;
        tokio::select! {
            // First, or a command that never waits for long would go on.
            biased;
            signal = signals.first() => Ok(Ended::By(signal)),
            done = command => done.map(Ended::Itself),
        }
    });
    match ended? {
        Ended::Itself(code) => Ok(code),
        Ended::By(signal) => {
            // A thread that reads standard input, or loads a model, is not waited for.
            runtime.shutdown_background();
            Ok(end_by(signal))
        }
    }
}

enum Ended {
    Itself(ExitCode),
    By(Signal),
}

/// The signals that end this process by now.
struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// One that whoever started us has us ignore, as `nohup` does, stays ignored.
    fn listen() -> io::Result<Self> {
        let mut signals = Vec::new();
        for signal in ENDING {
            if !is_ignored(signal)? {
                signals.push((signal, unix::signal(SignalKind::from_raw(signal as i32))?));
            }
        }
        Ok(Self(signals))
    }

    /// Waits for the first of them.
    async fn first(&mut self) -> Signal {
        poll_fn(|context| {
            let mut came = |one: &mut unix::Signal| one.poll_recv(context) == Poll::Ready(Some(()));
            let first = self.0.iter_mut().find_map(|(signal, one)| came(one).then_some(*signal));
            first.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

fn is_ignored(signal: Signal) -> io::Result<bool> {
    // SAFETY: of C's plain numbers and pointers, all of which may be zero.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: nothing is set, and what is there is written to a place of that type.
    Errno::result(unsafe { libc::sigaction(signal as i32, ptr::null(), &raw mut action) })?;
    Ok(action.sa_sigaction == libc::SIG_IGN)
}

/// Ends this process by `signal`, so that whoever waits for it sees that.
fn end_by(which: Signal) -> ExitCode {
    // SAFETY: the default action runs no code of this program.
    let ended = unsafe { signal(which, SigHandler::SigDfl) }.and_then(|_| raise(which));
    // Where the signal is blocked we are still here; a shell says it with this number.
    ended.ok();
    ExitCode::from(u8::try_from(128 + which as i32).unwrap_or(u8::MAX))
}
