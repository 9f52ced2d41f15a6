//! Connections: bounded in number, each with a time for its requests' heads and for its replies, and
//! an end that loses no request.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::pin::{Pin, pin};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Method};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::Fatal;
use crate::body::Heard;
use crate::held::held;
use crate::leaving::Leaving;
use crate::limits;
use crate::listen::Listener;
use crate::pace::Paced;
use crate::seats::{Seat, Seats};
use crate::stream::Stream;

/// A reply on its way, or that there is nobody to send it to.
type Reply = Pin<Box<dyn Future<Output = io::Result<Response<Body>>> + Send>>;

/// Answers by `router` until SIGTERM or SIGINT.
///
/// Whoever watches `/ready` is told before connections are refused; a second signal ends that wait.
///
/// # Errors
/// When signals can't be received.
pub async fn serve(
    listener: Listener,
    router: Router,
    has_key: bool,
    leaving: &Arc<Leaving>,
) -> Result<(), Fatal> {
    let no_signals = |error| Fatal::Failed(format!("signals can't be received ({error})"));
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let service = TowerToHyperService::new(router);
    let connections = Connections::new(service, Arc::clone(leaving));
    let address = listener.address();
    let asked = if has_key { "the API key is asked for" } else { "no API key is asked for" };
    info!("{asked}, and HTTP is answered at {address}");
    tell(&[NotifyState::Ready, NotifyState::Status(&format!("HTTP at {address}"))]);
    tokio::select! {
        () = connections.accept(&listener) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tell(&[NotifyState::Stopping, NotifyState::Status("finishing requests")]);
    leaving.begun.cancel();
    if leaving.is_watched() {
        let seconds = limits::LEAVE_TIME.as_secs();
        info!("/ready tells the end; for {seconds} s more requests are taken all the same");
        tokio::select! {
            () = connections.accept(&listener) => {}
            () = sleep(limits::LEAVE_TIME) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
    drop(listener);
    info!("no new requests are taken, those in flight are finished");
    let mut finished = pin!(connections.finish());
    if timeout(limits::DRAIN_TIME, &mut finished).await.is_err() {
        warn!("not all requests were finished in {} s", limits::DRAIN_TIME.as_secs());
        leaving.over.cancel();
        // A reply that is still being read is cut off.
        let _ = timeout(limits::REFUSE_TIME, finished).await;
    }
    Ok(())
}

/// All connections, each served by a task of its own.
struct Connections {
    http: http1::Builder,
    service: TowerToHyperService<Router>,
    seats: Arc<Seats>,
    leaving: Arc<Leaving>,
    graceful: GracefulShutdown,
}

impl Connections {
    fn new(service: TowerToHyperService<Router>, leaving: Arc<Leaving>) -> Self {
        let mut http = http1::Builder::new();
        // Who only closes its sending side is answered; who has left is seen by `seated`.
        http.half_close(true);
        http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD_TIME);
        // The second is for what comes behind the head as well: it is read in pieces of that size.
        http.max_header_size(limits::HEAD_BYTES).max_buf_size(limits::HEAD_BYTES);
        let (seats, graceful) = (Seats::new(limits::CONNECTIONS), GracefulShutdown::new());
        Self { http, service, seats, leaving, graceful }
    }

    /// Takes connections for as long as there are places for them, which is for ever.
    async fn accept(&self, listener: &Listener) {
        let mut told: Option<Instant> = None;
        loop {
            let accepted = async {
                let stream = listener.accept().await?;
                Ok::<_, io::Error>((stream, self.seats.take().await))
            };
            match accepted.await {
                Ok((stream, Some(seat))) => self.serve(stream, seat),
                // The places are never closed.
                Ok((_, None)) => return,
                // Of a client that left at once; others may still come.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {
                    debug!("a connection was gone before it was accepted");
                    tokio::task::yield_now().await;
                }
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= limits::TOLD_PAUSE) {
                        warn!("a connection could not be accepted: {error}");
                        told = Some(Instant::now());
                    }
                    // There are too many files, and would be at once again.
                    self.seats.make_room();
                    sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn serve(&self, stream: Stream, seat: Arc<Seat>) {
        let (service, leaving) = (self.service.clone(), Arc::clone(&self.leaving));
        let seated = seated(service, stream.clone(), Arc::clone(&seat), leaving);
        let stream = TokioIo::new(Paced::new(stream, limits::REPLY_PACE));
        let connection = self.http.serve_connection(stream, service_fn(seated));
        let connection = self.graceful.watch(connection);
        let leaving = Arc::clone(&self.leaving);
        tokio::spawn(async move {
            let drained_without_request = async {
                leaving.drained.cancelled().await;
                if seat.has_request() {
                    pending::<()>().await;
                }
            };
            tokio::select! {
                // A request that is all there is seen first.
                biased;
                ended = connection => if let Err(error) = ended {
                    debug!(%error, "a connection ended early");
                },
                () = seat.asked_to_leave() => debug!("an idle connection makes room for another"),
                () = drained_without_request => debug!("a connection ends without a whole head"),
            }
        });
    }

    /// Waits for the requests in flight; connections without one end at once, also with half of a head.
    async fn finish(self) {
        // hyper would wait for the other half.
        self.leaving.drained.cancel();
        self.graceful.shutdown().await;
    }
}

/// The service for one connection, whose seat is busy from when all of a request is there until its reply
/// is made. Once the gateway is leaving, the connection ends with that; and where a client that asked for work
/// has left before that is made, with nothing.
fn seated(
    service: TowerToHyperService<Router>,
    stream: Stream,
    seat: Arc<Seat>,
    leaving: Arc<Leaving>,
) -> impl Fn(Request<Incoming>) -> Reply {
    move |request| {
        // All else that may take a while is asked of the service for everybody at once, whoever leaves.
        let is_work = request.method() == Method::POST;
        let hearing = seat.hear();
        let reply = service.call(request.map(|body| Body::new(Heard::new(body, hearing))));
        let (leaving, stream, seat) = (Arc::clone(&leaving), stream.clone(), Arc::clone(&seat));
        Box::pin(async move {
            let Ok(mut reply) = tokio::select! {
                // What needs no waiting is answered, also to who only closes its sending side.
                biased;
                reply = reply => reply,
                () = stream.left(), if is_work => return Err(ErrorKind::ConnectionAborted.into()),
            };
            if leaving.begun.is_cancelled() {
                reply.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            let unread = Arc::new(seat.answer());
            Ok(reply.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    frame.map_data(|bytes| held(bytes, Arc::clone(&unread)))
                }))
            }))
        })
    }
}

/// A manager that can't be told is no reason not to serve.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        warn!("the service manager could not be told: {error}");
    }
}
