//! The engine's end of a worker: what is asked, and everything that is checked in the answers.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::protocol::{
    Answer, MESSAGE_BYTES_MAX, ReceiveError, Request, TEXT_CHARS_MAX, VERSION, receive_message,
    send_message, write,
};
use super::region::{Region, SLOTS};
use super::{RegionShape, Timeouts};
use crate::backend::{
    BackendError, DEVICES_MAX, Description, Footprint, LoadErrorKind, Meanwhile, with_causes,
};
use crate::batch::Batch;
use crate::usage::MemoryUse;

/// No process has more, whatever it says. They are added up.
const PROCESS_BYTES_MAX: u64 = 1 << 48;

/// Bytes of a name that a worker tells, such as that of its device. They are kept, and told in replies.
const NAME_BYTES_MAX: usize = 256;

/// A worker that has not said yet that it is loaded, or has.
#[derive(Debug)]
pub(super) struct Link {
    socket: OwnedFd,
    region: Region,
    shape: RegionShape,
    run_timeout: Duration,
    /// Of what was asked last.
    number: u64,
    /// The batch that was begun while another one was computed.
    begun: Option<Begun>,
    /// The devices that the worker has moved to.
    devices: BTreeSet<String>,
    /// Whether the worker had ended before it read what it was asked last.
    pub has_read_nothing: bool,
}

/// A batch that the worker was asked for.
#[derive(Debug)]
struct Begun {
    number: u64,
    slot: usize,
    rows: usize,
    tokens: usize,
}

