//! The backend: which endpoint gets a batch, and what it has to show before.

use std::time::{Duration, Instant};

use op_dbus_engine::foreign;
use op_dbus_engine::{Backend, BackendError, Batch, Description, LoadErrorKind, Reference};

use crate::circuit::Circuit;
use crate::failure::Failure;
use crate::http::{Client, Message, Quote};
use crate::oip::{self, Feed};
use crate::{Options, Protocol, openai};

/// The name of the provider.
const PROVIDER: &str = "remote";
/// What every endpoint is tried with: ids that every vocabulary has, in rows of unequal length.
const TRIAL: Batch<'_> = Batch { ids: &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], lengths: &[8, 4] };
/// Bytes of what a server tells of itself and of a model.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer beside its numbers, and of a number in JSON.
const ANSWER_BYTES: usize = 64 << 10;
const ANSWER_BYTES_PER_ROW: usize = 256;
const ANSWER_BYTES_PER_NUMBER: usize = 32;

/// A fleet that computes batches.
#[derive(Debug)]
pub struct RemoteBackend {
    client: Client,
    options: Options,
    endpoints: Vec<Endpoint>,
    /// The vectors of the trial batch, one after another, by the endpoint that answered first.
    trial: Vec<Reference>,
    description: Description,
}

/// One server, or many behind one address.
#[derive(Debug)]
struct Endpoint {
    url: String,
    circuit: Circuit,
    /// How its graph is fed, by the Open Inference Protocol, and whether in bytes.
    feed: Option<(Feed, bool)>,
}

