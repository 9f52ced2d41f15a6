//! OpenAI's route `/v1/embeddings`, with token ids or with texts.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};

use crate::failure::Failure;
use crate::numbers::Numbers;
use crate::texts::Sent;

/// Where an endpoint takes batches.
pub fn url(endpoint: &str) -> String {
    let base = endpoint.strip_suffix("/v1").unwrap_or(endpoint);
    format!("{base}/v1/embeddings")
}

/// A request for the vectors of a batch.
///
/// # Errors
/// The request can't be written.
pub fn request(model: &str, sent: &Sent<'_>) -> Result<Vec<u8>, Failure> {
    #[derive(serde::Serialize)]
    struct Request<'a> {
        model: &'a str,
        input: Rows<'a>,
        encoding_format: &'static str,
    }
    let request = Request { model, input: Rows(sent), encoding_format: "base64" };
    serde_json::to_vec(&request).map_err(Failure::unwritable)
}

/// The texts, or the token ids of each.
struct Rows<'a>(&'a Sent<'a>);

impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Some(texts) = self.0.texts {
            return texts.serialize(serializer);
        }
        let batch = &self.0.batch;
        let mut rows = serializer.serialize_seq(Some(batch.rows()))?;
        batch.texts().try_for_each(|ids| rows.serialize_element(ids))?;
        rows.end()
    }
}

/// Reads an answer into `out`, `[rows, dimensions]`.
///
/// # Errors
/// It is not the answer to a request of so many rows.
pub fn answer(body: &[u8], dimensions: usize, out: &mut [f32]) -> Result<(), Failure> {
    let answer: Answer = serde_json::from_slice(body).map_err(Failure::unreadable)?;
    let rows = out.len() / dimensions;
    let mut there = vec![false; rows];
    for (position, Datum { index, embedding: Vector(vector) }) in answer.data.iter().enumerate() {
        let row = index.unwrap_or(position);
        let Some(there) = there.get_mut(row) else {
            return Err(Failure::nonsense(format_args!("it has a vector for row {row}")));
        };
        if std::mem::replace(there, true) {
            return Err(Failure::nonsense(format_args!("it has two vectors for row {row}")));
        }
        if vector.len() != dimensions {
            return Err(Failure::nonsense(format_args!(
                "it has a vector of {} dimensions, and the model's have {dimensions}",
                vector.len()
            )));
        }
        out[row * dimensions..][..dimensions].copy_from_slice(vector);
    }
    match there.iter().position(|there| !there) {
        Some(row) => {
            Err(Failure::nonsense(format_args!("it has no vector for row {row} of {rows}")))
        }
        None => Ok(()),
    }
}

/// An answer, of which the length bounds what is in it.
#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    data: Vec<Datum>,
}

/// One vector, with the row that it is for, if that is said.
#[derive(serde::Deserialize)]
struct Datum {
    index: Option<usize>,
    embedding: Vector,
}

/// A vector as numbers, or as the bytes of 32-bit floats in base64.
struct Vector(Vec<f32>);

impl<'de> Deserialize<'de> for Vector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either).map(Self)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Vec<f32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers or base64")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<f32>, E> {
        match STANDARD.decode(text) {
            Ok(bytes) if bytes.len() % 4 == 0 => Ok(floats(&bytes).collect()),
            Ok(bytes) => Err(E::custom(format_args!("it has a vector of {} bytes", bytes.len()))),
            Err(_) => Err(E::custom("it has a vector that is no base64")),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<f32>, A::Error> {
        let mut numbers = Vec::new();
        Numbers::new(&mut numbers).visit_seq(list)?;
        Ok(numbers)
    }
}

/// 32-bit floats of little-endian bytes.
pub fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().map(|number| f32::from_le_bytes(*number))
}

#[cfg(test)]
mod tests {
    use op_dbus_engine::Batch;

    use super::*;

    fn read(body: &str) -> Result<[f32; 4], String> {
        let mut out = [f32::NAN; 4];
        answer(body.as_bytes(), 2, &mut out).map(|()| out).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_batch_is_lists_of_token_ids_or_texts() {
        let written = |sent| String::from_utf8(request("m", &sent).unwrap()).unwrap();
        let batch = Batch { ids: &[101, 7, 102, 101, 102], lengths: &[3, 2] };
        let ids = r#"{"model":"m","input":[[101,7,102],[101,102]],"encoding_format":"base64"}"#;
        assert_eq!(written(Sent { batch, texts: None }), ids);
        let texts = &["a \"b\"".to_owned(), String::new()];
        let expected = r#"{"model":"m","input":["a \"b\"",""],"encoding_format":"base64"}"#;
        assert_eq!(written(Sent { batch, texts: Some(texts) }), expected);
        assert_eq!(url("https://h"), "https://h/v1/embeddings");
        assert_eq!(url("https://h/v1"), "https://h/v1/embeddings");
    }

    #[test]
    fn vectors_go_where_their_index_says_in_either_form() {
        let body = r#"{"object":"list","data":[{"index":1,"embedding":[3,4.5]},
            {"embedding":"AACAPwAAAEA=","index":0}],"usage":{"total_tokens":2}}"#;
        assert_eq!(read(body), Ok([1.0, 2.0, 3.0, 4.5]));
    }

    #[test]
    fn answers_that_are_none_are_refused() {
        for (body, word) in [
            (r#"{"data":[{"index":0,"embedding":[1,2]}]}"#, "no vector for row 1"),
            (r#"{"data":[{"index":7,"embedding":[1,2]}]}"#, "a vector for row 7"),
            (r#"{"data":[{"index":0,"embedding":[1,2]},{"index":0,"embedding":[1,2]}]}"#, "two"),
            (r#"{"data":[{"index":0,"embedding":[1,2,3]}]}"#, "3 dimensions"),
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 dimensions"),
            (r#"{"data":[{"index":0,"embedding":"AACAPw"}]}"#, "base64"),
            (r#"{"data":[{"index":0,"embedding":"AACAPwAAAEAAAABA"}]}"#, "3 dimensions"),
            (r#"{"data":[{"index":0,"embedding":"AACAPwAA"}]}"#, "6 bytes"),
            (r#"{"data":[{"index":0,"embedding":null}]}"#, "null"),
            (r#"{"data":[{"index":0}]}"#, "`embedding`"),
            ("7", "expected"),
            ("{}", "no vector"),
            ("", "EOF"),
        ] {
            let message = read(body).unwrap_err();
            assert!(message.contains(word), "{body}: {message}");
        }
    }
}
