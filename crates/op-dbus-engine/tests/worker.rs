//! Workers as real processes: this test program starts itself again as one.

#![allow(clippy::unwrap_used, reason = "tests, also where clippy sees a helper function")]

#[path = "engine/around.rs"]
mod around;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::Pid;
use op_dbus_engine::sim::{Faults, Faulty, SimBackend};
use op_dbus_engine::worker::{ChildBackend, RegionShape, Timeouts, serve};
use op_dbus_engine::{
    Backend, BackendError, Batch, BatchLimits, Call, Engine, EngineConfig, LoadErrorKind,
    ModelShape, Pool, Tokenizer,
};

use around::around;

const ROLE: &str = "OP_DBUS_TEST_WORKER";
/// Names a file with a byte for each start of a worker.
const STARTS: &str = "OP_DBUS_TEST_STARTS";
const SHAPE: RegionShape = RegionShape { tokens_max: 512, rows_max: 512, dimensions: 16 };
const PATIENT: Timeouts = Timeouts { load: Duration::from_secs(60), run: Duration::from_secs(60) };
const BATCH: Batch<'_> = Batch { ids: &[5, 6, 7, 8], lengths: &[2, 2] };

/// So often no machine takes longer to end a process than is waited for.
const TRIES: u64 = 5;

/// Bytes that the greedy worker may have; twice as many is what it asks for.
const MEMORY_MAX: u64 = 256 << 20;

/// Wants more memory than it may have for a batch of more than two rows.
fn greedy(sim: &mut dyn Backend, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
    if batch.rows() > 2 {
        std::hint::black_box(Vec::<u8>::with_capacity(2 * MEMORY_MAX as usize));
    }
    sim.run(batch, out)
}

/// Refuses to compute to anywhere but the memory that is shared with the engine.
fn in_place(sim: &mut dyn Backend, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
        (start..end).contains(&out.as_ptr().addr())
    };
    let mapping = maps.lines().find(holds).unwrap_or("nothing");
    if !mapping.contains("memfd:op-dbus-batch") {
        return Err(BackendError::Failed(format!("vectors are to be written to {mapping}")));
    }
    // What was not written must not pass for a vector.
    assert!(out.chunks(SHAPE.dimensions).all(|row| row[0].is_nan()), "{out:?}");
    sim.run(batch, out)
}

/// Kills this process if it is one of the first so many workers, as the kernel does that runs out of memory, or
/// an administrator.
fn kill_the_first(workers: u64) {
    let mut starts = OpenOptions::new().append(true).open(std::env::var(STARTS).unwrap()).unwrap();
    starts.write_all(b".").unwrap();
    if starts.metadata().unwrap().len() <= workers {
        kill(Pid::this(), Signal::SIGKILL).unwrap();
    }
}

/// Not a test of its own: the worker that the tests start.
#[test]
fn worker_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let faults = Faults { hang_on_batch: (role == "hang").then_some(1), ..Faults::default() };
    let sim: Box<dyn Backend> = Box::new(SimBackend::new(SHAPE.dimensions));
    let load = || match role.as_str() {
        "unloadable" => Err(BackendError::Load {
            kind: LoadErrorKind::ProviderUnavailable,
            message: "no library".into(),
        }),
        "dies" => std::process::exit(7),
        "greedy" => {
            setrlimit(Resource::RLIMIT_DATA, MEMORY_MAX, MEMORY_MAX).unwrap();
            Ok(around(sim, greedy))
        }
        "in-place" => Ok(around(sim, in_place)),
        "hangs-up" => Ok(around(sim, |_, _, _| {
            shutdown(std::io::stdin().as_raw_fd(), Shutdown::Both).unwrap();
            loop {
                std::thread::park();
            }
        })),
        "killed-loading-1" | "killed-loading-2" => {
            kill_the_first(role[15..].parse().unwrap());
            Ok(sim)
        }
        "killed-proving-1" | "killed-proving-2" => {
            let workers = role[15..].parse().unwrap();
            Ok(around(sim, move |sim, batch, out| {
                kill_the_first(workers);
                sim.run(batch, out)
            }))
        }
        "never-loads" => loop {
            std::thread::park();
        },
        _ => Ok(Box::new(Faulty::new(sim, faults)) as Box<dyn Backend>),
    };
    serve("", load).unwrap();
    std::process::exit(0);
}

fn command(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "worker_process", "--nocapture"]).env(ROLE, role);
    command
}

fn spawn(role: &str, timeouts: Timeouts) -> Result<ChildBackend, BackendError> {
    ChildBackend::spawn(command(role), SHAPE, timeouts)
}

fn pid(backend: &impl Backend) -> Pid {
    Pid::from_raw(i32::try_from(backend.description().pid).unwrap())
}

fn is_gone(pid: Pid) -> bool {
    kill(pid, None) == Err(Errno::ESRCH)
}

#[test]
fn a_worker_process_computes_and_is_reaped() {
    assert!((0..TRIES).any(|_| {
        let mut child = spawn("plain", PATIENT).unwrap();
        let pid = pid(&child);
        assert_ne!(child.description().pid, std::process::id());
        let (mut out, mut expected) = ([0.0; 32], [0.0; 32]);
        // A batch that is refused leaves the process.
        assert!(matches!(child.run(&BATCH, &mut []), Err(BackendError::Failed(_))));
        child.run(&BATCH, &mut out).unwrap();
        SimBackend::new(SHAPE.dimensions).run(&BATCH, &mut expected).unwrap();
        assert_eq!(out, expected);
        assert!(!is_gone(pid));
        drop(child);
        is_gone(pid)
    }));
}

