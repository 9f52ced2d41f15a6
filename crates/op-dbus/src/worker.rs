//! `op-dbus worker`: one model on one device, computing for the daemon that started it.
//!
//! Not for people: standard input is the daemon's control socket. What stands in the way of loading
//! is told over that socket, so that the daemon can give it its public error name.

mod sandbox;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use op_dbus_daemon::service::WorkerConfig;
use op_dbus_daemon::telemetry;
use op_dbus_embedder::backend;
use op_dbus_engine::sim::{self, Faulty, SimBackend};
use op_dbus_engine::{Backend, BackendError};
use rustix::process::{getpriority_process, setpriority_process};

use crate::inherited;

/// What is added to the daemon's `oom_score_adj`, or to 0 where that is below: counts as half of the machine's memory
/// when the kernel looks for whom to end.
const OOM_SCORE_MORE: i32 = 500;

/// Computes for the daemon that started it (internal)
#[derive(clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// What to compute and with what, as JSON
    config: WorkerConfig,
}

/// What `top` and `ps` call a worker.
const NAME: &CStr = c"op-dbus-worker";

/// Serves the daemon on standard input until it hangs up.
pub fn run(Args { config }: Args) -> ExitCode {
    let closed = inherited::let_go();
    if let Err(error) = telemetry::start_confined(&config.log) {
        eprintln!("op-dbus worker: no log: {error}");
    }
    if let Err(error) = closed {
        tracing::warn!(%error, "the worker may have files of the daemon's clients open");
    }
    // The file's name would be that of the daemon's way to it, `exe`.
    if let Err(error) = prctl::set_name(NAME) {
        tracing::warn!(%error, "`top` shows the worker under the name of a file");
    }
    // Bound to the thread that started us, which is also the one that owns us: with it goes the
    // only user of our results. The end of the control socket says the same, but is not seen in
    // the middle of a batch.
    if let Err(error) = prctl::set_pdeathsig(Signal::SIGKILL) {
        tracing::warn!(%error, "the worker may outlive a killed daemon by one batch");
    }
    // Had the daemon ended before that, nothing would tell us.
    if has_hung_up() {
        return ExitCode::FAILURE;
    }
    // Of the daemon and its workers the kernel is to end a worker when memory runs out: that costs one
    // batch, which is computed again, where the daemon would take every call with it.
    if let Err(error) = go_first() {
        tracing::warn!(%error, "the kernel may end the daemon before this worker");
    }
    if let Err(error) = give_way(config.nice) {
        tracing::warn!(%error, "the worker can't give way to other programs");
    }
    pin(&config.backend.cpus);
    let sandbox = sandbox::confine(&config);
    match op_dbus_engine::worker::serve(&sandbox.told, || {
        load(&config).map_err(|e| explained(e, config.memory_max))
    }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the worker can't speak to its daemon");
            ExitCode::FAILURE
        }
    }
}

/// Whether nobody is left at the other end of standard input.
fn has_hung_up() -> bool {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    let told = poll(&mut polled, PollTimeout::ZERO);
    told.is_ok_and(|count| count > 0)
        && polled[0].revents().is_some_and(|told| told.contains(PollFlags::POLLHUP))
}

/// The backend of a worker process that is told `config`, in this process: for measuring what the way to
/// another process costs. Binds the calling thread to its CPUs, and confines nobody.
pub fn in_process(config: &WorkerConfig) -> Result<Box<dyn Backend>, BackendError> {
    pin(&config.backend.cpus);
    load(config)
}

/// Has the kernel end this process before the one that started it. What is there may be above 0: in a container, or by
/// `OOMScoreAdjust=`.
fn go_first() -> io::Result<()> {
    let own = "/proc/self/oom_score_adj";
    let there: i32 = fs::read_to_string(own)?.trim().parse().map_err(io::Error::other)?;
    fs::write(own, goes_first(there).to_string())
}

fn goes_first(there: i32) -> i32 {
    (there.max(0) + OOM_SCORE_MORE).min(1000)
}