impl Link {
    /// Greets the worker at the other end of `socket` and hands it the shared memory.
    pub fn open(socket: OwnedFd, shape: RegionShape, run_timeout: Duration) -> io::Result<Self> {
        let (region, memory) = Region::create(shape)?;
        let mut hello = [0; MESSAGE_BYTES_MAX];
        let length = write(&Request::Hello { version: VERSION, shape }, &mut hello)?;
        let descriptors = [memory.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&descriptors)];
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(&hello[..length])], &rights, flags, None)?;
        Ok(Self {
            socket,
            region,
            shape,
            run_timeout,
            number: 0,
            begun: None,
            devices: BTreeSet::new(),
            has_read_nothing: false,
        })
    }

    /// Waits until the worker has loaded. It is believed what provider it has; how long it took and
    /// what process it is the engine knows better.
    pub fn wait_loaded(&self, pid: u32, timeouts: Timeouts) -> Result<Description, BackendError> {
        let start = Instant::now();
        let other = |message| BackendError::Load { kind: LoadErrorKind::Other, message };
        match receive_message(&self.socket, Some(timeouts.load)) {
            Ok(Answer::Ready { description })
                if description.dimensions != self.shape.dimensions =>
            {
                Err(other(format!(
                    "the worker makes vectors of {} dimensions and the model has {}; check the \
                     model's files",
                    description.dimensions, self.shape.dimensions
                )))
            }
            Ok(Answer::Ready { description }) if description.devices > DEVICES_MAX => {
                Err(other(format!(
                    "the worker tells of {} devices, and no machine has more than {DEVICES_MAX}",
                    description.devices
                )))
            }
            Ok(Answer::Ready { description }) => {
                let Description { provider, device, precision, engine, isa, .. } = &description;
                for name in [provider, device, precision, engine, isa] {
                    check_name(name).map_err(|why| other(format!("the worker tells {why}")))?;
                }
                let load_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                let sandbox = one_line(&description.sandbox);
                Ok(Description { pid, load_ms, sandbox, ..description })
            }
            Ok(Answer::Unloadable { kind, message }) => {
                Err(BackendError::Load { kind, message: one_line(&message) })
            }
            Ok(Answer::Done { .. } | Answer::Trimmed { .. } | Answer::Failed { .. }) => {
                Err(other("the worker answered before it was asked; see its messages above".into()))
            }
            Err(error) => {
                let why = one_line(&with_causes(&error));
                Err(other(format!("the worker did not load: {why}")))
            }
        }
    }

    /// Whether the worker has closed its end.
    pub fn has_left(&self) -> bool {
        let mut end = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        // What can't be asked is there still.
        let _ = poll(&mut end, PollTimeout::ZERO);
        end[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }

    /// Has the worker compute one batch, unless it was begun before, and calls `meanwhile` while it does, which
    /// may begin the next one. Tells the device that did, if it is another than before, and what became of the
    /// worker's memory. After `Lost` it can't be used any more.
    pub fn run_while(
        &mut self,
        batch: &Batch<'_>,
        out: &mut [f32],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<(Option<String>, MemoryUse), BackendError> {
        if out.len() != batch.rows().saturating_mul(self.shape.dimensions) {
            return Err(self.no_room(batch));
        }
        let begun = match self.begun.take() {
            Some(begun) if (begun.rows, begun.tokens) == (batch.rows(), batch.tokens()) => begun,
            Some(_) => return Err(BackendError::Lost("another batch was begun".to_owned())),
            None => self.begin(batch, 0)?,
        };
        let slot = begun.slot;
        meanwhile(&mut |next| {
            let next = self.begin(next, (slot + 1) % SLOTS);
            // Whatever is in the way of it is told of the batch that is computed, or of this one when it is asked
            // for again.
            self.begun = next.ok();
            self.begun.is_some()
        });
        let (device, memory) = self.done(&begun)?;
        self.region.read_vectors(slot, out);
        Ok((device, memory))
    }

    /// Waits for the batch that was begun, if there is one, and leaves its vectors. After `Lost` it can't be used any
    /// more.
    pub fn forget_begun(&mut self) -> Result<(), BackendError> {
        match self.begun.take().map(|begun| self.done(&begun)) {
            Some(Err(error @ BackendError::Lost(_))) => Err(error),
            _ => Ok(()),
        }
    }

    /// Has the worker give memory back. After `Lost` it can't be used any more.
    pub fn trim(&mut self) -> Result<(Footprint, MemoryUse), BackendError> {
        self.forget_begun()?;
        self.number += 1;
        let asked = self.number;
        self.send(&Request::Trim { number: asked })?;
        match self.answer()? {
            Answer::Trimmed { number, given_back, resident, memory } if number == asked => {
                let told = |bytes: u64| bytes.min(PROCESS_BYTES_MAX);
                let (given_back, resident) = (told(given_back), told(resident));
                Ok((Footprint { given_back, resident }, memory))
            }
            other => Err(unexpected(other, asked)),
        }
    }

    /// Asks for a batch.
    fn begin(&mut self, batch: &Batch<'_>, slot: usize) -> Result<Begun, BackendError> {
        batch.check()?;
        let (rows, tokens) = (batch.rows(), batch.tokens());
        if !self.region.fits(rows, tokens) {
            return Err(self.no_room(batch));
        }
        self.number += 1;
        let number = self.number;
        self.region.write_batch(slot, batch);
        // So that a vector which the worker does not write is not taken from an earlier batch.
        self.region.spoil_vectors(slot, rows);
        self.send(&Request::Run { number, slot, rows, tokens })?;
        Ok(Begun { number, slot, rows, tokens })
    }

    /// Waits for a batch; its vectors are there then.
    fn done(&mut self, begun: &Begun) -> Result<(Option<String>, MemoryUse), BackendError> {
        match self.answer()? {
            Answer::Done { number, device, memory } if number == begun.number => {
                if let Some(device) = &device {
                    self.moves_to(device)?;
                }
                Ok((device, memory))
            }
            other => Err(unexpected(other, begun.number)),
        }
    }

    /// Takes note of a device: what is known of each is kept, so that a worker may not tell of ever new ones.
    fn moves_to(&mut self, device: &str) -> Result<(), BackendError> {
        check_name(device).map_err(|why| BackendError::Lost(format!("it tells {why}")))?;
        if !self.devices.contains(device) {
            self.devices.insert(device.to_owned());
        }
        match self.devices.len() {
            0..=DEVICES_MAX => Ok(()),
            count => Err(BackendError::Lost(format!(
                "it has computed on {count} devices, and no machine has more than {DEVICES_MAX}"
            ))),
        }
    }

    fn send(&mut self, request: &Request) -> Result<(), BackendError> {
        send_message(&self.socket, request).map_err(|error| {
            self.has_read_nothing = error.kind() == io::ErrorKind::BrokenPipe;
            BackendError::Lost(format!("it takes no messages ({error})"))
        })
    }

    fn answer(&mut self) -> Result<Answer, BackendError> {
        receive_message(&self.socket, Some(self.run_timeout)).map_err(|error| {
            // What lies there unread may be the batch that was begun.
            self.has_read_nothing = matches!(error, ReceiveError::Unread) && self.begun.is_none();
            BackendError::Lost(one_line(&with_causes(&error)))
        })
    }

    fn no_room(&self, batch: &Batch<'_>) -> BackendError {
        BackendError::Failed(format!(
            "a batch of {} rows and {} tokens is not what the worker's shared memory was made for ({} rows, \
             {} tokens)",
            batch.rows(),
            batch.tokens(),
            self.shape.rows_max,
            self.shape.tokens_max
        ))
    }
}

/// What is wrong with a name that a worker tells. It is told over D-Bus, where U+0000 would end the connection, and
/// stands on lines of the log and of what the service manager is told, which would be two.
fn check_name(name: &str) -> Result<(), String> {
    let bytes = name.len();
    if bytes > NAME_BYTES_MAX {
        return Err(format!("a name of {bytes} bytes, and none has more than {NAME_BYTES_MAX}"));
    }
    match name.contains(char::is_control) {
        true => Err(format!("the name {name:?}, and none has control characters")),
        false => Ok(()),
    }
}

/// What a worker says in words, which may quote anything, as it is told on.
fn one_line(words: &str) -> String {
    let plain = |char: char| if char.is_control() { ' ' } else { char };
    words.chars().take(TEXT_CHARS_MAX).map(plain).collect()
}

/// What an answer means that is not the one that was hoped for.
fn unexpected(answer: Answer, asked: u64) -> BackendError {
    match answer {
        Answer::Failed { number, failure, message } if number == asked => {
            failure.error(one_line(&message))
        }
        _ => BackendError::Lost(format!("it did not answer to batch {asked}")),
    }
}
