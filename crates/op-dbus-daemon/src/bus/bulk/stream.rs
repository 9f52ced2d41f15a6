//! Texts of a file descriptor on their way through the engine: a few batches at a time, so that
//! neither texts nor tokens pile up, whatever the length of the source.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use op_dbus_api::{Error, ErrorName, Info, TRUNCATED_LISTED_MAX};
use op_dbus_engine::{Error as EngineError, Excess, Inputs, Limits, Priority, Reply};
use tokio::time::{Instant as Clock, sleep_until};

use super::budget::Grant;
use super::result::ResultFile;
use super::source::Source;
use super::{Bulk, Framing, Records};
use crate::bus::caller::Caller;
use crate::bus::options::Wanted;
use crate::bus::reply::{Embedded, wire};
use crate::service::{Error as ServiceError, Options, Request, Served, Service, until};

/// Batches in the engine at once: one is computed, one waits, and two are on their way.
const BATCHES_MAX: usize = 4;
/// A batch ends at the first of these.
const BATCH_TEXTS: usize = 1024;
const BATCH_BYTES: usize = 256 << 10;

/// How far a stream is. Relaxed: it orders nothing else.
#[derive(Debug, Default)]
pub struct Progress {
    /// Vectors that are done.
    pub rows: AtomicU64,
    /// Bytes of the source that were read.
    pub bytes_read: AtomicU64,
}

/// The result of a stream, and what it takes of its user's bytes until somebody else has it.
pub struct Made {
    /// What the caller gets.
    pub bulk: Bulk,
    _grant: Grant,
}

/// One `EmbedFromFd` call.
pub struct Stream<'a> {
    caller: &'a Caller,
    service: &'a Service,
    served: Arc<Served>,
    wanted: Wanted,
    grant: Grant,
    result: ResultFile,
    sum: Sum,
    progress: Arc<Progress>,
}

/// What all batches are together.
#[derive(Debug)]
struct Sum {
    started: Instant,
    rows: u64,
    reply: Reply,
    truncated: u64,
}

impl<'a> Stream<'a> {
    /// A stream that has embedded nothing yet, but whose options are found to be possible.
    ///
    /// # Errors
    /// Why no model serves; what is wrong with the options; `NoSpace`, `TooLarge`, `QuotaExceeded`.
    pub async fn new(
        caller: &'a Caller,
        service: &'a Service,
        mut grant: Grant,
        mut wanted: Wanted,
        progress: Arc<Progress>,
    ) -> Result<Self, Error> {
        let Options { level, deadline, .. } = wanted.options;
        let serving = async { Ok(service.serving(level, deadline).await?) };
        let served = while_wanted(caller, None, serving).await?;
        wanted.options.priority.get_or_insert(Priority::Bulk);
        let (uid, cancel) = (caller.uid, caller.cancel.clone());
        let (inputs, options) = (Inputs::Texts(Vec::new()), wanted.options.clone());
        let nothing = Request { uid, cancel, inputs, options, wait: true, sink: None };
        let reply = served.embed(nothing).await?;
        let Wanted { encoding, format, .. } = wanted;
        let result = ResultFile::new(encoding, reply.dimensions, format)?;
        grant.more(result.bytes(0))?;
        let sum = Sum { started: Instant::now(), rows: 0, reply, truncated: 0 };
        Ok(Self { caller, service, served, wanted, grant, result, sum, progress })
    }

    /// Embeds everything that comes, until the end of `source`, the deadline or the caller's
    /// departure.
    ///
    /// # Errors
    /// Those of the source, its texts, the engine and the result.
    pub async fn run(mut self, source: Source, silence_max: Duration) -> Result<Made, Error> {
        let (caller, deadline) = (self.caller, self.wanted.options.deadline);
        while_wanted(caller, deadline, self.embed_all(source, silence_max)).await?;
        self.finish()
    }

