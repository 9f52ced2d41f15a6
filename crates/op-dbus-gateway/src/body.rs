//! Bodies of requests: read within their bounds, and what is on its way of those that nobody wants.
//!
//! A body that is read keeps none of the places for work, so that whoever sends a head and nothing more
//! keeps nobody out; what bodies take together is bounded in bytes. How each begins is not counted for that:
//! a small one is read also where others have filled the room.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};

use crate::leaving::Leaving;
use crate::limits;
use crate::refusal::Refusal;
use crate::seats::Hearing;

/// A body that is there, with what it takes of the room for all.
pub struct Read {
    /// The body.
    pub bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

/// Reads a body into the `room` that all of them share, of [`limits::BODIES_BYTES`].
///
/// # Errors
/// 413 for one that is too large, 408 for one that is too slow, 429 where there is no room, 400 for one
/// that breaks off, 503 when the gateway is `leaving` and waits no longer.
pub async fn read(
    request: Request,
    room: &Arc<Semaphore>,
    leaving: &Leaving,
) -> Result<Read, Refusal> {
    let too_large = || {
        let limit = limits::BODY_BYTES;
        Refusal::too_large(format!(
            "the body is larger than {limit} bytes; send the texts in several requests"
        ))
    };
    if request.body().size_hint().lower() > limits::BODY_BYTES as u64 {
        return Err(unread(request, too_large()));
    }
    let mut body = request.into_body();
    let mut read = Read { bytes: Vec::new(), room: None };
    let began = Instant::now();
    let mut patience = began + limits::SLOW_TIME;
    let mut over = pin!(leaving.over.cancelled());
    loop {
        let frame = tokio::select! {
            biased;
            frame = timeout_at(patience, body.frame()) => frame,
            () = &mut over => return Err(refused(body, Refusal::leaving())),
        };
        let Ok(frame) = frame else {
            if let Err(refusal) = check_pace(began, read.room.is_some(), room) {
                return Err(refused(body, refusal));
            }
            patience += limits::SLOW_TIME;
            continue;
        };
        let Some(frame) = frame else { return Ok(read) };
        let frame = frame
            .map_err(|error| Refusal::invalid(format!("the body could not be read ({error})")))?;
        let Ok(data) = frame.into_data() else { continue };
        let taken = if read.bytes.len() + data.len() > limits::BODY_BYTES {
            Err(too_large())
        } else {
            read.take(&data, room)
        };
        if let Err(refusal) = taken {
            return Err(refused(body, refusal));
        }
    }
}

impl Read {
    fn take(&mut self, data: &[u8], room: &Arc<Semaphore>) -> Result<(), Refusal> {
        let counted = |bytes: usize| bytes.saturating_sub(limits::SMALL_BODY_BYTES);
        let length = self.bytes.len();
        let more = counted(length + data.len()) - counted(length);
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let room = Arc::clone(room).try_acquire_many_owned(more).map_err(|_| {
                let message =
                    "the gateway reads as many bytes of bodies as it takes; try again in 1 s";
                Refusal::busy(message)
            })?;
            match &mut self.room {
                Some(held) => held.merge(room),
                none => *none = Some(room),
            }
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

/// Whether a body that is slow may go on, which has some of the room or not.
fn check_pace(began: Instant, has_room: bool, room: &Semaphore) -> Result<(), Refusal> {
    let elapsed = began.elapsed();
    // Else those who send slowly on purpose would have all of the room for as long as they may.
    let is_short = has_room && room.available_permits() < limits::BODIES_BYTES / 2;
    if elapsed < limits::BODY_TIME && !is_short {
        return Ok(());
    }
    let message = format!("the body did not come within {} s; send it at once", elapsed.as_secs());
    Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
}

/// Refuses a request whose body nobody has read, and takes what a client sends of it all the same.
pub fn unread(request: Request, refusal: Refusal) -> Refusal {
    // Who asks whether to send it has nothing on its way.
    let asks_first = request.headers().contains_key(EXPECT);
    let body = request.into_body();
    match asks_first || body.is_end_stream() {
        true => refusal,
        false => refused(body, refusal),
    }
}

/// Refuses a request whose body is still on its way, and takes that all the same.
fn refused(body: Body, refusal: Refusal) -> Refusal {
    tokio::spawn(discard(body));
    refusal
}

/// Takes for a while what a client still sends: where a connection ends with bytes that nobody has read,
/// the client's system may drop the reply before the client has seen it, and many clients take a
/// connection that breaks while they send for all that there is to know.
async fn discard(mut body: Body) {
    let all = async { while let Some(Ok(_)) = body.frame().await {} };
    // Whoever sends for longer is not waited for.
    let _ = timeout(limits::DISCARD_TIME, all).await;
}

/// A body whose connection is told when all of it is there.
pub struct Heard {
    body: Incoming,
    hearing: Option<Hearing>,
}

impl Heard {
    /// The body of a request whose head is there.
    pub fn new(body: Incoming, hearing: Hearing) -> Self {
        let mut heard = Self { body, hearing: Some(hearing) };
        if heard.body.is_end_stream() {
            heard.end();
        }
        heard
    }

    fn end(&mut self) {
        if let Some(hearing) = self.hearing.take() {
            hearing.end();
        }
    }
}

impl HttpBody for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) {
            self.end();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use axum::response::IntoResponse;
    use tokio::sync::mpsc;

