//! Bulk: vectors into a sealed memfd, and texts from a file descriptor, streamed.

mod budget;
mod framing;
mod memory;
mod result;
mod source;
mod stream;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use op_dbus_api::{Error, ErrorName, Info};
use op_dbus_engine::Error as EngineError;
use tokio::time::timeout;

use super::caller::Caller;
use super::calls::Calls;
use super::options::Wanted;
use super::reply::{Embedded, wire};
use super::unread::Reply;
use crate::service::{Error as ServiceError, Request, until};
use result::ResultFile;

pub use budget::{Budget, Place, Work};
pub use framing::{Framing, Records};
pub use memory::Memory;
pub use result::Format;
pub use source::Source;
use stream::silent;

pub use stream::{Made, Progress, Stream, while_wanted};

/// What a result counts as among the replies of a direct connection until it is sent: some hundred of a user are
/// under way at once.
const ON_LINE_BYTES: usize = 256 << 10;

/// Sealed memfd, rows, dimensions, information.
pub type Bulk = (Memory, u32, u32, Info);

/// As [`while_wanted`] of work that embeds nothing: whose deadline comes before is told `what` it has passed before.
///
/// # Errors
/// Those of the work; `Cancelled`, `DeadlineExceeded`.
pub async fn in_time<T>(
    caller: &Caller,
    deadline: Option<Instant>,
    what: &str,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match until(&caller.cancel, deadline, work).await {
        Err(EngineError::DeadlineExceeded) => {
            let message = format!("the deadline passed before {what}");
            Err(Error::new(ErrorName::DeadlineExceeded, message))
        }
        end => end.map_err(ServiceError::Engine)?,
    }
}

impl Calls {
    /// Embeds the texts of a message into a sealed memfd.
    ///
    /// # Errors
    /// `QuotaExceeded` and `TooLarge` before anything is computed; `NoSpace`; `Overloaded` of a caller that does not
    /// read; else what the service answers.
    pub async fn embed_to_fd(
        &self,
        caller: &Caller,
        texts: Vec<String>,
        wanted: Wanted,
    ) -> Result<Bulk, Error> {
        let Wanted { options, encoding, format, .. } = wanted;
        let size = (texts.len(), texts.iter().map(String::len).sum());
        let served = self.serving(caller, size, options.level, options.deadline).await?;
        let (rows, dimensions) = (texts.len(), served.length(&options));
        // Sealed it waits there for those before it to be read, when its place is given back.
        self.room_on_line(caller, ON_LINE_BYTES, options.deadline).await?;
        let _place = self.budget.place(caller.uid, Work::Result)?;
        let mut grant = self.budget.grant(caller.uid);
        let result = ResultFile::new(encoding, dimensions, format)?;
        grant.more(result.bytes(rows as u64))?;
        let (cancel, sink, deadline) =
            (caller.cancel.clone(), Some(result.sink(0)), options.deadline);
        let inputs = texts.into();
        let request = Request { uid: caller.uid, cancel, inputs, options, wait: false, sink };
        let (reply, served) = self.service.embed(served, request).await?;
        let _replying = self.service.replying();
        let vectors = result.seal(rows as u64)?;
        let info = Embedded { reply, served }.info();
        self.room(caller, Reply::Descriptor, deadline).await?;
        Ok((vectors, wire(rows), wire(dimensions), info))
    }

    /// Embeds the texts that come from `fd` into a sealed memfd. Nothing is held whole but the
    /// vectors.
    ///
    /// # Errors
    /// `InvalidArgument` for a descriptor that is neither sealed memfd, file nor pipe, and for what
    /// is no text, with its line; `TooLarge` for a text, an input or a result beyond its bound;
    /// `DeadlineExceeded` also for a source that is silent for too long; else as
    /// [`Calls::embed_to_fd`].
    pub async fn embed_from_fd(
        &self,
        caller: &Caller,
        fd: OwnedFd,
        wanted: Wanted,
    ) -> Result<Bulk, Error> {
        let source = self.source(caller, fd, &wanted).await?;
        // The result is held until there is room for it.
        let _place = source.place();
        let silence_max = self.silence_max();
        let (grant, deadline) = (self.budget.grant(caller.uid), wanted.options.deadline);
        let stream = Stream::new(caller, &self.service, grant, wanted, Arc::default()).await?;
        let made = stream.run(source, silence_max).await?;
        self.room(caller, Reply::Descriptor, deadline).await?;
        Ok(made.bulk)
    }

    /// Opens the source of a stream of `caller`, for as long as it may be silent.
    ///
    /// # Errors
    /// `QuotaExceeded`, `Overloaded`; those of [`Source::open`]; `DeadlineExceeded`, `Cancelled`.
    pub async fn source(
        &self,
        caller: &Caller,
        fd: OwnedFd,
        wanted: &Wanted,
    ) -> Result<Source, Error> {
        let place = self.budget.place(caller.uid, Work::Stream)?;
        let silence_max = self.silence_max();
        let opened = async {
            // On a direct connection it is what came, of which nothing is asked here.
            let fd = if caller.connection.is_bus() { self.descriptors.take(fd) } else { fd };
            let source = Source::open(fd, place, &self.descriptors);
            let opened = timeout(silence_max, source).await;
            opened.unwrap_or_else(|_| Err(silent(silence_max)))
        };
        let what =
            "it was known what the source is; allow more time, or send from another file system";
        in_time(caller, wanted.options.deadline, what, opened).await
    }

    /// How long a source whose call begins now may be silent while it is wanted.
    pub fn silence_max(&self) -> Duration {
        Duration::from_secs(self.service.now().settings().source_silence_s)
    }
}
