//! The engine as its users see it: calls in, replies out, and the life of it all.

mod admit;
mod canary;
mod costs;
mod end;
mod losses;
mod tokens;

use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::admission::{Admission, Claim, Permit, cost, tokens_of_memory};
use crate::backend::BackendError;
use crate::cache::{Cache, Kept};
use crate::call::{Call, Inputs, Reply, Truncate};
use crate::config::{EngineConfig, Limits, ModelShape, Pool};
use crate::dispatch::{BACKOFF, Shared};
use crate::error::{Error, Excess};
use crate::job::{Job, Lookup, Terms};
use crate::output::Output;
use crate::prepare::{Chunk, Input, Preparer, chunks, is_small, weighed};
use crate::reference::Reference;
use crate::registry::Registry;
use crate::scheduler::Scheduler;
use crate::start::{CANARY, probe, spawn, start_workers};
use crate::stats::Snapshot;
use crate::status::WorkerStatus;
use crate::tokenizer::Tokenizer;
use crate::tokenizer_threads::TokenizerThreads;

/// The engine. Cheap to clone; the workers stop when the last clone is gone.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limits: Limits,
    model: ModelShape,
    reference: Option<Reference>,
    /// Vectors that come again, and the number under which those of this engine are there.
    cache: Arc<Cache>,
    number: u64,
    admission: Arc<Admission>,
    preparer: Preparer,
    tokenizer_threads: TokenizerThreads,
    /// Ends the calls that outlast a drain.
    gone: CancellationToken,
}

impl Engine {
    /// Loads all workers of the pools and blocks until each has embedded a short text, or failed to. The first
    /// pool is the one that was asked for; each batch goes to the one that will have it done first. One of
    /// several workers of a pool that failed is tried again while the others compute.
    ///
    /// # Errors
    /// That of a pool all of whose workers could not be loaded or failed their first text, or one of whose is not
    /// trusted; the others are stopped.
    pub fn start(
        tokenizer: Tokenizer,
        model: ModelShape,
        pools: Vec<Pool>,
        config: EngineConfig,
    ) -> Result<Self, BackendError> {
        let EngineConfig { limits, tokenizer_threads, check_interval, cache, stats, ledger } =
            config;
        let registry = Registry::new(&pools, &model);
        let scheduler = Arc::new(Scheduler::new(&limits, check_interval, registry, stats));
        let reference = pools.first().and_then(|pool| pool.reference.clone());
        let probe = probe(&tokenizer, CANARY)?;
        let number = cache.enter();
        let shared = Shared {
            scheduler: Arc::clone(&scheduler),
            cache: Arc::clone(&cache),
            number,
            pools,
            model: model.clone(),
            probe,
            backoff: BACKOFF,
        };
        start_workers(&Arc::new(shared))?;
        let preparer = Preparer { tokenizer, scheduler };
        let threads = tokenizer_threads.max(1);
        let (tokenizer_threads, receiver) = TokenizerThreads::new(threads);
        let engine = Self(Arc::new(Inner {
            admission: Admission::new(&limits, ledger),
            limits,
            model,
            reference,
            number,
            cache,
            preparer: preparer.clone(),
            tokenizer_threads,
            gone: CancellationToken::default(),
        }));
        let receiver = Arc::new(Mutex::new(receiver));
        for n in 0..threads {
            let (preparer, receiver) = (preparer.clone(), Arc::clone(&receiver));
            spawn(format!("tokenizer-{n}"), move || preparer.serve(&receiver))?;
        }
        Ok(engine)
    }

    /// Embeds the texts of a call. Dropping the future cancels the call. A deadline needs tokio's
    /// timer, everything else runs on any executor.
    ///
    /// # Errors
    /// Any [`Error`]; a call is answered whole or not at all.
    pub async fn embed(&self, call: Call) -> Result<Reply, Error> {
        let result = self.try_embed(call).await;
        match &result {
            Ok(reply) => self.scheduler().stats.answered(reply),
            Err(error) => self.scheduler().stats.failed(error),
        }
        result
    }

    async fn try_embed(&self, mut call: Call) -> Result<Reply, Error> {
        let inner = &*self.0;
        let bytes_max = inner.limits.call_bytes_max;
        // The prefix may be long, and its copies must not take memory before they are found too many.
        match &call.inputs {
            Inputs::Texts(texts) => inner.check_size(texts, call.prefix.len(), bytes_max)?,
            Inputs::Tokens(lists) => inner.check_size(lists, 0, bytes_max)?,
        }
        call.inputs.put_before(&call.prefix);
        let output = inner.output(call.dimensions, call.normalize)?;
        let (lookup, claim) = match &call.inputs {
            Inputs::Texts(texts) => inner.look_and_count(&call, texts, output),
            Inputs::Tokens(lists) => inner.look_and_count(&call, lists, output),
        };
        if call.inputs.is_empty() {
            return Ok(self.empty_reply(output.dimensions));
        }
        let permit = if call.wait {
            self.admit_when_free(claim, call.deadline, &call.cancel).await?
        } else {
            self.admit(claim, call.deadline, lookup.as_ref())?
        };
        self.run(call, output, permit, lookup).await
    }

