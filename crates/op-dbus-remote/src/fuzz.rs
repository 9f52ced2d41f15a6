//! What the fuzzer of `tests/fuzz` drives here: answers of servers that nobody has to believe.

use op_dbus_engine::Batch;
use op_dbus_engine::foreign::Pooling;
use prost::Message as _;

use crate::Shape;
use crate::failure::Failure;
use crate::http::Message;
use crate::oip::{Feed, Metadata, rest, rpc};
use crate::openai;
use crate::texts::Sent;

/// A name, and what has to survive any bytes, which tells whether it understood them.
pub type Driven = (&'static str, fn(&[u8]) -> bool);

/// All that is driven here.
pub const TARGETS: &[Driven] = &[
    ("answers-openai", answers_openai),
    ("answers-oip", answers_oip),
    ("answers-grpc", answers_grpc),
];

const ROWS: usize = 2;
const SHAPE: Shape =
    Shape { dimensions: 2, pooling: Pooling::Mean, normalize: true, max_input_tokens: 16 };
const BATCH: Batch<'_> = Batch { ids: &[5, 6, 7], lengths: &[2, 1] };
const WORDS: &[String] = &[String::new(), String::new()];

/// The body of an answer of `/v1/embeddings`.
fn answers_openai(bytes: &[u8]) -> bool {
    tell(openai::answer(bytes, SHAPE.dimensions, &mut [f32::NAN; ROWS * SHAPE.dimensions]))
}

/// What a server tells of its model, a NUL, and the body of its answer; behind the second NUL are tensors
/// as bytes.
fn answers_oip(bytes: &[u8]) -> bool {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let (metadata, body) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let json_bytes = body.iter().position(|byte| *byte == 0);
    let mut body = body.to_vec();
    if let Some(at) = json_bytes {
        body.remove(at);
    }
    let answer = Message { body, json_bytes };
    let mut understood = false;
    for texts in [None, Some(WORDS)] {
        let ask = |out: &mut [f32]| {
            let mut feed = Feed::new(rest::metadata(metadata)?, texts.is_some(), SHAPE.dimensions)?;
            let sent = Sent { batch: BATCH, texts };
            let request = rest::request(&mut feed, &sent, json_bytes.is_some())?;
            assert!(request.json_bytes.is_none_or(|length| length <= request.body.len()));
            rest::answer(&feed, &answer, (BATCH.lengths, &SHAPE), out)
        };
        understood |= tell(ask(&mut [f32::NAN; ROWS * SHAPE.dimensions]));
    }
    understood
}

/// The same over gRPC: two messages, the first behind its length.
fn answers_grpc(bytes: &[u8]) -> bool {
    let Some((length, messages)) = bytes.split_first() else { return false };
    let Some((told, answer)) = messages.split_at_checked(usize::from(*length)) else {
        return false;
    };
    let mut understood = false;
    for texts in [None, Some(WORDS)] {
        let metadata = Metadata::decode(told);
        let (Ok(metadata), Ok(answer)) = (metadata, rpc::InferResponse::decode(answer)) else {
            return false;
        };
        let ask = |out: &mut [f32]| {
            let mut feed = Feed::new(metadata, texts.is_some(), SHAPE.dimensions)?;
            let request = rpc::request(&mut feed, "m", &Sent { batch: BATCH, texts });
            assert!(request.encoded_len() > 0);
            rpc::answer(&feed, answer, (BATCH.lengths, &SHAPE), out)
        };
        understood |= tell(ask(&mut [f32::NAN; ROWS * SHAPE.dimensions]));
    }
    understood
}

/// Whether all went well; what is told of a failure is one line of bounded length.
fn tell(result: Result<(), Failure>) -> bool {
    let Err(failure) = result else { return true };
    let told = failure.to_string();
    assert!(told.chars().count() <= 400 && !told.contains(char::is_control), "{told:?}");
    false
}

#[cfg(test)]
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