impl RemoteBackend {
    /// Finds an endpoint that answers as it should, the first choice first.
    ///
    /// # Errors
    /// [`BackendError::Load`] (`ProviderUnavailable`): there is none; with what each said.
    pub fn load(options: Options) -> Result<Self, BackendError> {
        let start = Instant::now();
        let client = Client::new(options.roots.as_deref(), options.token.as_deref())
            .map_err(|why| unavailable(format!("ca_file: {why}")))?;
        let endpoint =
            |url: &String| Endpoint { url: url.clone(), circuit: Circuit::default(), feed: None };
        let endpoints: Vec<Endpoint> = options.endpoints.iter().map(endpoint).collect();
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
        let mut backend = Self { client, options, endpoints, trial: Vec::new(), description };
        let mut reasons = Vec::new();
        for index in backend.order() {
            match backend.prove(index, backend.options.request_time) {
                Ok(()) => {
                    backend.description.device = device(index);
                    let load_ms = start.elapsed().as_millis();
                    backend.description.load_ms = u64::try_from(load_ms).unwrap_or(u64::MAX);
                    return Ok(backend);
                }
                Err(failure) => {
                    backend.rest(index, &failure);
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

    /// The endpoint to ask now; none while all rest.
    fn pick(&self, now: Instant) -> Option<usize> {
        self.order().find(|index| self.endpoints[*index].circuit.allows(now))
    }

    /// Has an endpoint show what it is: how it is fed, and that its vectors of the trial batch are those
    /// of the others.
    fn prove(&mut self, index: usize, time: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + time;
        let dimensions = self.options.shape.dimensions;
        if self.options.protocol == Protocol::Oip {
            let Options { model, .. } = &self.options;
            let endpoint = &mut self.endpoints[index];
            let told = self.client.get(
                &oip::model_url(&endpoint.url, model),
                left(deadline),
                METADATA_BYTES_MAX,
            )?;
            let feed = Feed::read(&told.body, dimensions)?;
            let server = oip::server_url(&endpoint.url);
            // A server that does not tell gets JSON, which all take.
            let told = self.client.get(&server, left(deadline), METADATA_BYTES_MAX);
            endpoint.feed = Some((feed, told.is_ok_and(|told| oip::is_binary(&told.body))));
        }
        let mut out = vec![f32::NAN; TRIAL.rows() * dimensions];
        self.ask(index, &TRIAL, &mut out, (left(deadline), Quote::Words))?;
        let vectors = out.chunks_exact(dimensions);
        match self.trial.is_empty() {
            true => {
                let cosine_min = Reference::F32_COSINE_MIN;
                let known = |vector: &[f32]| Reference { vector: vector.to_vec(), cosine_min };
                self.trial = vectors.map(known).collect();
            }
            false => {
                let mut rows = vectors.zip(&self.trial);
                rows.try_for_each(|(vector, known)| known.check(vector)).map_err(Failure::Away)?;
            }
        }
        self.endpoints[index].circuit.prove(Instant::now());
        Ok(())
    }

    /// Has an endpoint compute a batch.
    fn ask(
        &mut self,
        index: usize,
        batch: &Batch<'_>,
        out: &mut [f32],
        (time, quote): (Duration, Quote),
    ) -> Result<(), Failure> {
        let Options { model, shape, .. } = &self.options;
        let Endpoint { url, feed, .. } = &mut self.endpoints[index];
        let most = |numbers: usize| {
            ANSWER_BYTES + batch.rows() * ANSWER_BYTES_PER_ROW + numbers * ANSWER_BYTES_PER_NUMBER
        };
        match feed {
            Some((feed, binary)) => {
                let request = feed.request(batch, *binary)?;
                let (url, most) =
                    (oip::infer_url(url, model), most(feed.numbers(shape.dimensions)));
                let answer = self.client.post(&url, &request, (time, most), quote)?;
                feed.answer(&answer, (batch.lengths, shape), out)?;
            }
            None => {
                let body = openai::request(model, batch)?;
                let request = Message { body, json_bytes: None };
                let (url, most) = (openai::url(url), most(out.len()));
                let answer = self.client.post(&url, &request, (time, most), quote)?;
                openai::answer(&answer.body, shape.dimensions, out)?;
            }
        }
        if !out.iter().all(|number| number.is_finite()) {
            return Err(Failure::nonsense("it has values that are not finite numbers"));
        }
        if shape.normalize {
            foreign::normalize(shape.dimensions, out);
        }
        Ok(())
    }

    /// One try with one endpoint, which proves itself first if it has to.
    fn attempt(
        &mut self,
        index: usize,
        batch: &Batch<'_>,
        out: &mut [f32],
        deadline: Instant,
    ) -> Result<(), Failure> {
        let time = |options: &Options| options.request_time.min(left(deadline));
        if !self.endpoints[index].circuit.is_proved(Instant::now()) {
            self.prove(index, time(&self.options)).map_err(away)?;
            tracing::info!(endpoint = self.endpoints[index].url, "an endpoint has proved itself");
        }
        let result = self.ask(index, batch, out, (time(&self.options), Quote::Status));
        let Err(Failure::Refused(why)) = result else { return result.map_err(Failure::unquoted) };
        // A server that has just lost its model refuses everything: then it isn't this batch.
        self.prove(index, time(&self.options)).map_err(away)?;
        Err(Failure::Refused(why))
    }

    /// An endpoint is not asked for a while.
    fn rest(&mut self, index: usize, why: &Failure) {
        let endpoint = &mut self.endpoints[index];
        endpoint.circuit.fail(Instant::now());
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
        let deadline = Instant::now() + self.options.batch_time;
        let mut last = "all endpoints rest".to_owned();
        while Instant::now() < deadline {
            let Some(index) = self.pick(Instant::now()) else {
                let wakes = self.endpoints.iter().filter_map(|one| one.circuit.rests_until()).min();
                let until = wakes.unwrap_or(deadline).min(deadline);
                std::thread::sleep(until.saturating_duration_since(Instant::now()));
                continue;
            };
            match self.attempt(index, batch, out, deadline) {
                Ok(()) => {
                    if self.description.device != device(index) {
                        self.description.device = device(index);
                    }
                    return Ok(());
                }
                Err(Failure::TooLarge(why)) => return Err(BackendError::OutOfMemory(why)),
                Err(Failure::Refused(why)) => return Err(BackendError::Failed(why)),
                Err(failure @ (Failure::Away(_) | Failure::Quoted(_))) => {
                    last = format!("{}: {failure}", self.endpoints[index].url);
                    self.rest(index, &failure);
                }
            }
        }
        let seconds = self.options.batch_time.as_secs();
        Err(BackendError::Lost(format!("no endpoint took the batch within {seconds} s; {last}")))
    }
}

/// What an endpoint refuses of the trial batch says nothing about a caller's.
fn away(failure: Failure) -> Failure {
    Failure::Away(failure.to_string())
}

/// How an endpoint is called in replies: by its number in the settings, from 0.
fn device(index: usize) -> String {
    format!("{PROVIDER}:{index}")
}

/// Time until `deadline`, of which there is always some: a time of nothing would be none at all.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

fn unavailable(message: String) -> BackendError {
    let message = format!("{PROVIDER}: {message}");
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}
