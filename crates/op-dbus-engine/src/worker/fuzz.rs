//! Each end of a worker's socket and of its shared memory, while the other end says and writes anything.

use std::fs::File;
use std::io::IoSlice;
use std::iter;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::slice::Chunks;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, Shutdown, SockFlag, SockType, send, sendmsg, shutdown,
    socketpair,
};

use super::link::Link;
use super::protocol::{Answer, receive_message};
use super::region::{Region, SLOTS};
use super::serve::{receive_hello, serve_on};
use super::{RegionShape, Timeouts};
use crate::backend::{Backend, BackendError, Description, Meanwhile};
use crate::batch::Batch;
use crate::proof::run_checked;
use crate::sim::SimBackend;

const SHAPE: RegionShape = RegionShape { tokens_max: 8, rows_max: 4, dimensions: 2 };
const BATCH: Batch<'_> = Batch { ids: &[5, 6, 7], lengths: &[2, 1] };
/// All that the other end has to say is there already.
const AT_ONCE: Timeouts = Timeouts { load: Duration::ZERO, run: Duration::ZERO };
/// Messages that the socket holds for whoever has not read any.
const MESSAGES_MAX: usize = 16;
/// A place in the shared memory, and as many bytes as the vectors of the batch have.
const WRITTEN_BYTES: usize = 17;

/// The engine's end: a worker's messages, a line each, a NUL, and what the worker writes into the shared memory
/// before the engine has each answer.
pub(crate) fn answers(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (said, written) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let (ours, theirs) = sockets();
    let Ok(link) = Link::open(ours, SHAPE, AT_ONCE.run) else { return false };
    let (memory, _) = receive_hello(theirs.as_fd()).expect("a greeting");
    say(&theirs, said);
    let Ok(description) = link.wait_loaded(1, AT_ONCE) else { return false };
    assert_eq!((description.dimensions, description.pid), (SHAPE.dimensions, 1));
    let written = written.chunks(WRITTEN_BYTES);
    let mut worker = Writes { link, description, memory: memory.into(), written, is_out: false };
    let mut understood = false;
    for _ in 0..MESSAGES_MAX {
        let (mut out, writes) = ([f32::NAN; 4], worker.written.len() > 0);
        match run_checked(&mut worker, &BATCH, &mut out) {
            Ok(()) => {
                assert!(writes, "vectors that no worker has written: {out:?}");
                assert!(out.iter().all(|value| value.is_finite()), "{out:?}");
                understood = true;
            }
            Err(error) => {
                assert!(!worker.is_out, "it panicked");
                assert!(error.to_string().len() < 20_000);
                let _ = worker.link.trim();
            }
        }
    }
    understood
}

/// What the engine has of a worker that writes into the shared memory once it was asked for a batch: its vectors, or
/// over whatever else lies there.
struct Writes<'a> {
    link: Link,
    description: Description,
    memory: File,
    /// For each batch a place, counted in values, and bytes.
    written: Chunks<'a, u8>,
    /// Whether a batch was asked for and has not come back.
    is_out: bool,
}

impl Backend for Writes<'_> {
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
        let Self { link, memory, written, is_out, .. } = self;
        *is_out = true;
        let ran = link.run_while(batch, out, &mut |begin| {
            if let Some([place, bytes @ ..]) = written.next() {
                // There is nothing behind the end.
                let _ = memory.write_at(bytes, 4 * u64::from(*place));
            }
            meanwhile(begin);
        });
        *is_out = false;
        ran.map(drop)
    }
}

/// The worker's end: what lies in the shared memory, a NUL, and the engine's messages, a line each,
/// of which the first comes with that memory.
pub(crate) fn requests(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (content, said) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let Ok((region, memory)) = Region::create(SHAPE) else { return false };
    let number = |at: usize| content.get(at).map_or(0, |byte| i32::from(byte.cast_signed()));
    let ids: [i32; SHAPE.tokens_max] = std::array::from_fn(number);
    let lengths: [i32; SHAPE.rows_max] = std::array::from_fn(|at| number(SHAPE.tokens_max + at));
    for slot in 0..SLOTS {
        region.write_batch(slot, &Batch { ids: &ids, lengths: &lengths });
    }
    let (ours, theirs) = sockets();
    let mut lines = said.splitn(2, |byte| *byte == b'\n');
    let descriptors = [memory.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&descriptors)];
    let hello = [IoSlice::new(lines.next().unwrap_or_default())];
    let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
    if sendmsg::<()>(ours.as_raw_fd(), &hello, &rights, flags, None).is_err() {
        return false;
    }
    say(&ours, lines.next().unwrap_or_default());
    let sim = SimBackend::new(SHAPE.dimensions);
    // It ends at the end of what was said, or at what makes no sense.
    let _ = serve_on(theirs.as_fd(), "none", || Ok(Box::new(sim)));
    let mut answers = iter::from_fn(|| receive_message::<Answer>(&ours, Some(Duration::ZERO)).ok());
    answers.any(|answer| matches!(answer, Answer::Done { .. }))
}

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
        .expect("a pair of sockets")
}

/// Sends every line, and nothing ever again.
fn say(socket: &OwnedFd, lines: &[u8]) {
    for line in lines.split(|byte| *byte == b'\n').take(MESSAGES_MAX) {
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        let _ = send(socket.as_raw_fd(), line, flags);
    }
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Write);
}