/// Between a backend in a process of its own and a sink there is one copy: that out of the memory which
/// the process may write. That the sink has that very copy shows `sinks.rs`.
#[test]
fn a_worker_computes_in_the_shared_memory() {
    let mut child = spawn("in-place", PATIENT).unwrap();
    for rows in [2, 1, 2] {
        let batch = Batch { ids: &BATCH.ids[..2 * rows], lengths: &BATCH.lengths[..rows] };
        let (mut out, mut expected) = ([f32::NAN; 32], [0.0; 32]);
        let (out, expected) = (&mut out[..16 * rows], &mut expected[..16 * rows]);
        child.run(&batch, out).unwrap();
        SimBackend::new(SHAPE.dimensions).run(&batch, expected).unwrap();
        assert_eq!(out, expected);
    }
}

#[test]
fn a_hanging_process_is_killed_and_stays_lost() {
    let hasty = Timeouts { run: Duration::from_millis(5), ..PATIENT };
    assert!((0..TRIES).any(|_| {
        let mut child = spawn("hang", hasty).unwrap();
        let pid = pid(&child);
        (0..2).all(|_| {
            let error = child.run(&BATCH, &mut [0.0; 32]).unwrap_err();
            assert!(matches!(error, BackendError::Lost(_)), "{error:?}");
            error.to_string().contains("SIGKILL") && is_gone(pid)
        })
    }));
}

/// Whom the kernel kills for want of memory has ended, and is no loss of the model's.
#[test]
fn a_process_that_hangs_up_and_goes_on_is_not_taken_for_one_that_the_kernel_killed() {
    let error = spawn("hangs-up", PATIENT).unwrap().run(&BATCH, &mut [0.0; 32]).unwrap_err();
    let BackendError::Lost(reason) = error else { panic!("{error:?}") };
    assert!(reason.contains("closed its socket"), "{reason}");
}

#[test]
fn a_process_that_wants_too_much_memory_ends_and_the_setting_is_named() {
    let mut child = spawn("greedy", PATIENT).unwrap();
    child.run(&BATCH, &mut [0.0; 32]).unwrap();
    let large = Batch { ids: &[5, 6, 7], lengths: &[1, 1, 1] };
    let error = child.run(&large, &mut [0.0; 48]).unwrap_err();
    let BackendError::Lost(reason) = error else { panic!("{error}") };
    for part in ["SIGABRT", "worker_memory_max"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
}

fn load_error(result: Result<ChildBackend, BackendError>) -> (LoadErrorKind, String) {
    match result.unwrap_err() {
        BackendError::Load { kind, message } => (kind, message),
        error => panic!("{error:?}"),
    }
}

#[test]
fn a_process_that_does_not_load_says_why() {
    let unavailable = (LoadErrorKind::ProviderUnavailable, "no library".into());
    assert_eq!(load_error(spawn("unloadable", PATIENT)), unavailable);
    let (kind, message) = load_error(spawn("dies", PATIENT));
    assert_eq!(kind, LoadErrorKind::Other);
    assert!(message.contains("closed its socket") && message.contains("exit status"), "{message}");
    let hasty = Timeouts { load: Duration::from_millis(5), ..PATIENT };
    let (_, message) = load_error(spawn("never-loads", hasty));
    assert!(message.contains("said nothing for 0.005 s"), "{message}");
    let missing = Command::new("/nonexistent/op-dbus");
    let (_, message) = load_error(ChildBackend::spawn(missing, SHAPE, PATIENT));
    assert!(message.contains("can't start the worker"), "{message}");
    let stranger = Command::new("true");
    let (_, message) = load_error(ChildBackend::spawn(stranger, SHAPE, PATIENT));
    assert!(message.contains("closed its socket"), "{message}");
}

/// An engine with one worker, a process in this `role` that counts its starts in `starts`.
fn engine(role: &'static str, starts: &Path) -> Result<Engine, BackendError> {
    let model = ModelShape::new(SHAPE.dimensions, 64);
    let (shape, starts) = (BatchLimits::default().region(&model), starts.to_owned());
    let pool = Pool::new(Box::new(move |_| {
        let mut command = command(role);
        command.env(STARTS, &starts);
        let child = ChildBackend::spawn(command, shape, PATIENT)?;
        Ok(Box::new(child) as Box<dyn Backend>)
    }));
    Engine::start(Tokenizer::bytes(64), model, vec![pool], EngineConfig::default())
}

#[test]
fn a_process_that_is_killed_before_it_is_trusted_is_started_once_more() {
    let start = |role| {
        let name = format!("{role}.{}", std::process::id());
        let starts = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        File::create(&starts).unwrap();
        let engine = engine(role, &starts);
        std::fs::remove_file(starts).unwrap();
        engine
    };
    for (once, twice) in
        [("killed-loading-1", "killed-loading-2"), ("killed-proving-1", "killed-proving-2")]
    {
        assert!((0..TRIES).any(|_| start(once).is_ok()));
        assert!((0..TRIES).any(|_| {
            matches!(start(twice), Err(BackendError::Killed(why)) if why.contains("SIGKILL"))
        }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_outlives_its_worker_process() {
    let engine = engine("plain", Path::new("/dev/null")).unwrap();
    let call = || Call { inputs: vec!["text".to_owned()].into(), ..Call::default() };
    let before = engine.embed(call()).await.unwrap();
    let worker = || Pid::from_raw(i32::try_from(engine.descriptions()[0].description.pid).unwrap());
    for restarts in 1..=TRIES {
        let pid = worker();
        kill(pid, Signal::SIGKILL).unwrap();
        let after = engine.embed(call()).await.unwrap();
        assert_eq!(before.vectors, after.vectors);
        assert_eq!(engine.stats().worker_restarts, restarts);
        assert_ne!(worker(), pid);
        if is_gone(pid) {
            return;
        }
    }
    panic!("no worker was reaped");
}
