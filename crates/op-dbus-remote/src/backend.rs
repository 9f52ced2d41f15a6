//! The backend: which endpoint gets a batch, and what it has to show before.

mod load;

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, BackendError, Batch, Description, Tokenizer};

use crate::Options;
use crate::endpoint::{Clients, Endpoint, left};
use crate::failure::Failure;
use crate::http::Quote;
use crate::names::Names;
use crate::texts::{self, Sent};
use crate::trial::Trial;

/// The name of the provider.
const PROVIDER: &str = "remote";
/// Time that an endpoint has to prove itself after it has failed, while another one serves: a caller waits.
const PROOF_TIME: Duration = Duration::from_secs(1);
/// How long servers get no more texts at once than they took; then twice as many are tried.
const LIMIT_TIME: Duration = Duration::from_secs(60);

/// A fleet that computes batches.
#[derive(Debug)]
pub struct RemoteBackend {
    clients: Clients,
    options: Options,
    endpoints: Vec<Endpoint>,
    names: Names,
    /// What token ids become texts with, if those are sent.
    tokenizer: Option<Tokenizer>,
    trial: Trial,
    /// Texts that servers take at once, and since when that is known; nothing where they refuse none.
    limit: Option<(usize, Instant)>,
    description: Description,
}

impl RemoteBackend {
    /// The endpoints, the first choice first.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, home) = (self.endpoints.len(), self.options.home);
        (0..count).map(move |step| (home + step) % count)
    }

    /// The endpoint to ask now, one that has `failed` the batch more often after all others; none while all
    /// rest. A batch that has `waited` for one that had failed before waits for no other such, if one serves.
    fn pick(&self, now: Instant, failed: &[usize], waited: bool) -> Option<usize> {
        let circuit = |index: usize| &self.endpoints[index].circuit;
        let allowed = || self.order().filter(|index| circuit(*index).allows(now));
        let tries = |index: &usize| failed.iter().filter(|other| *other == index).count();
        let serves = |index: &usize| waited && tries(index) == 0 && circuit(*index).serves(now);
        allowed().find(serves).or_else(|| allowed().min_by_key(tries))
    }

    /// Until when an endpoint may take what it gets `now`: while another one can be asked, that has as long.
    fn share(
        &self,
        index: usize,
        (now, deadline): (Instant, Instant),
        failed: &[usize],
    ) -> Instant {
        let is_spare = |other: usize| {
            other != index && !failed.contains(&other) && self.endpoints[other].circuit.allows(now)
        };
        match self.order().any(is_spare) {
            true => now + deadline.saturating_duration_since(now) / 2,
            false => deadline,
        }
    }

    /// How long an endpoint may take to prove itself.
    fn proof_time(&self, index: usize, deadline: Instant) -> Duration {
        let now = Instant::now();
        let mut circuits = self.endpoints.iter().map(|endpoint| &endpoint.circuit);
        let is_spare = circuits.any(|circuit| circuit.serves(now));
        let time = self.options.request_time.min(left(deadline));
        match self.endpoints[index].circuit.has_failed() && is_spare {
            true => time.min(PROOF_TIME),
            false => time,
        }
    }

    /// Has an endpoint give its vectors of the trial, within `time` and before `deadline`: whoever has given
    /// the first of them is there, and has longer for long texts.
    fn show(
        &mut self,
        index: usize,
        time: Duration,
        deadline: Instant,
    ) -> Result<Vec<f32>, Failure> {
        let Self { clients, options, endpoints, trial, .. } = self;
        let (endpoint, dimensions) = (&mut endpoints[index], options.shape.dimensions);
        let mut until = deadline.min(Instant::now() + time);
        endpoint.learn(clients, options, until)?;
        let mut shown = Vec::new();
        for sent in trial.sent() {
            let begin = shown.len();
            shown.resize(begin + sent.batch.rows() * dimensions, f32::NAN);
            let mut ask = |sent: &Sent<'_>, out: &mut [f32]| -> Result<(), Failure> {
                let bounds = (left(until), Quote::Words);
                endpoint.compute((clients, options), sent, out, bounds)?;
                until = deadline.min(Instant::now() + options.request_time);
                Ok(())
            };
            let out = &mut shown[begin..];
            match ask(&sent, out) {
                // It may take one text at once.
                Err(why) if sent.batch.rows() > 1 && why.is_refusal() => {
                    let mut rows = out.chunks_exact_mut(dimensions).enumerate();
                    let alone = rows.try_for_each(|(row, out)| ask(&sent.part(row..row + 1), out));
                    alone.map_err(|_| why)?;
                }
                result => result?,
            }
        }
        trial.look(&shown, dimensions).map_err(Failure::Away)?;
        Ok(shown)
    }

    /// Has an endpoint show what it is: how it is fed, and that its vectors of the trial are those of the
    /// others.
    fn prove(&mut self, index: usize, time: Duration, deadline: Instant) -> Result<(), Failure> {
        let shown = self.show(index, time, deadline)?;
        let dimensions = self.options.shape.dimensions;
        match self.trial.is_new() {
            true => self.trial.know(&shown, dimensions),
            false => self.trial.compare(&shown, dimensions).map_err(Failure::Away)?,
        }
        self.endpoints[index].circuit.prove(Instant::now());
        Ok(())
    }

    /// One try with one endpoint, which proves itself first if it has to. What it makes of the batch is
    /// believed if it has proved itself at `since` or later, and else does so now.
    fn attempt(
        &mut self,
        index: usize,
        sent: &Sent<'_>,
        out: &mut [f32],
        (since, deadline): (Instant, Instant),
    ) -> Result<(), Failure> {
        if !self.endpoints[index].circuit.is_proved(Instant::now()) {
            self.prove(index, self.proof_time(index, deadline), deadline).map_err(away)?;
            let Endpoint { url, news, .. } = &mut self.endpoints[index];
            match news.is_back(Instant::now()) {
                true => tracing::info!(endpoint = url, "an endpoint has proved itself"),
                false => tracing::debug!(endpoint = url, "an endpoint has proved itself"),
            }
        }
        let Self { clients, options, endpoints, .. } = self;
        let bounds = (options.request_time.min(left(deadline)), Quote::Status);
        let result = endpoints[index].compute((clients, options), sent, out, bounds);
        let Err(failure) = result.map_err(Failure::unquoted) else { return Ok(()) };
        if failure.may_be_the_batch() && !endpoints[index].circuit.has_proved(since) {
            // A server that has just lost its model refuses everything: then it isn't this batch.
            self.prove(index, self.proof_time(index, deadline), deadline).map_err(away)?;
        }
        Err(failure)
    }

    /// An endpoint is not asked for a while, after a try that `took` so long, which the journal is told.
    fn rest(&mut self, index: usize, why: &Failure, took: Duration) {
        self.pause(index, why, took);
        self.tell_away(index, &why.to_string());
    }

    /// The same, told by whoever asked.
    fn pause(&mut self, index: usize, why: &Failure, took: Duration) {
        let (endpoint, now) = (&mut self.endpoints[index], Instant::now());
        match why {
            Failure::Busy(_, time) => endpoint.circuit.pause(now, *time),
            _ => {
                endpoint.circuit.fail(now, took);
                endpoint.forget();
            }
        }
    }

    /// Tells of an endpoint that is not asked for a while.
    fn tell_away(&mut self, index: usize, why: &str) {
        let Endpoint { url, news, .. } = &mut self.endpoints[index];
        match news.is_away(why, Instant::now()) {
            true => tracing::warn!(endpoint = url, %why, "an endpoint is not used for now"),
            false => tracing::debug!(endpoint = url, %why, "an endpoint is not used for now"),
        }
    }

    /// Tells of an endpoint that is right and did not compute a batch of so many `rows`.
    fn tell(&mut self, index: usize, why: &Failure, rows: usize) {
        let endpoint = &mut self.endpoints[index];
        if !endpoint.news.has_failed(Instant::now()) {
            return;
        }
        let cure = match rows {
            1 => "",
            _ => {
                "; if that comes again, lower rows_max in [providers.remote] to the texts that it takes \
                 at once"
            }
        };
        tracing::warn!(
            endpoint = endpoint.url,
            %why,
            rows,
            "an endpoint proves itself right and does not compute a batch{cure}"
        );
    }

    /// An endpoint has computed a batch that others `failed`, however often each.
    fn took(&mut self, index: usize, mut failed: Vec<usize>) {
        self.endpoints[index].circuit.succeed();
        failed.sort_unstable();
        failed.dedup();
        for other in failed {
            if other != index && self.endpoints[other].circuit.is_outdone() {
                let why = "it fails batches, one after the other, that another one computes";
                self.rest(other, &Failure::Away(why.to_owned()), Duration::ZERO);
            }
        }
        self.description.device = device(index);
    }

    /// Whether a batch is tried once more that these endpoints have `failed`, so often after they had begun to
    /// compute it. Who has computed nothing keeps no other one from being asked.
    fn goes_on(&self, failed: &[usize], computed: usize) -> bool {
        let (most, now) = (self.options.attempts_max, Instant::now());
        let is_new =
            |index: usize| !failed.contains(&index) && self.endpoints[index].circuit.allows(now);
        computed < most && (failed.len() < most || self.order().any(is_new))
    }

    /// Has some endpoint compute a part of a batch that came at `since`, until `deadline`; says whether that
    /// is a single text which another one refused.
    fn compute(
        &mut self,
        sent: &Sent<'_>,
        out: &mut [f32],
        (since, deadline): (Instant, Instant),
    ) -> Result<bool, Stopped> {
        let (mut last, mut failed) = ("all endpoints rest".to_owned(), Vec::new());
        let (mut waited, mut refusal, mut computed) = (false, None, 0);
        let is_single = sent.batch.rows() == 1;
        while Instant::now() < deadline {
            let began = Instant::now();
            let Some(index) = self.pick(began, &failed, waited) else {
                let wakes = self.endpoints.iter().filter_map(|one| one.circuit.wakes(deadline));
                let Some(until) = wakes.min() else {
                    last = format!("none can be asked again by then; {last}");
                    break;
                };
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                continue;
            };
            if refusal.is_some() && failed.contains(&index) {
                break;
            }
            let had_failed = self.endpoints[index].circuit.has_failed();
            let times = (since, self.share(index, (began, deadline), &failed));
            let Err(failure) = self.attempt(index, sent, out, times) else {
                self.took(index, failed);
                return Ok(refusal.is_some());
            };
            if failure.may_be_the_batch() {
                self.tell(index, &failure, sent.batch.rows());
            }
            match failure {
                Failure::TooLarge(why) => {
                    refusal.get_or_insert(BackendError::OutOfMemory(why));
                    failed.push(index);
                }
                Failure::Refused(why) => {
                    refusal.get_or_insert(BackendError::Failed(why));
                    failed.push(index);
                }
                failure @ (Failure::Failed(_) | Failure::Declined(_)) => {
                    failed.push(index);
                    computed += usize::from(matches!(failure, Failure::Failed(_)));
                    if refusal.is_none() && !self.goes_on(&failed, computed) {
                        let why = failure.to_string();
                        return Err(Stopped::ForGood(BackendError::Failed(why)));
                    }
                }
                failure => {
                    last = format!("{}: {failure}", self.endpoints[index].url);
                    self.rest(index, &failure, began.elapsed());
                    waited |= had_failed;
                    if let Some(path) = self.names.replaced() {
                        return Err(Stopped::ForGood(BackendError::Lost(format!(
                            "{path} is another file than when the worker was started, and only a new \
                             worker may read it; {last}"
                        ))));
                    }
                }
            }
            // Of one text another endpoint may think otherwise, and then it is not the text.
            if refusal.is_some() && !(is_single && self.goes_on(&failed, computed)) {
                break;
            }
        }
        Err(refusal.map_or(Stopped::TooLate(last), Stopped::TooMuch))
    }

    /// Texts that are sent at once `now`.
    fn rows_most(&mut self, now: Instant) -> usize {
        let Some((rows, since)) = &mut self.limit else { return usize::MAX };
        if now.saturating_duration_since(*since) >= LIMIT_TIME {
            (*rows, *since) = (rows.saturating_mul(2), now);
        }
        *rows
    }
}

