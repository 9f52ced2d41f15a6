//! The backend: which endpoint gets a batch, and what it has to show before.

use std::time::{Duration, Instant};

use op_dbus_engine::{Backend, BackendError, Batch, Description, LoadErrorKind, Tokenizer};

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
    description: Description,
}

impl RemoteBackend {
    /// Finds an endpoint that answers as it should, the first choice first. The model's `tokenizer` is
    /// asked for where the options say that texts are sent.
    ///
    /// # Errors
    /// [`BackendError::Load`] (`ProviderUnavailable`): there is none; with what each said. Or what
    /// `tokenizer` failed with.
    pub fn load(
        options: Options,
        tokenizer: impl FnOnce() -> Result<Tokenizer, BackendError>,
    ) -> Result<Self, BackendError> {
        let start = Instant::now();
        let clients = Clients::new(&options).map_err(unavailable)?;
        let tokenizer = options.texts.then(tokenizer).transpose()?;
        let trial = match &tokenizer {
            Some(tokenizer) => Trial::of_texts(tokenizer).map_err(unavailable)?,
            None => Trial::of_ids(),
        };
        let endpoint = |url: &String| Endpoint::new(url, options.protocol);
        let endpoints: Vec<Endpoint> = options.endpoints.iter().map(endpoint).collect();
        let names = Names::of(&options.endpoints);
        let description = Description {
            provider: PROVIDER.to_owned(),
            device: device(options.home),
            devices: endpoints.len(),
            precision: "f32".to_owned(),
            engine: options.protocol.name().to_owned(),
            isa: String::new(),
            dimensions: options.shape.dimensions,
            batch_tokens: 0,
            buckets: None,
            load_ms: 0,
            pid: std::process::id(),
            sandbox: String::new(),
        };
        let mut backend =
            Self { clients, options, endpoints, names, tokenizer, trial, description };
        let mut reasons = Vec::new();
        for index in backend.order() {
            let began = Instant::now();
            match backend.prove(index, backend.options.request_time) {
                Ok(()) => {
                    backend.description.device = device(index);
                    let load_ms = start.elapsed().as_millis();
                    backend.description.load_ms = u64::try_from(load_ms).unwrap_or(u64::MAX);
                    return Ok(backend);
                }
                Err(failure) => {
                    backend.rest(index, &failure, began.elapsed());
                    reasons
                        .push(format!("{} can't be used: {failure}", backend.endpoints[index].url));
                }
            }
        }
        Err(unavailable(reasons.join("; ")))
    }

    /// The endpoints, the first choice first.
    fn order(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, home) = (self.endpoints.len(), self.options.home);
        (0..count).map(move |step| (home + step) % count)
    }

    /// The endpoint to ask now, one that has `failed` the batch after all others; none while all rest.
    fn pick(&self, now: Instant, failed: &[usize]) -> Option<usize> {
        let allowed = |index: &usize| self.endpoints[*index].circuit.allows(now);
        let fresh = self.order().find(|index| allowed(index) && !failed.contains(index));
        fresh.or_else(|| self.order().find(allowed))
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

    /// Has an endpoint show what it is: how it is fed, and that its vectors of the trial batch are those
    /// of the others.
    fn prove(&mut self, index: usize, time: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + time;
        let Self { clients, options, endpoints, trial, .. } = self;
        let endpoint = &mut endpoints[index];
        endpoint.learn(clients, options, deadline)?;
        let (sent, dimensions) = (trial.sent(), options.shape.dimensions);
        let mut out = vec![f32::NAN; sent.batch.rows() * dimensions];
        endpoint.compute((clients, options), &sent, &mut out, (left(deadline), Quote::Words))?;
        trial.judge(&out, dimensions).map_err(Failure::Away)?;
        endpoint.circuit.prove(Instant::now());
        Ok(())
    }

    /// One try with one endpoint, which proves itself first if it has to.
    fn attempt(
        &mut self,
        index: usize,
        sent: &Sent<'_>,
        out: &mut [f32],
        deadline: Instant,
    ) -> Result<(), Failure> {
        if !self.endpoints[index].circuit.is_proved(Instant::now()) {
            self.prove(index, self.proof_time(index, deadline)).map_err(away)?;
            tracing::info!(endpoint = self.endpoints[index].url, "an endpoint has proved itself");
        }
        let Self { clients, options, endpoints, .. } = self;
        let bounds = (options.request_time.min(left(deadline)), Quote::Status);
        let result = endpoints[index].compute((clients, options), sent, out, bounds);
        let Err(failure) = result.map_err(Failure::unquoted) else { return Ok(()) };
        if failure.may_be_the_batch() {
            // A server that has just lost its model refuses everything: then it isn't this batch.
            self.prove(index, self.proof_time(index, deadline)).map_err(away)?;
        }
        Err(failure)
    }

    /// An endpoint is not asked for a while, after a try that `took` so long.
    fn rest(&mut self, index: usize, why: &Failure, took: Duration) {
        let (endpoint, now) = (&mut self.endpoints[index], Instant::now());
        match why {
            Failure::Busy(_, time) => endpoint.circuit.pause(now, *time),
            _ => {
                endpoint.circuit.fail(now, took);
                endpoint.forget();
            }
        }
        tracing::warn!(endpoint = endpoint.url, %why, "an endpoint is not used for now");
    }
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
        let deadline = Instant::now() + self.options.batch_time;
        let (mut last, mut failed) = ("all endpoints rest".to_owned(), Vec::new());
        while Instant::now() < deadline {
            let began = Instant::now();
            let Some(index) = self.pick(began, &failed) else {
                let wakes = self.endpoints.iter().filter_map(|one| one.circuit.rests_until()).min();
                let until = wakes.unwrap_or(deadline).min(deadline);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                continue;
            };
            match self.attempt(index, &sent, out, deadline) {
                Ok(()) => {
                    if self.description.device != device(index) {
                        self.description.device = device(index);
                    }
                    return Ok(());
                }
                Err(Failure::TooLarge(why)) => return Err(BackendError::OutOfMemory(why)),
                Err(Failure::Refused(why)) => return Err(BackendError::Failed(why)),
                Err(Failure::Failed(why)) => {
                    failed.push(index);
                    if failed.len() >= self.options.attempts_max {
                        return Err(BackendError::Failed(why));
                    }
                }
                Err(failure @ (Failure::Away(_) | Failure::Quoted(_) | Failure::Busy(..))) => {
                    last = format!("{}: {failure}", self.endpoints[index].url);
                    self.rest(index, &failure, began.elapsed());
                    if let Some(path) = self.names.replaced() {
                        return Err(BackendError::Lost(format!(
                            "{path} is another file than when the worker was started, and only a new \
                             worker may read it; {last}"
                        )));
                    }
                }
            }
        }
        let seconds = self.options.batch_time.as_secs();
        Err(BackendError::Lost(format!("no endpoint took the batch within {seconds} s; {last}")))
    }
}

/// What an endpoint refuses of the trial batch says nothing about a caller's.
fn away(failure: Failure) -> Failure {
    match failure {
        busy @ Failure::Busy(..) => busy,
        failure => Failure::Away(failure.to_string()),
    }
}

/// How an endpoint is called in replies: by its number in the settings, from 0.
fn device(index: usize) -> String {
    format!("{PROVIDER}:{index}")
}

fn unavailable(message: String) -> BackendError {
    let message = format!("{PROVIDER}: {message}");
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}
