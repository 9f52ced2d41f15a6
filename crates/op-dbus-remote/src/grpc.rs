//! Requests over gRPC: one connection for each endpoint, every time and size bounded.

use std::error::Error;
use std::time::{Duration, Instant};

use op_dbus_engine::with_causes;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tokio::task::yield_now;
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use ureq::http::uri::PathAndQuery;

use crate::Token;
use crate::failure::Failure;
use crate::http::{CONNECT, Quote};

/// Bytes of an answer's headers, what is wrong among them.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Turns that connections have before a call: to read, to end, and to be given up.
const TURNS: usize = 4;
/// What servers say of a request that is larger than they take, in C++ and Go, and in Java; they have no status
/// for it alone.
const TOO_LARGE: [&str; 2] = ["larger than max", "exceeds maximum size"];
/// When a connection on which nothing comes is tried, how often then, and how many times in vain: so that what
/// stands between does not forget it from one batch to the next, and one that leads nowhere is not waited for.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(15), Duration::from_secs(5), 3);

/// A client of all endpoints. It takes no proxy from the environment.
#[derive(Debug)]
pub struct Client {
    /// Runs while there is a call and stands still between two.
    runtime: Runtime,
    tls: ClientTlsConfig,
    authorization: Option<MetadataValue<Ascii>>,
}

impl Client {
    /// A client that trusts the certificates in `roots` (PEM), or else Mozilla's list.
    ///
    /// # Errors
    /// A clause: the token can't be sent, or the system has no room.
    pub fn new(roots: Option<&[u8]>, token: Option<&Token>) -> Result<Self, String> {
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| format!("no connection can be made ({error})"))?;
        let tls = ClientTlsConfig::new();
        let tls = match roots {
            Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
            None => tls.with_webpki_roots(),
        };
        let authorization = token.map(|token| {
            let value = MetadataValue::try_from(token.authorization());
            let mut value =
                value.map_err(|_| "the token has signs that can't be sent".to_owned())?;
            // Neither shown nor kept for compression.
            value.set_sensitive(true);
            Ok::<_, String>(value)
        });
        Ok(Self { runtime, tls, authorization: authorization.transpose()? })
    }

    /// The way to an endpoint, `grpc://…` or `grpcs://…`: a connection that is made when it is needed, and
    /// again when it was lost.
    ///
    /// # Errors
    /// It is no address.
    pub fn channel(&self, url: &str) -> Result<Channel, Failure> {
        let wrong = |error: tonic::transport::Error| Failure::Away(with_causes(&error));
        let is_open = url.starts_with("grpc:");
        let url = url.replacen("grpc", "http", 1);
        let endpoint = Endpoint::from_shared(url).map_err(wrong)?;
        let endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_keepalive(Some(KEEPALIVE.0))
            .tcp_keepalive_interval(Some(KEEPALIVE.1))
            .tcp_keepalive_retries(Some(KEEPALIVE.2))
            .http2_max_header_list_size(HEADER_BYTES_MAX)
            .user_agent(concat!("op-dbus/", env!("CARGO_PKG_VERSION")))
            .map_err(wrong)?;
        let endpoint = match is_open {
            true => endpoint,
            false => endpoint.tls_config(self.tls.clone()).map_err(wrong)?,
        };
        let _inside = self.runtime.enter();
        Ok(endpoint.connect_lazy())
    }

    /// Calls `method`, of which the answer has `most` bytes at most.
    ///
    /// # Errors
    /// It fails in any way.
    pub fn call<Q, A>(
        &self,
        channel: &Channel,
        (method, message): (&'static str, Q),
        (time, most): (Duration, usize),
        quote: Quote,
    ) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let began = Instant::now();
        let mut request = Request::new(message);
        // Who is told computes nothing for nobody.
        request.set_timeout(time);
        if let Some(value) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        let call = async {
            // Nobody has read since the last call: a connection that its server has ended meanwhile, as many
            // do with idle ones, is made anew, and no failure.
            for _ in 0..TURNS {
                yield_now().await;
            }
            let mut grpc = Grpc::new(channel.clone()).max_decoding_message_size(most);
            let ready = grpc.ready().await;
            ready.map_err(|error| Failure::absent(with_causes(&error)))?;
            let codec = ProstCodec::<Q, A>::default();
            let answer = grpc.unary(request, PathAndQuery::from_static(method), codec).await;
            answer.map(tonic::Response::into_inner).map_err(|status| refusal(&status, quote))
        };
        match self.runtime.block_on(async { timeout(time, call).await }) {
            Ok(Ok(answer)) => Ok(answer),
            // The connection heeds the time as well, in other words.
            Ok(Err(failure)) if began.elapsed() < time => Err(failure),
            _ => {
                let seconds = time.as_secs_f32();
                Err(Failure::Absent(format!("timeout: it took longer than {seconds:.1} s")))
            }
        }
    }
}

