//! Every bound of the gateway in one place.

use std::time::Duration;

use crate::pace::Pace;

/// Connections at once. For a further one the one that has been idle for longest is closed, or whose
/// client has sent half of a request for longest; it waits while all have whole ones.
pub const CONNECTIONS: usize = 512;
/// How long none is accepted after the system had no room for one.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long nothing more is told in the log of connections that could not be accepted.
pub const TOLD_PAUSE: Duration = Duration::from_secs(60);
/// Requests that ask for work at once, until their replies are made.
pub const REQUESTS: usize = 64;
/// Requests beside these that wait for their place, of which all is there. Half of the connections are left for what is
/// asked beside them, and for replies that are read.
pub const WAITING: usize = CONNECTIONS / 2;
/// How long a request waits for its place: so much less than the minute for which many clients and proxies wait for an
/// answer that they are told why they have none, and that one with a place at last can be done within it.
pub const PLACE_TIME: Duration = Duration::from_secs(45);
/// Texts of these requests together, but for the first [`SMALL_TEXTS`] of each.
pub const TEXTS_IN_FLIGHT: usize = 32_768;
/// Texts of each request that do not count for that, so that small ones are worked on beside large ones: as many as a
/// call may have that goes first in the service.
pub const SMALL_TEXTS: usize = 63;
/// Texts in one request.
pub const TEXTS: usize = 16_384;
/// Texts that a client had best send in one request: each may have 32 KiB of [`BODY_BYTES`], and where nothing is fast
/// they are done in half a minute.
pub const CLIENT_BATCH: usize = 256;
const _: () = assert!(CLIENT_BATCH * (32 << 10) <= BODY_BYTES);
/// Numbers of all vectors of one request, which lie in memory three times while the reply is made.
pub const NUMBERS: usize = TEXTS * 1024;
/// Texts in one call on the bus: with vectors of up to 4096 numbers the reply is within
/// `InlineReplyBytesMax`.
pub const TEXTS_PER_CALL: usize = 1024;
/// Bytes of texts in one call that asks for their tokens: each may be a token, and the reply is to be
/// within `InlineReplyBytesMax` all the same.
pub const TOKENIZED_BYTES_PER_CALL: usize = 256 << 10;
/// Bytes of texts that count as one of [`TEXTS`] where their tokens are asked for, which take many times
/// as much: so they count among [`TEXTS_IN_FLIGHT`] also where the texts are few.
pub const TOKENIZED_BYTES_PER_TEXT: usize = 512;
/// Token ids that count as one of [`TEXTS`] where more are sent for a text: they take twice their body or
/// more, and again as much on their way over the bus. Those that do not count, as they are within the first
/// [`SMALL_TEXTS`], are 4 MiB in all of [`REQUESTS`], and 4 MiB on the bus; of those that wait they are 16 MiB
/// more.
pub const IDS_PER_TEXT: usize = 256;
/// Bytes that all requests which wait for their places take together.
pub const WAITING_BYTES: usize = 256 << 20;
/// Bytes of these that a text counts for which needs a place among [`TEXTS_IN_FLIGHT`], beside what was sent: it is
/// taken apart by then, and so are the token ids that count as a text.
pub const WAITING_TEXT_BYTES: usize = 1 << 10;
const _: () = assert!(IDS_PER_TEXT * size_of::<u32>() <= WAITING_TEXT_BYTES);
/// Bytes of a request's head, and of what is read of a connection at once. The memory for that may be half as large
/// again: 24 MiB with as many connections as there may be, for clients without the key as well.
pub const HEAD_BYTES: usize = 32 << 10;
/// Bytes of a request's body.
pub const BODY_BYTES: usize = 8 << 20;
/// Bytes of all bodies together that are read at once, but for how each begins.
pub const BODIES_BYTES: usize = 256 << 20;
/// Bytes that each body has beside that: 32 MiB with as many as there may be connections.
pub const SMALL_BODY_BYTES: usize = 64 << 10;
/// Bytes of all replies to such requests together that are not read yet. Those that find no room keep
/// their places among [`REQUESTS`] and [`TEXTS_IN_FLIGHT`] until they are read. With all that else is bounded
/// here, and [`NUMBERS`] in each request, it is within the unit's `MemoryMax`: what keeps its places is at
/// most some 1100 MiB of tokens, where each byte of [`TEXTS_IN_FLIGHT`] is one, bodies and requests
/// that wait are 544 MiB, and what is read at once of all connections is 24 MiB.
pub const REPLIES_BYTES: usize = 256 << 20;
/// Bytes of a reply of tokens, which are dozens for each byte that was sent: one that never found room would keep its
/// places for as long as it may be read.
pub const TOKENS_REPLY_BYTES: usize = 128 << 20;
/// How long a client may take to send a request's head.
pub const HEAD_TIME: Duration = Duration::from_secs(30);
/// How long a client may take to send a request's body.
pub const BODY_TIME: Duration = Duration::from_secs(30);
/// How long it may take where half of [`BODIES_BYTES`] is taken.
pub const SLOW_TIME: Duration = Duration::from_secs(2);
/// How long what is too large is taken from a client after its refusal, for it to read that.
pub const DISCARD_TIME: Duration = Duration::from_secs(5);
/// How a client has to take a reply: who reads a little now and then would else keep what it holds for
/// ever. The least rate is that of a line of 4 Mbit/s: 16,384 vectors of 384 numbers take 150 s there.
pub const REPLY_PACE: Pace = Pace { time: Duration::from_secs(30), bytes_per_s: 500_000 };
/// How long the service may take for a request that has its place: the deadline of its calls.
pub const ANSWER_TIME: Duration = Duration::from_secs(120);
/// How long a service that is full for now is left alone where it does not say how long, and the least.
pub const ROOM_PAUSE: Duration = Duration::from_secs(1);
pub const ROOM_PAUSE_MIN: Duration = Duration::from_millis(10);
/// How long the service may take to embed the trial text of `/ready`, and a bus to let the gateway in.
pub const READY_TIME: Duration = Duration::from_secs(10);
/// How long that text is waited for where batches of others are computed: balancers wait little longer for
/// an answer.
pub const TRIAL_TIME: Duration = Duration::from_secs(1);
/// How long a service that refuses the trial may take to compute a batch of others.
pub const BATCH_TIME: Duration = Duration::from_secs(5);
/// How often its batches are asked for.
pub const BATCH_PAUSE: Duration = Duration::from_millis(250);
/// How long the service may take to tell what it knows: less than Prometheus waits for a scrape by
/// itself, 10 s, and more than the service waits for drivers of devices, 4 s.
pub const TOLD_TIME: Duration = Duration::from_secs(5);
/// How long the service may take to tell the models that can be asked for. The bus may have to start it for that,
/// and waits 25 s.
pub const MODELS_TIME: Duration = Duration::from_secs(30);
/// How long after `/ready` was asked it is taken for somebody's watch.
pub const WATCH_TIME: Duration = Duration::from_secs(30);
/// How long whoever watches has to send requests elsewhere before connections are refused.
pub const LEAVE_TIME: Duration = Duration::from_secs(8);
/// How long requests in flight get to end when the gateway is told to.
pub const DRAIN_TIME: Duration = Duration::from_secs(20);
/// How long the refusals of those that take longer have to be sent.
pub const REFUSE_TIME: Duration = Duration::from_secs(2);
/// Bytes of a body or a reply from which on its memory is given back to the system.
pub const LARGE_BYTES: usize = 1 << 20;
/// How long after such a request, so that the next one may use it again.
pub const SPARE_TIME: Duration = Duration::from_secs(5);
/// Bytes of the API key.
pub const KEY_BYTES: usize = 4096;

const _: () = assert!(
    TEXTS_PER_CALL * 4096 * size_of::<f32>() <= op_dbus_api::INLINE_REPLY_BYTES_MAX as usize
);

// Two replies that are read slowly find room beside each other.
const _: () = assert!(2 * TOKENS_REPLY_BYTES <= REPLIES_BYTES);

// Whatever a body brings may be tokenized.
const _: () = assert!(BODY_BYTES / TOKENIZED_BYTES_PER_TEXT <= TEXTS);

// Whatever ids a body brings, of which each has a digit and a comma, may be embedded.
const _: () = assert!(BODY_BYTES / 2 / IDS_PER_TEXT <= TEXTS);