    async fn run(
        &self,
        call: Call,
        output: Output,
        permit: Permit,
        lookup: Option<Lookup>,
    ) -> Result<Reply, Error> {
        let inner = &*self.0;
        let clock = self.scheduler().clock;
        let terms = Terms {
            uid: call.uid,
            class: call.class(&inner.limits),
            truncate: call.truncate,
            output,
            arrived_us: clock.now_us(),
            deadline_us: call.deadline.map(|deadline| clock.at_us(deadline)),
        };
        let (job, result) = Job::new(terms, call.inputs.len(), permit, call.sink, lookup);
        let mut in_flight = InFlight { job: Arc::clone(&job), engine: self, answered: false };
        let answer = async {
            match call.inputs {
                Inputs::Texts(texts) => inner.prepare(&job, texts).await?,
                Inputs::Tokens(lists) => inner.prepare(&job, lists).await?,
            }
            result.await.unwrap_or(Err(Error::ShuttingDown))
        };
        let result = tokio::select! {
            biased;
            () = call.cancel.cancelled() => Err(Error::Cancelled),
            result = answer => result,
            () = inner.gone.cancelled() => Err(Error::ShuttingDown),
            () = until(call.deadline) => Err(Error::DeadlineExceeded),
        };
        in_flight.answered = result.is_ok();
        result
    }

    /// How many of `texts`, from the first on, one of `calls` that are in flight together may have, for the
    /// queue and the user's quota to hold them all, with `prefix` bytes before each text. The first is one of
    /// them in any case: the call is told where that never fits.
    pub fn fitting<'a>(
        &self,
        texts: impl IntoIterator<Item = &'a String>,
        (prefix, truncate): (usize, Truncate),
        calls: usize,
    ) -> usize {
        let Inner { limits, preparer: Preparer { tokenizer, .. }, .. } = &*self.0;
        let (specials, input_max) = (tokenizer.specials(), tokenizer.max_input_tokens());
        let mut left = limits.queue_tokens_max.min(limits.quota_tokens) / calls.max(1);
        let fits = |text: &&String| {
            let tokens = cost(text.len().saturating_add(prefix), truncate, specials, input_max);
            left.checked_sub(tokens).map(|rest| left = rest).is_some()
        };
        texts.into_iter().take_while(fits).count().max(1)
    }

    /// For how long the worker that has computed longest has done so; none where nobody computes.
    pub fn busy_for(&self) -> Option<Duration> {
        let scheduler = self.scheduler();
        let busy_us = scheduler.registry(|registry| registry.busy_us(scheduler.clock.now_us()));
        busy_us.map(Duration::from_micros)
    }

    /// What each worker is and does, in the order of their numbers.
    pub fn descriptions(&self) -> Vec<WorkerStatus> {
        self.scheduler().registry(|registry| registry.statuses())
    }

    /// The counters now.
    pub fn stats(&self) -> Snapshot {
        let (queue_texts, queue_tokens) = self.scheduler().waiting();
        let (in_flight_calls, in_flight_tokens) = self.0.admission.in_flight();
        Snapshot {
            queue_texts,
            queue_tokens,
            in_flight_calls,
            in_flight_tokens,
            memory: self.scheduler().registry(|registry| registry.memory()),
            ..self.scheduler().stats.snapshot()
        }
    }

    fn empty_reply(&self, dimensions: usize) -> Reply {
        let stand_in = self.stand_in().map(|(stand_in, _)| stand_in);
        let first = || self.descriptions().into_iter().next().map(|worker| worker.description);
        let worker = stand_in.or_else(first);
        let (provider, device, precision) =
            worker.map(|w| (w.provider, w.device, w.precision)).unwrap_or_default();
        Reply { dimensions, provider, device, precision, ..Reply::default() }
    }

    /// Forgets the vectors that were kept.
    pub(crate) fn forget(&self) {
        let Kept { vectors, bytes } = self.0.cache.forget(self.0.number);
        if vectors > 0 {
            tracing::info!("{vectors} vectors that were kept are forgotten: {bytes} bytes");
        }
    }

    pub(crate) fn admission(&self) -> &Admission {
        &self.0.admission
    }

    pub(crate) fn scheduler(&self) -> &Scheduler {
        &self.0.preparer.scheduler
    }
}