    use super::*;

    #[test]
    fn a_slow_body_has_its_time_and_less_where_room_is_short() {
        let pace = |seconds, has_room, taken| {
            let began = Instant::now() - Duration::from_secs(seconds);
            check_pace(began, has_room, &Semaphore::new(limits::BODIES_BYTES - taken))
                .map_err(|why| why.message().to_owned())
        };
        let half = limits::BODIES_BYTES / 2;
        assert_eq!(pace(29, true, half), Ok(()));
        assert!(pace(30, true, 0).unwrap_err().contains("did not come within 30 s"));
        assert!(pace(2, true, half + 1).unwrap_err().contains("did not come within 2 s"));
        // What takes none of the room has its time all the same.
        assert_eq!(pace(29, false, limits::BODIES_BYTES), Ok(()));
        assert!(pace(30, false, 0).is_err());
    }

    #[tokio::test]
    async fn a_small_body_is_read_where_others_have_all_of_the_room() {
        let small = limits::SMALL_BODY_BYTES;
        let sent = |bytes| Request::new(Body::from(vec![b' '; bytes]));
        let (none, stays) = (Arc::new(Semaphore::new(0)), Leaving::default());
        assert_eq!(read(sent(small), &none, &stays).await.unwrap().bytes.len(), small);
        let refused = read(sent(small + 1), &none, &stays).await.err().expect("there is no room");
        assert!(refused.message().contains("as many bytes of bodies as it takes"), "{refused:?}");
        // Of a larger one that comes in pieces, each byte behind its beginning is counted once.
        let pieces =
            [small - 1, 3, 5].map(|bytes| Ok::<_, Infallible>(Bytes::from(vec![0; bytes])));
        let body = Body::from_stream(futures_util::stream::iter(pieces));
        let room = Arc::new(Semaphore::new(7));
        let whole = read(Request::new(body), &room, &stays).await.unwrap();
        assert_eq!((whole.bytes.len(), room.available_permits()), (small + 7, 0));
        drop(whole);
        assert_eq!(room.available_permits(), 7);
    }

    #[tokio::test]
    async fn who_is_still_sending_when_refused_is_not_broken_off() {
        // The time that a body has is over sooner where room is short.
        refused_while_sending(&Leaving::default(), StatusCode::REQUEST_TIMEOUT).await;
        let leaving = Leaving::default();
        leaving.over.cancel();
        refused_while_sending(&leaving, StatusCode::SERVICE_UNAVAILABLE).await;
    }

    async fn refused_while_sending(leaving: &Leaving, status: StatusCode) {
        let (sender, mut receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
        let body = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
        let request = Request::new(Body::from_stream(body));
        let room = Arc::new(Semaphore::new(1));
        sender.send(Ok(Bytes::from(vec![b' '; limits::SMALL_BODY_BYTES + 1]))).await.unwrap();
        let refusal = read(request, &room, leaving).await.err().expect("not all of it is there");
        assert_eq!(refusal.into_response().status(), status);
        for _ in 0..3 {
            sender.send(Ok(Bytes::from_static(b"more"))).await.expect("it is still taken");
        }
    }
}
