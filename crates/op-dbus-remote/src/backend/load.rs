//! The beginning: an endpoint that answers, and whether others say the same.

use std::time::{Duration, Instant};

use op_dbus_engine::{BackendError, Description, LoadErrorKind, Tokenizer};

use super::{PROOF_TIME, PROVIDER, RemoteBackend, device};
use crate::Options;
use crate::endpoint::{Clients, Endpoint, left};
use crate::failure::Failure;
use crate::names::Names;
use crate::trial::Trial;

/// How long nobody may answer before that is told, so that a server may be restarted meanwhile. What is
/// loaded in place of a lost worker is tried some times, before a caller over D-Bus has waited too long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time that each endpoint has at first to begin to prove itself, where there are several.
const FIRST_TIME: Duration = Duration::from_secs(2);
/// Time for all others to say whether the first one's vectors are theirs.
const WITNESS_TIME: Duration = Duration::from_secs(2);

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
            None => Trial::of_ids(options.shape.max_input_tokens),
        };
        let endpoint = |url: &String| Endpoint::new(url, options.protocol, &clients);
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
            largest_tokens: 0,
            load_ms: 0,
            pid: std::process::id(),
            sandbox: String::new(),
        };
        let limit = None;
        let mut backend =
            Self { clients, options, endpoints, names, tokenizer, trial, limit, description };
        let first = backend.find(start + PATIENCE).map_err(unavailable)?;
        let index = backend.witnessed(first);
        backend.description.device = device(index);
        let load_ms = start.elapsed().as_millis();
        backend.description.load_ms = u64::try_from(load_ms).unwrap_or(u64::MAX);
        Ok(backend)
    }

    /// The first endpoint that proves itself. While nobody answers, those that have rested are asked again
    /// `until` then. The journal has why others are passed over; where nobody is left, whoever asked is told.
    fn find(&mut self, until: Instant) -> Result<usize, String> {
        let mut reasons = vec![String::new(); self.endpoints.len()];
        let (mut is_absent, whole) = (true, self.options.request_time);
        // Several that are silent, each for all of its time, would keep the one that answers from being asked.
        let mut time = if self.endpoints.len() > 1 { whole.min(FIRST_TIME) } else { whole };
        loop {
            let mut hurried = Vec::new();
            for index in self.order() {
                let began = Instant::now();
                if !self.endpoints[index].circuit.allows(began) {
                    continue;
                }
                let Err(failure) = self.prove(index, time, began + whole) else {
                    for (other, failure, took) in hurried {
                        // Who used up its time would have used up more.
                        self.pause(other, &failure, if took < time { took } else { whole });
                    }
                    let others = reasons.iter().enumerate();
                    let others = others.filter(|(other, why)| *other != index && !why.is_empty());
                    others.for_each(|(other, why)| self.tell_away(other, why));
                    return Ok(index);
                };
                reasons[index] = failure.to_string();
                let took = began.elapsed();
                match failure {
                    Failure::Absent(_) if time < whole => hurried.push((index, failure, took)),
                    failure => {
                        is_absent &= matches!(failure, Failure::Absent(_));
                        self.pause(index, &failure, took);
                    }
                }
            }
            if !hurried.is_empty() {
                time = whole;
                continue;
            }
            let wakes = self.endpoints.iter().filter_map(|one| one.circuit.rests_until()).min();
            match wakes.filter(|wakes| is_absent && *wakes <= until) {
                Some(wakes) => std::thread::sleep(wakes.saturating_duration_since(Instant::now())),
                None => {
                    let url = |index: usize| &self.endpoints[index].url;
                    let each = self.order();
                    let each = each.map(|at| format!("{} can't be used: {}", url(at), reasons[at]));
                    return Err(each.collect::<Vec<_>>().join("; "));
                }
            }
        }
    }

    /// Asks others for their vectors until one has those of the `first`, or two agree on others: then it is
    /// the first that is wrong, and one of these stands in for it. Who does not answer is not waited for.
    fn witnessed(&mut self, first: usize) -> usize {
        let deadline = Instant::now() + WITNESS_TIME;
        let dimensions = self.options.shape.dimensions;
        let mut dissent: Option<(usize, Vec<f32>)> = None;
        for index in self.order().filter(|index| *index != first) {
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            if !self.endpoints[index].circuit.allows(now) {
                continue;
            }
            let time = self.options.request_time.min(PROOF_TIME).min(left(deadline));
            let Ok(shown) = self.show(index, time, deadline) else { continue };
            let Err(why) = self.trial.compare(&shown, dimensions) else {
                self.endpoints[index].circuit.prove(Instant::now());
                break;
            };
            let Some((other, theirs)) = &dissent else {
                dissent = Some((index, shown));
                continue;
            };
            let other = *other;
            let mut trial = self.trial.clone();
            trial.know(theirs, dimensions);
            if trial.compare(&shown, dimensions).is_err() {
                break;
            }
            self.trial = trial;
            for right in [other, index] {
                self.endpoints[right].circuit.prove(Instant::now());
            }
            let agree = format!(
                "{} and {} agree on other vectors: {why}",
                self.endpoints[other].url, self.endpoints[index].url
            );
            self.rest(first, &Failure::Away(agree), Duration::ZERO);
            return other;
        }
        first
    }
}

fn unavailable(message: String) -> BackendError {
    let message = format!("{PROVIDER}: {message}");
    BackendError::Load { kind: LoadErrorKind::ProviderUnavailable, message }
}
