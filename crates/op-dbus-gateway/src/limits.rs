//! Every bound of the gateway in one place.

use std::time::Duration;

use crate::pace::Pace;

/// The bounds.
pub struct Limits {
    /// Connections at once. For a further one the one that has been idle for longest is closed, or whose
    /// client has sent half of a request for longest; it waits while all have whole ones.
    pub connections: usize,
    /// How long none is accepted after the system had no room for one.
    pub accept_pause: Duration,
    /// How long nothing more is told in the log of connections that could not be accepted.
    pub told_pause: Duration,
    /// Requests that ask for work at once, until their replies are made.
    pub requests: usize,
    /// Texts of these requests together.
    pub texts_in_flight: usize,
    /// Texts in one request.
    pub texts: usize,
    /// Texts in one call on the bus: with vectors of up to 4096 numbers the reply is within
    /// `InlineReplyBytesMax`.
    pub texts_per_call: usize,
    /// Bytes of texts in one call that asks for their tokens: each may be a token, and the reply is to be
    /// within `InlineReplyBytesMax` all the same.
    pub tokenized_bytes_per_call: usize,
    /// Bytes of texts that count as one of `texts` where their tokens are asked for, which take many times
    /// as much.
    pub tokenized_bytes_per_text: usize,
    /// Token ids that count as one of `texts` where more are sent for a text: they take twice their body or
    /// more, and again as much on their way over the bus.
    pub ids_per_text: usize,
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Bytes of all bodies together that are read at once, but for how each begins.
    pub bodies_bytes: usize,
    /// Bytes that each body has beside that: 32 MiB with as many as there may be connections.
    pub small_body_bytes: usize,
    /// Bytes of all replies to such requests together that are not read yet. Those that find no room keep
    /// their places among `requests` and `texts_in_flight` until they are read. With all that else is bounded
    /// here, and vectors of 1024 numbers, it is within the unit's `MemoryMax`: what keeps its places is at
    /// most some 1100 MiB of tokens, where each byte of `texts_in_flight` is one, and bodies are 544 MiB.
    pub replies_bytes: usize,
    /// Bytes of a reply of tokens, which are dozens for each byte that was sent: one that never found room would keep its
    /// places for as long as it may be read.
    pub tokens_reply_bytes: usize,
    /// How long a client may take to send a request's head.
    pub head_time: Duration,
    /// How long a client may take to send a request's body.
    pub body_time: Duration,
    /// How long it may take where half of `bodies_bytes` is taken.
    pub slow_time: Duration,
    /// How long what is too large is taken from a client after its refusal, for it to read that.
    pub discard_time: Duration,
    /// How a client has to take a reply: who reads a little now and then would else keep what it holds for
    /// ever. The least rate is that of a line of 4 Mbit/s: 16,384 vectors of 384 numbers take 150 s there.
    pub reply_pace: Pace,
    /// How long the service may take for a request: the deadline of its calls.
    pub answer_time: Duration,
    /// How long the service may take to embed the trial text of `/ready`, and a bus to let the gateway in.
    pub ready_time: Duration,
    /// How long that text is waited for where batches of others are computed: balancers wait little longer for
    /// an answer.
    pub trial_time: Duration,
    /// How long a service that refuses the trial may take to compute a batch of others.
    pub batch_time: Duration,
    /// How often its batches are asked for.
    pub batch_pause: Duration,
    /// How long the service may take to tell what it knows: less than Prometheus waits for a scrape by
    /// itself, 10 s, and more than the service waits for drivers of devices, 4 s.
    pub told_time: Duration,
    /// How long after `/ready` was asked it is taken for somebody's watch.
    pub watch_time: Duration,
    /// How long whoever watches has to send requests elsewhere before connections are refused.
    pub leave_time: Duration,
    /// How long requests in flight get to end when the gateway is told to.
    pub drain_time: Duration,
    /// How long the refusals of those that take longer have to be sent.
    pub refuse_time: Duration,
    /// Bytes of a body or a reply from which on its memory is given back to the system.
    pub large_bytes: usize,
    /// How long after such a request, so that the next one may use it again.
    pub spare_time: Duration,
    /// Bytes of the API key.
    pub key_bytes: usize,
}

/// The bounds in force.
pub const LIMITS: Limits = Limits {
    connections: 512,
    accept_pause: Duration::from_millis(100),
    told_pause: Duration::from_secs(60),
    requests: 64,
    texts_in_flight: 32_768,
    texts: 16_384,
    texts_per_call: 1024,
    tokenized_bytes_per_call: 256 << 10,
    tokenized_bytes_per_text: 512,
    ids_per_text: 256,
    body_bytes: 8 << 20,
    bodies_bytes: 512 << 20,
    small_body_bytes: 64 << 10,
    replies_bytes: 256 << 20,
    tokens_reply_bytes: 128 << 20,
    head_time: Duration::from_secs(30),
    body_time: Duration::from_secs(30),
    slow_time: Duration::from_secs(2),
    discard_time: Duration::from_secs(5),
    reply_pace: Pace { time: Duration::from_secs(30), bytes_per_s: 500_000 },
    answer_time: Duration::from_secs(120),
    ready_time: Duration::from_secs(10),
    trial_time: Duration::from_secs(1),
    batch_time: Duration::from_secs(5),
    batch_pause: Duration::from_millis(250),
    told_time: Duration::from_secs(5),
    watch_time: Duration::from_secs(30),
    leave_time: Duration::from_secs(8),
    drain_time: Duration::from_secs(20),
    refuse_time: Duration::from_secs(2),
    large_bytes: 1 << 20,
    spare_time: Duration::from_secs(5),
    key_bytes: 4096,
};

const _: () = assert!(
    LIMITS.texts_per_call * 4096 * size_of::<f32>() <= op_dbus_api::INLINE_REPLY_BYTES_MAX as usize
);

// Two replies that are read slowly find room beside each other.
const _: () = assert!(2 * LIMITS.tokens_reply_bytes <= LIMITS.replies_bytes);

// Whatever a body brings may be tokenized.
const _: () = assert!(LIMITS.body_bytes / LIMITS.tokenized_bytes_per_text <= LIMITS.texts);

// Whatever ids a body brings, of which each has a digit and a comma, may be embedded.
const _: () = assert!(LIMITS.body_bytes / 2 / LIMITS.ids_per_text <= LIMITS.texts);
