//! One endpoint: how it is spoken to, and what it makes of a batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use op_dbus_engine::foreign;
use tonic::transport::Channel;

use crate::circuit::Circuit;
use crate::failure::Failure;
use crate::http::{Message, Quote};
use crate::news::News;
use crate::oip::{Feed, rest, rpc};
use crate::texts::Sent;
use crate::{Options, Protocol, grpc, http, openai, roots};

/// Bytes of what a server tells of itself and of a model.
const METADATA_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer beside its numbers, and of a number in JSON.
const ANSWER_BYTES: usize = 64 << 10;
const ANSWER_BYTES_PER_ROW: usize = 256;
const ANSWER_BYTES_PER_NUMBER: usize = 32;

/// What all endpoints are spoken to with.
#[derive(Debug)]
pub struct Clients {
    http: http::Client,
    /// There is one where an endpoint needs it, which then has it as well.
    grpc: Option<Arc<grpc::Client>>,
}

impl Clients {
    /// The clients that the endpoints of the options need.
    ///
    /// # Errors
    /// A clause that names the option: certificates or a token that can't be used.
    pub fn new(options: &Options) -> Result<Self, String> {
        let roots = options.roots.as_deref().map(roots::readable).transpose();
        let roots = roots.map_err(|why| format!("ca_file: {why}"))?;
        let (roots, token) = (roots.as_deref(), options.token.as_ref());
        let http = http::Client::new(roots, token);
        let grpc = options.endpoints.iter().any(|url| is_grpc(url));
        let grpc = grpc.then(|| grpc::Client::new(roots, token)).transpose()?;
        Ok(Self { http, grpc: grpc.map(Arc::new) })
    }
}

/// One server, or many behind one address.
#[derive(Debug)]
pub struct Endpoint {
    /// Where it answers.
    pub url: String,
    /// Whether it may be asked.
    pub circuit: Circuit,
    /// What the journal has of it.
    pub news: News,
    way: Way,
}

/// How an endpoint is spoken to; what is learned of it is there once it is to prove itself.
#[derive(Debug)]
enum Way {
    OpenAi,
    /// The Open Inference Protocol over HTTP: how its graph is fed, and whether in bytes.
    Rest(Option<(Feed, bool)>),
    /// The same over gRPC.
    Rpc(Arc<grpc::Client>, Option<(Feed, Channel)>),
}

impl Endpoint {
    /// An endpoint that is not known yet.
    pub fn new(url: &str, protocol: Protocol, clients: &Clients) -> Self {
        let way = match (protocol, clients.grpc.as_ref().filter(|_| is_grpc(url))) {
            (Protocol::OpenAi, _) => Way::OpenAi,
            (Protocol::Oip, Some(client)) => Way::Rpc(client.clone(), None),
            (Protocol::Oip, None) => Way::Rest(None),
        };
        Self { url: url.to_owned(), circuit: Circuit::default(), news: News::default(), way }
    }

    /// Learns how the endpoint's graph is fed, where that is not the same everywhere.
    ///
    /// # Errors
    /// It does not tell, or it can't be fed.
    pub fn learn(
        &mut self,
        clients: &Clients,
        options: &Options,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let Options { model, texts, shape, .. } = options;
        let url = &self.url;
        match &mut self.way {
            Way::OpenAi => {}
            Way::Rest(way) => {
                let get = |url: &str| clients.http.get(url, left(deadline), METADATA_BYTES_MAX);
                let metadata = rest::metadata(&get(&rest::model_url(url, model))?.body)?;
                let feed = Feed::new(metadata, *texts, shape.dimensions)?;
                // A server that does not tell gets JSON, which all take.
                let server = get(&rest::server_url(url));
                *way = Some((feed, server.is_ok_and(|told| rest::is_binary(&told.body))));
            }
            Way::Rpc(client, way) => {
                let channel = match way.take() {
                    Some((_, channel)) => channel,
                    None => client.channel(url)?,
                };
                let ask = (rpc::METADATA, rpc::MetadataRequest { name: model.clone() });
                let bounds = (left(deadline), METADATA_BYTES_MAX);
                let metadata = client.call(&channel, ask, bounds, Quote::Words)?;
                *way = Some((Feed::new(metadata, *texts, shape.dimensions)?, channel));
            }
        }
        Ok(())
    }

    /// Lets go of what was learned, and of a connection that may lead nowhere.
    pub fn forget(&mut self) {
        match &mut self.way {
            Way::OpenAi => {}
            Way::Rest(way) => *way = None,
            Way::Rpc(_, way) => *way = None,
        }
    }

    /// Has the endpoint compute a batch into `out`, `[rows, dimensions]`.
    ///
    /// # Errors
    /// It gives no vectors, or none that could be right.
    pub fn compute(
        &mut self,
        (clients, options): (&Clients, &Options),
        sent: &Sent<'_>,
        out: &mut [f32],
        (time, quote): (Duration, Quote),
    ) -> Result<(), Failure> {
        let Options { model, shape, .. } = options;
        let url = &self.url;
        let expected = (sent.batch.lengths, shape);
        let most = |numbers: usize| {
            let rows = sent.batch.rows();
            ANSWER_BYTES + rows * ANSWER_BYTES_PER_ROW + numbers * ANSWER_BYTES_PER_NUMBER
        };
        match &mut self.way {
            Way::OpenAi => {
                let body = openai::request(model, sent)?;
                let request = Message { body, json_bytes: None };
                let bounds = (time, most(out.len()));
                let answer = clients.http.post(&openai::url(url), &request, bounds, quote)?;
                openai::answer(&answer.body, shape.dimensions, out)?;
            }
            Way::Rest(Some((feed, binary))) => {
                let request = rest::request(feed, sent, *binary)?;
                let bounds = (time, most(feed.numbers(shape.dimensions)));
                let url = rest::infer_url(url, model);
                let answer = clients.http.post(&url, &request, bounds, quote)?;
                rest::answer(feed, &answer, expected, out)?;
            }
            Way::Rpc(client, Some((feed, channel))) => {
                let ask = (rpc::INFER, rpc::request(feed, model, sent));
                let bounds = (time, most(feed.numbers(shape.dimensions)));
                rpc::answer(feed, client.call(channel, ask, bounds, quote)?, expected, out)?;
            }
            Way::Rest(None) | Way::Rpc(_, None) => {
                return Err(Failure::Away("it has not told how its model is fed".to_owned()));
            }
        }
        if !out.iter().all(|number| number.is_finite()) {
            return Err(Failure::nonsense("it has values that are not finite numbers"));
        }
        let is_nothing = |vector: &[f32]| vector.iter().all(|number| *number == 0.0);
        if out.chunks_exact(shape.dimensions).any(is_nothing) {
            return Err(Failure::nonsense("it has a vector of zeros alone"));
        }
        if shape.normalize {
            foreign::normalize(shape.dimensions, out).map_err(Failure::nonsense)?;
        }
        Ok(())
    }
}

/// Whether an endpoint is spoken to by gRPC.
fn is_grpc(url: &str) -> bool {
    url.starts_with("grpc")
}

/// Time until `deadline`, of which there is always some: a time of nothing would be none at all.
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}