/// Has this thread, and the threads it will start, give way to whoever has little to do: on CPUs that all
/// compute, the bus, the daemon and its callers would otherwise wait for the scheduler's next tick at each hop.
fn give_way(nice: u8) -> rustix::io::Result<()> {
    match nice {
        0 => Ok(()),
        nice => setpriority_process(None, getpriority_process(None)? + i32::from(nice)),
    }
}

/// Keeps this thread, and the threads it will start, on `cpus`; a failure costs speed alone.
fn pin(cpus: &[usize]) {
    if let Err(error) = try_pin(cpus) {
        tracing::warn!(%error, ?cpus, "the worker can't be kept on its CPUs");
    }
}

fn try_pin(cpus: &[usize]) -> nix::Result<()> {
    if cpus.is_empty() {
        return Ok(());
    }
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|&cpu| set.set(cpu))?;
    sched_setaffinity(Pid::from_raw(0), &set)
}

fn load(config: &WorkerConfig) -> Result<Box<dyn Backend>, BackendError> {
    let sound: Box<dyn Backend> = match config.simulated {
        true => Box::new(SimBackend::new(sim::DIMENSIONS)),
        false => backend::load(&config.backend)?,
    };
    let Some(faults) = &config.faults else { return Ok(sound) };
    Ok(Box::new(Faulty::new(sound, faults.parse().map_err(BackendError::Failed)?)))
}

/// Whoever was refused memory does not know by which setting.
fn explained(error: BackendError, memory_max: Option<u64>) -> BackendError {
    /// As the standard library and the C library say it, of a thread whose stack is refused as well; as ONNX
    /// Runtime does, and ggml.
    const REFUSED: [&str; 6] = [
        "out of memory",
        "Cannot allocate memory",
        "Resource temporarily unavailable",
        "bad_alloc",
        "Failed to allocate memory",
        "could not allocate",
    ];
    match (error, memory_max) {
        (BackendError::Load { kind, message }, Some(bytes))
            if REFUSED.iter().any(|refused| message.contains(refused)) =>
        {
            let message = format!("{message}; worker_memory_max is {bytes} bytes");
            BackendError::Load { kind, message }
        }
        (error, _) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_goes_before_its_daemon_and_before_what_is_not_protected() {
        assert_eq!([-900, 0, 300, 900].map(goes_first), [500, 500, 800, 1000]);
    }

    #[test]
    fn what_was_refused_memory_names_the_setting() {
        use op_dbus_engine::LoadErrorKind::ProviderUnavailable;
        use std::io::{Error, ErrorKind};
        let told = |message: &str, memory_max| {
            let message = message.to_owned();
            let error = BackendError::Load { kind: ProviderUnavailable, message };
            explained(error, memory_max).to_string()
        };
        let refused = |error: Error, memory_max| told(&error.to_string(), memory_max);
        let by_number = [libc::ENOMEM, libc::EAGAIN].map(Error::from_raw_os_error);
        for error in [ErrorKind::OutOfMemory.into()].into_iter().chain(by_number) {
            assert!(refused(error, Some(16)).ends_with("worker_memory_max is 16 bytes"));
        }
        for library in
            ["initialization: std::bad_alloc", "ggml: could not allocate the weight buffer"]
        {
            assert!(told(library, Some(16)).ends_with("worker_memory_max is 16 bytes"));
        }
        let other = Error::from_raw_os_error(libc::ENOENT);
        assert!(!refused(other, Some(16)).contains("worker_memory_max"));
        let unlimited = ErrorKind::OutOfMemory.into();
        assert!(!refused(unlimited, None).contains("worker_memory_max"));
    }

    #[test]
    fn a_thread_is_pinned_and_an_impossible_cpu_is_an_error() {
        let pinned = std::thread::spawn(|| {
            let before = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            let first = (0..CpuSet::count()).find(|&cpu| before.is_set(cpu).unwrap()).unwrap();
            try_pin(&[first]).unwrap();
            let after = nix::sched::sched_getaffinity(Pid::from_raw(0)).unwrap();
            (0..CpuSet::count()).filter(|&cpu| after.is_set(cpu).unwrap()).eq([first])
        });
        assert!(pinned.join().unwrap());
        assert!(try_pin(&[usize::MAX]).is_err());
        assert!(try_pin(&[]).is_ok());
    }
}
