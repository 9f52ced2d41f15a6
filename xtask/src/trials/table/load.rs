//! Load that is held.

use super::{Clock, How, Trial};

pub const TRIALS: &[Trial] = &[
    Trial {
        number: "T1",
        name: "tiny-calls",
        promise: "1,000,000 tiny calls of 32 pipelining clients are answered, each once, with its own \
                  vector",
        bar: "0 lost, 0 doubled, 0 of another text; resident memory grows by 20 MiB at most after the \
              first 10,000",
        how: How::Program(Clock::Counts),
        rest: "",
    },
    Trial {
        number: "T2",
        name: "soak",
        promise: "memory and descriptors stay on a plateau while texts of 1 to 512 words come for \
                  25,000 s and a client is killed every second; each text keeps its vector",
        bar: "resident memory of the daemon and its workers grows by 100 MiB at most after the \
              warm-up, descriptors by 0; 0 vectors other than the first of their text",
        how: How::Program(Clock::Timed),
        rest: "device memory; more than 128 tokens in a row: of level `low` a longer text is embedded in \
               pieces; batches of more than 512; that the figure's run read more than 128 tokens of a text, \
               and compared vectors, which later ones do",
    },
    Trial {
        number: "T3",
        name: "crowd",
        promise: "200 clients of four users keep 5,000 texts in flight; none is lost, and the queue \
                  never holds more than it may",
        bar: "0 failed but by `Overloaded` or `QuotaExceeded` with a hint when to come back; tokens in \
              flight within `queue_tokens_max` whenever they were read",
        how: How::Program(Clock::Counts),
        rest: "",
    },
    Trial {
        number: "T4",
        name: "bulk-beside",
        promise: "a full queue of bulk texts (100,000) leaves an interactive caller its latency",
        bar: "its p99 is 3 times the idle p99 at most; bulk loses 10 % of its throughput at most; the queue \
              is half full at least when the caller comes and when it leaves",
        how: How::Program(Clock::Timed),
        rest: "other engines than the native one have no worker in reserve, and there a batch of bulk that \
               has begun is waited for",
    },
    Trial {
        number: "T5",
        name: "burst",
        promise: "ten times the capacity for a minute is refused fast, and forgotten fast",
        bar: "ten times the capacity offered at least; every refusal within 50 ms; normal latency within 5 s of \
              the end: 20 calls in a row, each within 3 times the idle p99",
        how: How::Program(Clock::Timed),
        rest: "with `queue_tokens_max` at two seconds of work; the default holds what the longest \
               queue takes",
    },
    Trial {
        number: "T6",
        name: "large-job",
        promise: "1,000,000 lines through `op-dbus embed --npy` are bounded by chunks, not by their number",
        bar: "command, daemon, worker and the memfds between them take 200 MB at most beyond what was \
              taken before, and less than the vectors alone; each row is there once and in its place",
        how: How::Program(Clock::Counts),
        rest: "what a model itself takes for a batch: vectors are simulated",
    },
];