    async fn embed_all(&mut self, mut source: Source, silence_max: Duration) -> Result<(), Error> {
        let text_bytes_max = Limits::default().text_bytes_max;
        let mut records = Some(Records::new(self.wanted.framing, text_bytes_max));
        let mut waiting = Waiting::default();
        // In order, as what was cut is listed.
        let mut batches = FuturesOrdered::new();
        let mut silence = pin!(sleep_until(Clock::now() + silence_max));
        let mut next = 0;
        loop {
            // The one before ends, if this was all that it had to do.
            self.served = self.service.instead_of(&self.served);
            let fitting = |texts: &VecDeque<String>| {
                let texts = texts.iter().take(BATCH_TEXTS);
                self.served.fitting(texts, &self.wanted.options, BATCHES_MAX)
            };
            // An idle engine gets what there is, a busy one full batches.
            while batches.len() < BATCHES_MAX
                && let Some(texts) = waiting.batch(batches.is_empty() || records.is_none(), fitting)
            {
                let rows = texts.len() as u64;
                self.grant.more(rows.saturating_mul(self.result.row_bytes()))?;
                batches.push_back(self.batch(next, texts));
                next += rows;
            }
            let hungry = records.is_some() && !waiting.is_enough();
            tokio::select! {
                biased;
                Some(done) = batches.next() => {
                    let (first, reply, served) = done?;
                    self.sum.add(first, reply);
                    self.served = served;
                    self.progress.rows.store(self.sum.rows, Ordering::Relaxed);
                    self.result.check()?;
                    silence.as_mut().reset(Clock::now() + silence_max);
                }
                piece = source.next(), if hungry => {
                    match (piece?, records.take()) {
                        (Some(piece), Some(mut framed)) => {
                            let bytes = piece.len() as u64;
                            self.progress.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                            framed.push(&piece, |text| waiting.push(text))?;
                            records = Some(framed);
                        }
                        (_, framed) => {
                            let last = framed.map(Records::finish).transpose()?.flatten();
                            last.into_iter().for_each(|text| waiting.push(text));
                        }
                    }
                    silence.as_mut().reset(Clock::now() + silence_max);
                }
                () = &mut silence, if hungry => return Err(silent(silence_max)),
                else => return Ok(()),
            }
        }
    }

    /// Embeds some texts, of which the first is row number `first`.
    fn batch(
        &self,
        first: u64,
        texts: Vec<String>,
    ) -> impl Future<Output = Result<(u64, Reply, Arc<Served>), Error>> + use<'a> {
        let (service, served) = (self.service, self.served.clone());
        let (uid, cancel) = (self.caller.uid, self.caller.cancel.clone());
        let (inputs, options) = (Inputs::Texts(texts), self.wanted.options.clone());
        let (framing, sink) = (self.wanted.framing, Some(self.result.sink(first)));
        let request = Request { uid, cancel, inputs, options, wait: true, sink };
        async move {
            let embedded = service.embed(served, request).await;
            let (reply, served) = embedded.map_err(|error| placed(first, framing, error))?;
            Ok((first, reply, served))
        }
    }

    fn finish(self) -> Result<Made, Error> {
        let Self { served, result, sum, grant, .. } = self;
        let Sum { rows, reply, truncated, .. } = sum;
        let dimensions = wire(reply.dimensions);
        let vectors = result.seal(rows)?;
        let info = Embedded { reply, served }.info();
        let told = Info { truncated_count: Some(truncated), ..info };
        let rows = wire(usize::try_from(rows).unwrap_or(usize::MAX));
        Ok(Made { bulk: (vectors, rows, dimensions, told), _grant: grant })
    }
}