/// Why a part of a batch has no vectors.
enum Stopped {
    /// An endpoint that is right refuses it: maybe it takes fewer texts.
    TooMuch(BackendError),
    /// Its time is over; with what was last.
    TooLate(String),
    ForGood(BackendError),
}

impl Backend for RemoteBackend {
    fn description(&self) -> &Description {
        &self.description
    }

    fn run(&mut self, batch: &Batch<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        batch.check()?;
        if batch.rows().checked_mul(self.description.dimensions) != Some(out.len()) {
            let message = format!("a batch of {} rows has room for {}", batch.rows(), out.len());
            return Err(BackendError::Failed(message));
        }
        let texts = self.tokenizer.as_ref().map(|tokenizer| texts::rebuilt(batch, tokenizer));
        let texts = texts.transpose()?;
        let sent = Sent { batch: *batch, texts: texts.as_deref() };
        let since = Instant::now();
        let times = (since, since + self.options.batch_time);
        let (rows, dimensions) = (batch.rows(), self.description.dimensions);
        let known = self.rows_most(since);
        let (mut most, mut done, mut differ) = (rows.min(known), 0, false);
        while done < rows {
            let end = rows.min(done + most);
            let out = &mut out[done * dimensions..end * dimensions];
            match self.compute(&sent.part(done..end), out, times) {
                Ok(differs) => {
                    (done, differ) = (end, differ || differs);
                    if differ {
                        // It was not how many there are.
                        most = known.min(most.saturating_mul(2));
                    }
                }
                Err(Stopped::TooMuch(_)) if end - done > 1 => most = (end - done).div_ceil(2),
                Err(Stopped::TooLate(last)) => {
                    let seconds = self.options.batch_time.as_secs();
                    let why = format!("no endpoint takes the batch within {seconds} s; {last}");
                    // Who took a part takes smaller batches, each in a time of its own.
                    return Err(match done {
                        0 => BackendError::Lost(why),
                        _ => BackendError::OutOfMemory(why),
                    });
                }
                Err(Stopped::TooMuch(error) | Stopped::ForGood(error)) => return Err(error),
            }
        }
        if most < rows.min(known) && !differ {
            tracing::warn!(
                rows = most,
                "servers get no more texts at once for now, as they refuse more; set rows_max in \
                 [providers.remote] to what they take"
            );
            self.limit = Some((most, Instant::now()));
        }
        Ok(())
    }
}

/// What an endpoint refuses of the trial says nothing about a caller's.
fn away(failure: Failure) -> Failure {
    match failure {
        own @ (Failure::Busy(..) | Failure::Absent(_)) => own,
        failure => Failure::Away(failure.to_string()),
    }
}

/// How an endpoint is called in replies: by its number in the settings, from 0.
fn device(index: usize) -> String {
    format!("{PROVIDER}:{index}")
}
