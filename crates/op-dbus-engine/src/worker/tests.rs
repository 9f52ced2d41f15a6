//! A worker's two ends, over a real socket: honest ones, and workers that lie, stall or vanish.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, send, socketpair};

use super::link::Link;
use super::protocol::{Answer, Request, receive_message, send_message};
use super::serve::serve_on;
use super::{RegionShape, Timeouts};
use crate::backend::{Backend, BackendError, Begin, DEVICES_MAX, Description, LoadErrorKind};
use crate::batch::Batch;
use crate::sim::{Faults, Faulty, SimBackend};
use crate::usage::{BufferUse, MemoryUse};

mod begun;
mod words;

const SHAPE: RegionShape = RegionShape { tokens_max: 64, rows_max: 8, dimensions: 4 };
const PATIENT: Timeouts = Timeouts { load: Duration::from_secs(60), run: Duration::from_secs(60) };
const BATCH: Batch<'_> = Batch { ids: &[5, 6, 7, 8], lengths: &[2, 2] };

type Loaded = Result<(Link, Description), BackendError>;

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).unwrap()
}

/// A link to a worker that `worker` plays on a thread of its own.
fn link<T: Send + 'static>(
    timeouts: Timeouts,
    worker: impl FnOnce(OwnedFd) -> T + Send + 'static,
) -> (Loaded, JoinHandle<T>) {
    let (ours, theirs) = sockets();
    let worker = thread::spawn(move || worker(theirs));
    let link = Link::open(ours, SHAPE, timeouts.run).unwrap();
    (link.wait_loaded(1, timeouts).map(|description| (link, description)), worker)
}

fn sim() -> Result<Box<dyn Backend>, BackendError> {
    Ok(Box::new(SimBackend::new(SHAPE.dimensions)))
}

fn ready() -> Answer {
    Answer::Ready { description: sim().unwrap().description().clone() }
}

fn done(number: u64) -> Answer {
    Answer::Done { number, device: None, memory: MemoryUse::default() }
}

/// A worker that loads honestly, until it has read what it is asked first.
fn until_asked(socket: &OwnedFd) {
    let _: Request = receive_message(socket, None).unwrap();
    send_message(socket, &ready()).unwrap();
    let _: Request = receive_message(socket, None).unwrap();
}

/// Runs a batch on a worker that loads honestly and then answers with `answer`.
fn run_with(timeouts: Timeouts, answer: impl Fn(&OwnedFd) + Send + 'static) -> BackendError {
    let (link, worker) = link(timeouts, move |socket| {
        until_asked(&socket);
        answer(&socket);
    });
    let error = run(&mut link.unwrap().0, &BATCH, &mut [0.0; 8]).unwrap_err();
    worker.join().unwrap();
    error
}

fn run(link: &mut Link, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
    link.run_while(batch, out, &mut |_| ()).map(drop)
}

fn send_raw(socket: &OwnedFd, bytes: &[u8]) {
    send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL).unwrap();
}