impl Sum {
    /// Adds a batch, of which the first is row number `first`.
    fn add(&mut self, first: u64, reply: Reply) {
        let sum = &mut self.reply;
        let since = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        if self.rows == 0 {
            // Until now it said what would compute, and the call may have waited for its source.
            let queue_us = since.saturating_sub(reply.compute_us);
            *sum = Reply { dimensions: reply.dimensions, queue_us, ..Reply::default() };
        }
        sum.also_computed_by(&reply);
        self.rows += reply.rows as u64;
        sum.tokens += reply.tokens;
        sum.cached += reply.cached;
        sum.compute_us = since.saturating_sub(sum.queue_us);
        self.truncated += reply.truncated.len() as u64;
        let room = TRUNCATED_LISTED_MAX.saturating_sub(sum.truncated.len());
        let indices = reply.truncated.iter().map(|index| u64::from(*index) + first);
        sum.truncated.extend(indices.take(room).filter_map(|index| u32::try_from(index).ok()));
    }
}

/// Texts that are in no batch yet: those of one piece of the source, and what was left before.
#[derive(Debug, Default)]
struct Waiting {
    texts: VecDeque<String>,
    bytes: usize,
}

impl Waiting {
    fn push(&mut self, text: String) {
        self.bytes += text.len();
        self.texts.push_back(text);
    }

    fn is_enough(&self) -> bool {
        self.texts.len() >= BATCH_TEXTS || self.bytes >= BATCH_BYTES
    }

