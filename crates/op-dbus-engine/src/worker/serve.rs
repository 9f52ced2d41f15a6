//! The worker's side: load, then compute what the engine asks for until it hangs up.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

use super::RegionShape;
use super::protocol::{
    Answer, MESSAGE_BYTES_MAX, ReceiveError, Request, VERSION, parse, receive_message, send_message,
};
use super::region::{Region, SLOTS};
use crate::backend::{Backend, BackendError, Description, Footprint};
use crate::batch::Batch;
use crate::memory;

/// Runs a worker on standard input, which [`ChildBackend::spawn`](super::ChildBackend::spawn) has
/// made its control socket. `sandbox` tells the engine what confines this process. Returns when the
/// engine hangs up, or after it has been told that `load` failed.
///
/// # Errors
/// The socket fails, or what comes from it is not what an engine of this version sends.
pub fn serve(
    sandbox: &str,
    load: impl FnOnce() -> Result<Box<dyn Backend>, BackendError>,
) -> io::Result<()> {
    serve_on(io::stdin().as_fd(), sandbox, load)
}

pub(super) fn serve_on(
    socket: BorrowedFd<'_>,
    sandbox: &str,
    load: impl FnOnce() -> Result<Box<dyn Backend>, BackendError>,
) -> io::Result<()> {
    let (memory, shape) = receive_hello(socket)?;
    let region = Region::open(&memory, shape)?;
    let mut backend = match load() {
        Ok(backend) => backend,
        Err(error) => return send_message(socket, &Answer::unloadable(&error)),
    };
    let description = Description { sandbox: sandbox.to_owned(), ..backend.description().clone() };
    if description.dimensions != shape.dimensions {
        // Told, so that the engine names both sizes; it ends us.
        return send_message(socket, &Answer::Ready { description });
    }
    let mut device = description.device.clone();
    send_message(socket, &Answer::Ready { description })?;
    let mut batches = Batches::new(region, shape);
    loop {
        match receive_message(socket, None) {
            Ok(Request::Run { number, slot, rows, tokens }) => {
                let result = batches.run(backend.as_mut(), slot, (rows, tokens));
                let answer = match result {
                    Ok(()) => Answer::Done {
                        number,
                        device: moved(backend.as_ref(), &mut device),
                        memory: backend.memory(),
                    },
                    Err(error) => Answer::failed(number, error),
                };
                send_message(socket, &answer)?;
            }
            Ok(Request::Trim { number }) => {
                let before = memory::resident();
                let answer = match batches.trim(backend.as_mut()) {
                    Ok(elsewhere) => {
                        let resident = memory::resident();
                        let given_back = before.saturating_sub(resident) + elsewhere.given_back;
                        let memory = backend.memory();
                        Answer::Trimmed { number, given_back, resident, memory }
                    }
                    Err(error) => Answer::failed(number, error),
                };
                send_message(socket, &answer)?;
            }
            Ok(Request::Hello { .. }) => return Err(invalid("the engine greets a second time")),
            Err(ReceiveError::Closed | ReceiveError::Unread) => return Ok(()),
            Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }
}

/// The device of `backend`, if it is another than `device`, which it replaces.
fn moved(backend: &dyn Backend, device: &mut String) -> Option<String> {
    let now = &backend.description().device;
    (now != device).then(|| {
        device.clone_from(now);
        now.clone()
    })
}

/// The shared memory, and private copies of what is to be computed in it.
struct Batches {
    region: Region,
    shape: RegionShape,
    ids: Vec<i32>,
    lengths: Vec<i32>,
}

impl Batches {
    /// Room for the largest batch at once: pages that no batch has touched take no memory.
    fn new(region: Region, shape: RegionShape) -> Self {
        let RegionShape { tokens_max, rows_max, .. } = shape;
        let (ids, lengths) = (Vec::with_capacity(tokens_max), Vec::with_capacity(rows_max));
        Self { region, shape, ids, lengths }
    }

    fn run(
        &mut self,
        backend: &mut dyn Backend,
        slot: usize,
        (rows, tokens): (usize, usize),
    ) -> Result<(), BackendError> {
        if slot >= SLOTS || !self.region.fits(rows, tokens) {
            return Err(BackendError::Failed("the batch does not fit the shared memory".into()));
        }
        self.ids.resize(tokens, 0);
        self.lengths.resize(rows, 0);
        self.region.read_batch(slot, &mut self.ids, &mut self.lengths);
        let batch = Batch { ids: &self.ids, lengths: &self.lengths };
        batch.check()?;
        // SAFETY: the engine, which has asked for this batch, leaves its vectors alone until it is
        // answered, whatever it does in the other slot; it ends this process where it does not want to wait for that.
        let out = unsafe { self.region.vectors_mut(slot, rows * self.shape.dimensions) };
        backend.run(&batch, out)
    }

    /// Gives back what the last batch left here, in the backend and in the C library.
    fn trim(&mut self, backend: &mut dyn Backend) -> Result<Footprint, BackendError> {
        (self.ids, self.lengths) = Default::default();
        let elsewhere = backend.trim()?;
        memory::trim();
        Ok(elsewhere)
    }
}

/// The first message of the engine: the shared memory, and what it has room for.
pub(super) fn receive_hello(socket: BorrowedFd<'_>) -> io::Result<(OwnedFd, RegionShape)> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let mut space = nix::cmsg_space!([i32; 1]);
    let (memory, length) = {
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = loop {
            match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags) {
                Err(Errno::EINTR) => {}
                result => break result?,
            }
        };
        let mut descriptors = message.cmsgs()?.filter_map(|control| match control {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        (descriptors.next(), message.bytes)
    };
    let memory = memory.ok_or_else(|| {
        invalid("no shared memory came with the greeting; workers are started by the service")
    })?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    let memory = unsafe { OwnedFd::from_raw_fd(memory) };
    match parse(&buffer, length) {
        Ok(Request::Hello { version: VERSION, shape }) => Ok((memory, shape)),
        Ok(_) => Err(invalid("the engine is of another version; restart the service")),
        Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
    }
}

fn invalid(message: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