fn lost_because(error: &BackendError, reason: &str) {
    assert!(matches!(error, BackendError::Lost(_)), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn an_honest_worker_computes_what_the_backend_does_in_process() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none", sim));
    let (mut link, description) = link.unwrap();
    assert_eq!((description.provider.as_str(), description.pid), ("sim", 1));
    assert_eq!(description.sandbox, "none");
    let mut expected = [0.0; 8];
    sim().unwrap().run(&BATCH, &mut expected).unwrap();
    for _ in 0..3 {
        let mut out = [f32::NAN; 8];
        run(&mut link, &BATCH, &mut out).unwrap();
        assert_eq!(out, expected);
    }
    drop(link);
    worker.join().unwrap().unwrap();
}

/// Computes each batch on another device than the one before, in buffers that are there.
struct Moving(SimBackend, Description, BufferUse);

impl Backend for Moving {
    fn description(&self) -> &Description {
        &self.1
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        self.1.device = if self.1.device == "sim:1" { "sim:2".into() } else { "sim:1".into() };
        self.2.found += 1;
        self.0.run(batch, out)
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse { buffers: Some(self.2), ..MemoryUse::default() }
    }
}

#[test]
fn device_and_memory_of_a_batch_are_told() {
    let (link, worker) = link(PATIENT, |socket| {
        let sim = SimBackend::new(SHAPE.dimensions);
        let description = sim.description().clone();
        serve_on(socket.as_fd(), "none", || {
            Ok(Box::new(Moving(sim, description, BufferUse::default())))
        })
    });
    let mut link = link.unwrap().0;
    for (device, found) in [("sim:1", 1), ("sim:2", 2), ("sim:1", 3)] {
        let (moved, memory) = link.run_while(&BATCH, &mut [0.0; 8], &mut |_| ()).unwrap();
        assert_eq!(moved.as_deref(), Some(device));
        assert_eq!(memory.buffers, Some(BufferUse { found, made: 0 }));
    }
    let (_, memory) = link.trim().unwrap();
    assert_eq!(memory.buffers, Some(BufferUse { found: 3, made: 0 }));
    drop(link);
    worker.join().unwrap().unwrap();
}

#[test]
fn no_worker_gives_back_more_than_a_process_has() {
    let (link, worker) = link(PATIENT, |socket| {
        until_asked(&socket);
        let (given_back, resident) = (u64::MAX, u64::MAX);
        let memory = MemoryUse::default();
        send_message(&socket, &Answer::Trimmed { number: 1, given_back, resident, memory })
    });
    let (told, _) = link.unwrap().0.trim().unwrap();
    let workers = 1024;
    assert!(told.given_back.checked_mul(workers).is_some(), "{}", told.given_back);
    assert!(told.resident.checked_mul(workers).is_some(), "{}", told.resident);
    worker.join().unwrap().unwrap();
}

#[test]
fn errors_of_a_batch_leave_the_worker_in_use() {
    let faults = Faults { fail_on_batch: Some(1), oom_above_rows: Some(1), ..Faults::default() };
    let (link, worker) = link(PATIENT, |socket| {
        serve_on(socket.as_fd(), "none", || Ok(Box::new(Faulty::new(sim()?, faults))))
    });
    let mut link = link.unwrap().0;
    let mut out = [0.0; 8];
    assert!(matches!(run(&mut link, &BATCH, &mut out), Err(BackendError::Failed(_))));
    assert!(matches!(run(&mut link, &BATCH, &mut out), Err(BackendError::OutOfMemory(_))));
    let one = Batch { ids: &[5, 6], lengths: &[2] };
    run(&mut link, &one, &mut out[..4]).unwrap();
    drop(link);
    worker.join().unwrap().unwrap();
}

#[test]
fn a_batch_beyond_the_region_never_leaves_the_engine() {
    let (link, worker) = link(PATIENT, |socket| serve_on(socket.as_fd(), "none", sim));
    let mut link = link.unwrap().0;
    let wide = Batch { ids: &[1; 65], lengths: &[65] };
    assert!(matches!(run(&mut link, &wide, &mut [0.0; 4]), Err(BackendError::Failed(_))));
    let tall = Batch { ids: &[1; 9], lengths: &[1; 9] };
    assert!(matches!(run(&mut link, &tall, &mut [0.0; 36]), Err(BackendError::Failed(_))));
    assert!(matches!(run(&mut link, &BATCH, &mut [0.0; 7]), Err(BackendError::Failed(_))));
    run(&mut link, &BATCH, &mut [0.0; 8]).unwrap();
    drop(link);
    worker.join().unwrap().unwrap();
}

#[test]
fn garbage_is_a_lost_worker() {
    let error = run_with(PATIENT, |socket| send_raw(socket, b"\xff{\"done\""));
    lost_because(&error, "can't be read");
}

fn done_on(number: u64, device: &str) -> Answer {
    Answer::Done { number, device: Some(device.to_owned()), memory: MemoryUse::default() }
}

/// Of each the engine keeps what it costs.
#[test]
fn a_worker_that_moves_to_ever_new_devices_is_lost() {
    let devices = (1..=DEVICES_MAX).chain([1, DEVICES_MAX + 1]);
    let told = devices.clone();
    let (link, worker) = link(PATIENT, |socket| {
        until_asked(&socket);
        for (device, number) in told.zip(1..) {
            send_message(&socket, &done_on(number, &format!("gpu:{device}"))).unwrap();
            // None comes after the last.
            let _: Result<Request, _> = receive_message(&socket, None);
        }
    });
    let mut link = link.unwrap().0;
    for device in devices {
        let ran = run(&mut link, &BATCH, &mut [0.0; 8]);
        match device > DEVICES_MAX {
            true => lost_because(&ran.unwrap_err(), "1025 devices"),
            false => ran.unwrap(),
        }
    }
    drop(link);
    worker.join().unwrap();
}

#[test]
fn an_oversized_message_is_a_lost_worker() {
    let error = run_with(PATIENT, |socket| send_raw(socket, &vec![b' '; 100_000]));
    lost_because(&error, "100000 bytes");
}

#[test]
fn an_empty_message_is_a_lost_worker() {
    lost_because(&run_with(PATIENT, |socket| send_raw(socket, b"")), "closed");
}

#[test]
fn an_answer_to_another_batch_is_a_lost_worker() {
    let error = run_with(PATIENT, |socket| send_message(socket, &done(99)).unwrap());
    lost_because(&error, "did not answer to batch 1");
    let error = run_with(PATIENT, |socket| send_message(socket, &ready()).unwrap());
    lost_because(&error, "did not answer to batch 1");
}

#[test]
fn an_answer_sent_twice_does_not_count_for_the_next_batch() {
    let (link, worker) = link(PATIENT, |socket| {
        until_asked(&socket);
        for _ in 0..2 {
            send_message(&socket, &done(1)).unwrap();
        }
        let _: Request = receive_message(&socket, None).unwrap();
    });
    let mut link = link.unwrap().0;
    run(&mut link, &BATCH, &mut [0.0; 8]).unwrap();
    lost_because(&run(&mut link, &BATCH, &mut [0.0; 8]).unwrap_err(), "did not answer to batch 2");
    worker.join().unwrap();
}

#[test]
fn a_worker_that_hangs_up_is_lost() {
    lost_because(&run_with(PATIENT, |_| ()), "closed its socket");
}

/// Something to wait on that never comes, until its sender is dropped.
fn never() -> (impl Sized, Receiver<()>) {
    channel()
}

#[test]
fn a_silent_worker_is_lost_after_its_time() {
    let (end, ended) = never();
    let hasty = Timeouts { run: Duration::from_millis(5), ..PATIENT };
    let (link, worker) = link(hasty, move |socket| {
        until_asked(&socket);
        let _ = ended.recv();
    });
    let error = run(&mut link.unwrap().0, &BATCH, &mut [0.0; 8]).unwrap_err();
    lost_because(&error, "said nothing for 0.005 s");
    drop(end);
    worker.join().unwrap();
}

#[test]
fn the_engine_has_time_while_a_worker_computes() {
    let (computed, go) = channel();
    let (link, worker) = link(PATIENT, move |socket| {
        until_asked(&socket);
        // Does not answer before the engine has done something else.
        go.recv().unwrap();
        send_message(&socket, &done(1)).unwrap();
    });
    let mut meanwhile = |_: &mut Begin<'_>| computed.send(()).unwrap();
    link.unwrap().0.run_while(&BATCH, &mut [0.0; 8], &mut meanwhile).unwrap();
    worker.join().unwrap();
}

#[test]
fn vectors_that_were_not_written_are_not_those_of_the_batch_before() {
    let (link, worker) = link(PATIENT, |socket| {
        until_asked(&socket);
        send_message(&socket, &done(1)).unwrap();
    });
    let mut out = [f32::NAN; 8];
    run(&mut link.unwrap().0, &BATCH, &mut out).unwrap();
    assert!(out.chunks(4).all(|row| row[0].is_nan()), "{out:?}");
    worker.join().unwrap();
}

fn load_with(answer: impl FnOnce(&OwnedFd) + Send + 'static) -> BackendError {
    let (link, worker) = link(PATIENT, move |socket| {
        let _: Request = receive_message(&socket, None).unwrap();
        answer(&socket);
    });
    worker.join().unwrap();
    link.unwrap_err()
}

#[test]
fn a_worker_that_does_not_load_says_why_or_is_told_so() {
    let damaged = BackendError::Load {
        kind: LoadErrorKind::ModelCorrupt,
        message: "the weights are damaged".into(),
    };
    let told = Answer::unloadable(&damaged);
    assert_eq!(load_with(move |socket| send_message(socket, &told).unwrap()), damaged);
    let nonsense = |answer: fn(&OwnedFd), part: &str| {
        let error = load_with(answer);
        let BackendError::Load { kind, message } = &error else { panic!("{error:?}") };
        assert!(*kind == LoadErrorKind::Other && message.contains(part), "{message}");
    };
    nonsense(|_| (), "closed its socket");
    nonsense(|socket| send_raw(socket, b"hello"), "can't be read");
    nonsense(|socket| send_message(socket, &done(0)).unwrap(), "before it was asked");
    let many = |socket: &OwnedFd| {
        let description = Description { devices: 1025, ..sim().unwrap().description().clone() };
        send_message(socket, &Answer::Ready { description }).unwrap();
    };
    nonsense(many, "1025 devices");
    let long = |socket: &OwnedFd| {
        let precision = "f".repeat(300);
        let description = Description { precision, ..sim().unwrap().description().clone() };
        send_message(socket, &Answer::Ready { description }).unwrap();
    };
    nonsense(long, "a name of 300 bytes");
}

#[test]
fn vectors_of_the_wrong_length_are_refused_at_the_start() {
    let (link, worker) = link(PATIENT, |socket| {
        serve_on(socket.as_fd(), "none", || Ok(Box::new(SimBackend::new(5))))
    });
    let message = link.unwrap_err().to_string();
    assert!(message.contains("vectors of 5 dimensions and the model has 4"), "{message}");
    worker.join().unwrap().unwrap();
}

#[test]
fn a_worker_refuses_batches_that_do_not_fit() {
    let (ours, theirs) = sockets();
    let worker = thread::spawn(move || serve_on(theirs.as_fd(), "none", sim));
    let keep = ours.try_clone().unwrap();
    let _link = Link::open(ours, SHAPE, PATIENT.run).unwrap();
    let _: Answer = receive_message(&keep, None).unwrap();
    // The lengths in the fresh memory are zero, so that the last one is refused as well.
    for (number, rows, tokens) in
        [(1, 0, 1), (2, 1, 0), (3, 9, 9), (4, 1, 65), (5, usize::MAX, 2), (6, 2, 4)]
    {
        send_message(&keep, &Request::Run { number, slot: 0, rows, tokens }).unwrap();
        let answer: Answer = receive_message(&keep, None).unwrap();
        assert!(matches!(answer, Answer::Failed { number: n, .. } if n == number), "{answer:?}");
    }
    send_raw(&keep, b"nonsense");
    assert!(worker.join().unwrap().is_err());
}

#[test]
fn a_worker_that_is_not_greeted_properly_ends() {
    let (ours, theirs) = sockets();
    send_message(&ours, &Request::Run { number: 1, slot: 0, rows: 1, tokens: 1 }).unwrap();
    let error = serve_on(theirs.as_fd(), "none", sim).unwrap_err();
    assert!(error.to_string().contains("no shared memory"), "{error}");
    drop(ours);
    assert!(serve_on(theirs.as_fd(), "none", sim).is_err());
}