    /// A full batch, or one of what there is if `any` will do; of the texts that are `fitting` together.
    fn batch(
        &mut self,
        any: bool,
        fitting: impl FnOnce(&VecDeque<String>) -> usize,
    ) -> Option<Vec<String>> {
        if self.texts.is_empty() || !(any || self.is_enough()) {
            return None;
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let texts_max = fitting(&self.texts).min(BATCH_TEXTS);
        while batch.len() < texts_max
            && bytes < BATCH_BYTES
            && let Some(text) = self.texts.pop_front()
        {
            bytes += text.len();
            batch.push(text);
        }
        self.bytes -= bytes;
        Some(batch)
    }
}

/// An error of the engine counts texts from the start of their batch, and whoever has lines looks for one.
fn placed(first: u64, framing: Framing, mut error: ServiceError) -> Error {
    let first = usize::try_from(first).unwrap_or(usize::MAX);
    let index = match &mut error {
        ServiceError::Engine(
            EngineError::TooLong { index, .. }
            | EngineError::Untokenizable { index, .. }
            | EngineError::TooLarge { excess: Excess::TextBytes { index }, .. },
        ) => {
            *index = index.saturating_add(first);
            *index
        }
        // A text that never fits is a batch by itself, and the error names none.
        ServiceError::Engine(EngineError::TooLarge {
            excess: Excess::QueueTokens | Excess::QuotaTokens,
            ..
        }) => {
            if framing == Framing::Nul {
                let error = Error::from(error);
                let message = format!("text {first} is too large by itself: {}", error.message());
                return Error::new(error.name(), message);
            }
            first
        }
        _ => return error.into(),
    };
    let error = Error::from(error);
    match framing {
        Framing::Nul => error,
        Framing::Lines | Framing::JsonLines => {
            let line = index.saturating_add(1);
            Error::new(error.name(), format!("line {line} of the source: {}", error.message()))
        }
    }
}

/// What `work` gives, unless its caller leaves or its deadline comes before.
pub async fn while_wanted<T>(
    caller: &Caller,
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    until(&caller.cancel, deadline, work).await.map_err(ServiceError::Engine)?
}

pub(super) fn silent(silence_max: Duration) -> Error {
    let message = format!(
        "nothing came from the source for {} s (source_silence_s); write faster, or send what there is \
         in calls of its own",
        silence_max.as_secs()
    );
    Error::new(ErrorName::DeadlineExceeded, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_bounded_and_lose_nothing() {
        let (mut waiting, all) = (Waiting::default(), VecDeque::len);
        (0..2500).for_each(|n| waiting.push(n.to_string()));
        let mut sizes: Vec<_> =
            std::iter::from_fn(|| waiting.batch(false, all)).map(|batch| batch.len()).collect();
        sizes.extend(waiting.batch(true, |_| 400).map(|batch| batch.len()));
        sizes.extend(waiting.batch(true, all).map(|batch| batch.len()));
        assert_eq!(sizes, [1024, 1024, 400, 52]);
        assert_eq!((waiting.bytes, waiting.batch(true, all)), (0, None));
        (0..3).for_each(|_| waiting.push("x".repeat(BATCH_BYTES - 1)));
        assert_eq!(waiting.batch(false, all).map(|batch| batch.len()), Some(2));
    }

    #[test]
    fn a_text_has_its_place_in_the_source() {
        let too_long = EngineError::TooLong { index: 904, tokens: 300, limit: 256 };
        let excess = Excess::TextBytes { index: 904 };
        let too_large = EngineError::TooLarge { excess, found: 1_048_579, limit: 1_048_576 };
        let unknown = EngineError::Untokenizable { index: 904, reason: "no token".to_owned() };
        for error in [too_long, too_large, unknown] {
            let error = || ServiceError::Engine(error.clone());
            let nul = placed(4096, Framing::Nul, error());
            assert!(nul.message().contains("text 5000 "), "{nul}");
            let line = placed(4096, Framing::Lines, error());
            assert!(line.message().starts_with("line 5001 of the source: "), "{line}");
        }
        let excess = Excess::QuotaTokens;
        let error = || {
            let too_large = EngineError::TooLarge { excess, found: 9, limit: 5 };
            ServiceError::Engine(too_large)
        };
        let nul = placed(5000, Framing::Nul, error());
        assert!(nul.message().starts_with("text 5000 is too large by itself: "), "{nul}");
        let line = placed(5000, Framing::Lines, error());
        assert!(line.message().starts_with("line 5001 of the source: "), "{line}");
    }

    #[test]
    fn who_waits_for_the_source_does_not_compute() {
        let started = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        let mut sum = Sum { started, rows: 0, reply: Reply::default(), truncated: 0 };
        sum.add(0, Reply { rows: 1, queue_us: 50, compute_us: 700, ..Reply::default() });
        assert_eq!(sum.reply.compute_us, 700);
        assert!(sum.reply.queue_us >= 2_999_000, "{}", sum.reply.queue_us);
    }

    #[test]
    fn a_reply_names_all_that_computed() {
        let mut sum =
            Sum { started: Instant::now(), rows: 0, reply: Reply::default(), truncated: 0 };
        for (provider, device, precision) in
            [("cuda", "cuda:0", "f16"), ("cpu", "cpu:0", "f32"), ("cuda", "cuda:1", "f16")]
        {
            let [provider, device, precision] = [provider, device, precision].map(str::to_owned);
            let by = Reply {
                rows: 1,
                provider,
                device,
                precision,
                cached: 1,
                tokens: 3,
                ..Reply::default()
            };
            sum.add(sum.rows, by);
        }
        let Reply { provider, device, precision, cached, tokens, .. } = sum.reply;
        assert_eq!((&provider[..], &precision[..]), ("cuda,cpu", "f16,f32"));
        assert_eq!(device, "cuda:0,cpu:0,cuda:1");
        assert_eq!((cached, tokens), (3, 9));
    }

    #[test]
    fn what_was_cut_is_counted_and_listed_up_to_a_bound() {
        let mut sum =
            Sum { started: Instant::now(), rows: 0, reply: Reply::default(), truncated: 0 };
        for first in (0..100_000).step_by(1000) {
            let cut = Reply { rows: 1000, truncated: (0..1000).collect(), ..Reply::default() };
            sum.add(first, cut);
        }
        assert_eq!((sum.rows, sum.truncated), (100_000, 100_000));
        assert_eq!(sum.reply.truncated.len(), TRUNCATED_LISTED_MAX);
        assert_eq!(sum.reply.truncated[1500], 1500);
    }
}