/// What a status means for the batch.
fn refusal(status: &Status, quote: Quote) -> Failure {
    if let Some(error) = status.source() {
        return Failure::absent(with_causes(error));
    }
    let (code, message) = (status.code(), status.message());
    let said = match quote {
        Quote::Words if !message.is_empty() => format!("it answers {code:?} ({message})"),
        _ => format!("it answers {code:?}"),
    };
    match code {
        Code::InvalidArgument => Failure::Refused(said),
        Code::ResourceExhausted if TOO_LARGE.iter().any(|words| message.contains(words)) => {
            Failure::TooLarge(said)
        }
        Code::Unauthenticated | Code::ResourceExhausted | Code::Unavailable => Failure::Away(said),
        Code::Cancelled | Code::DeadlineExceeded => Failure::Away(said),
        Code::NotFound | Code::PermissionDenied => Failure::Declined(said),
        Code::FailedPrecondition | Code::Unimplemented => Failure::Declined(said),
        _ => Failure::Failed(said),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;

    use super::*;

    /// Answers one call with `NOT_FOUND`.
    fn answer(stream: &mut TcpStream) -> std::io::Result<()> {
        const HEADERS: u8 = 1;
        // `:status: 200`, `content-type: application/grpc` and `grpc-status: 5`.
        let fields = [&b"\x88\x0f\x10\x10application/grpc"[..], b"\0\x0bgrpc-status\x015"].concat();
        stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0])?;
        stream.read_exact(&mut [0; 24])?;
        loop {
            let mut head = [0; 9];
            stream.read_exact(&mut head)?;
            let mut body = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            stream.read_exact(&mut body)?;
            if head[3] == HEADERS {
                let begin =
                    [0, 0, fields.len() as u8, HEADERS, 5, head[5], head[6], head[7], head[8]];
                return stream.write_all(&[&begin[..], &fields].concat());
            }
        }
    }

    #[test]
    fn a_connection_that_the_server_has_ended_between_two_calls_is_no_failure() {
        const CALLS: usize = 8;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("grpc://{}", listener.local_addr().unwrap());
        let (end, is_to_end) = channel();
        let (ended, has_ended) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(CALLS) {
                let mut stream = stream.unwrap();
                answer(&mut stream).unwrap();
                is_to_end.recv().unwrap();
                drop(stream);
                ended.send(()).unwrap();
            }
        });
        let client = Client::new(None, None).unwrap();
        let way = client.channel(&url).unwrap();
        for _ in 0..CALLS {
            let bounds = (Duration::from_secs(120), 100);
            let answer = client.call::<(), ()>(&way, ("/s/m", ()), bounds, Quote::Status);
            assert!(
                matches!(&answer, Err(Failure::Declined(why)) if why.contains("NotFound")),
                "{answer:?}"
            );
            // Not before: the call itself would hear of it.
            end.send(()).unwrap();
            has_ended.recv().unwrap();
        }
    }

    #[test]
    fn a_status_says_whether_it_is_the_batch() {
        let told = |code, message: &str, quote| refusal(&Status::new(code, message), quote);
        let refused = told(Code::InvalidArgument, "said words", Quote::Status);
        assert!(matches!(refused, Failure::Refused(said) if said == "it answers InvalidArgument"));
        for words in ["message larger than max (5 vs. 4)", "gRPC message exceeds maximum size 4: 5"]
        {
            let large = told(Code::ResourceExhausted, words, Quote::Status);
            assert!(matches!(large, Failure::TooLarge(_)), "{words}");
        }
        for code in [Code::Internal, Code::Unknown, Code::OutOfRange, Code::DataLoss] {
            assert!(matches!(told(code, "said words", Quote::Status), Failure::Failed(_)));
        }
        for code in [Code::NotFound, Code::PermissionDenied, Code::Unimplemented] {
            assert!(matches!(told(code, "said words", Quote::Status), Failure::Declined(_)));
        }
        for code in [
            Code::ResourceExhausted,
            Code::Unavailable,
            Code::DeadlineExceeded,
            Code::Unauthenticated,
        ] {
            let away = told(code, "said words", Quote::Words);
            assert!(
                matches!(away, Failure::Away(said) if said.ends_with("(said words)")),
                "{code:?}"
            );
        }
    }
}