impl Inner {
    /// What is kept of a call's vectors, and what the call takes at most.
    fn look_and_count<T: Input>(
        &self,
        call: &Call,
        inputs: &[T],
        output: Output,
    ) -> (Option<Lookup>, Claim) {
        let lookup = self.cache.is_on().then(|| {
            let keys = self.cache.keys(self.number, inputs, call.truncate, output);
            let found = self.cache.find(call.uid, &keys);
            Lookup { cache: Arc::clone(&self.cache), keys, found }
        });
        let is_kept = |index: usize| lookup.as_ref().is_some_and(|l| l.found[index].is_some());
        let waits = !lookup.as_ref().is_some_and(Lookup::is_whole);
        let none = Claim::new(call.uid, 0, call.class(&self.limits));
        let mut claim = Claim { is_exact: T::IS_EXACT, ..none };
        for (index, input) in inputs.iter().enumerate() {
            let (room, work) = match is_kept(index) {
                // Its vector takes room in the reply, and its text while others are computed.
                true => (tokens_of_memory(input.bytes() * usize::from(waits)).max(1), 0),
                false => {
                    let tokenizer = &self.preparer.tokenizer;
                    (input.cost(call.truncate, tokenizer), input.work(call.truncate, tokenizer))
                }
            };
            claim.tokens = claim.tokens.saturating_add(room);
            claim.work = claim.work.saturating_add(work);
        }
        (lookup, claim)
    }

    /// Refuses inputs that are too many, or too large with `prefix` bytes before each: beyond `bytes_max` together.
    fn check_size<T: Input>(
        &self,
        inputs: &[T],
        prefix: usize,
        bytes_max: usize,
    ) -> Result<(), Error> {
        let Limits { texts_per_call_max, text_bytes_max, .. } = self.limits;
        let check = |excess, found, limit| {
            if found <= limit { Ok(()) } else { Err(T::too_large(excess, found, limit)) }
        };
        check(Excess::Texts, inputs.len(), texts_per_call_max.min(u32::MAX as usize))?;
        let sizes = inputs.iter().map(|input| input.bytes().saturating_add(prefix));
        for (index, size) in sizes.clone().enumerate() {
            check(Excess::TextBytes { index }, size, text_bytes_max)?;
        }
        check(Excess::CallBytes, sizes.fold(0, usize::saturating_add), bytes_max)
    }

    fn output(&self, cut: Option<usize>, normalize: Option<bool>) -> Result<Output, Error> {
        let ModelShape { dimensions: full, normalized, ref matryoshka, .. } = self.model;
        let dimensions = cut.unwrap_or(full);
        if dimensions != full && !(dimensions < full && matryoshka.contains(&dimensions)) {
            let mut sizes: Vec<_> = matryoshka.iter().filter(|size| **size < full).collect();
            sizes.push(&full);
            sizes.sort_unstable();
            let sizes = sizes.into_iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            return Err(Error::InvalidArgument(format!(
                "dimensions is {dimensions} and the model was trained for {sizes}; use one of \
                 these or leave the option out"
            )));
        }
        if normalized && normalize == Some(false) {
            return Err(Error::InvalidArgument(
                "normalize is false and the model itself normalises its vectors; leave the option \
                 out or use another model"
                    .into(),
            ));
        }
        let cut = dimensions < full;
        let normalise = normalize.unwrap_or(normalized || cut);
        let normalise_all = normalise && !normalized && normalize == Some(true);
        Ok(Output { full, dimensions, normalise, normalise_all })
    }

    async fn prepare<T: Input>(&self, job: &Arc<Job>, inputs: Vec<T>) -> Result<(), Error> {
        let tokenizer = &self.preparer.tokenizer;
        // Nor does it take long to copy what was kept.
        if is_small(&inputs, tokenizer) || job.is_kept() {
            self.preparer.embed(&Chunk { job: Arc::clone(job), first: 0, inputs });
            return Ok(());
        }
        let tasks = self.tokenizer_threads.of_user(job.terms.uid);
        for (first, inputs) in chunks(inputs) {
            let to = (tokenizer, &tasks);
            let (inputs, is_heavy) =
                weighed(to, inputs, T::is_measured, T::is_heavy, Arc::clone(job)).await?;
            let chunk = Chunk { job: Arc::clone(job), first, inputs };
            let task = move |preparer: &Preparer| preparer.embed(&chunk);
            tasks.send(Box::new(task), is_heavy).await?;
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.preparer.scheduler.stop();
        self.cache.forget(self.number);
    }
}

/// A call that its caller waits for; when the caller stops waiting its rows leave the queue.
struct InFlight<'a> {
    job: Arc<Job>,
    engine: &'a Engine,
    answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.job.abandon();
            self.engine.scheduler().cancelled(&self.job);
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => pending().await,
    }
}
