//! OpenAI's route `/v1/embeddings`, with token ids or with texts.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
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
    let rows = out.len() / dimensions;
    let mut read = Answer { dimensions, out, there: vec![false; rows] };
    let mut json = serde_json::Deserializer::from_slice(body);
    (&mut read).deserialize(&mut json).map_err(Failure::unreadable)?;
    match read.there.iter().position(|there| !there) {
        Some(row) => {
            Err(Failure::nonsense(format_args!("it has no vector for row {row} of {rows}")))
        }
        None => Ok(()),
    }
}

/// An answer while it is read; of each object the keys that matter.
struct Answer<'a> {
    dimensions: usize,
    out: &'a mut [f32],
    there: Vec<bool>,
}

impl<'de> DeserializeSeed<'de> for &mut Answer<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut Answer<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `data`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "data" => map.next_value_seed(Data(&mut *self))?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// The list of vectors.
struct Data<'a, 'b>(&'a mut Answer<'b>);

impl<'de> DeserializeSeed<'de> for Data<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Data<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of vectors")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let (mut position, dimensions) = (0, self.0.dimensions);
        while let Some((index, vector)) = list.next_element_seed(Datum { dimensions })? {
            let row = index.unwrap_or(position);
            let place = self.0.out.chunks_exact_mut(dimensions).nth(row);
            let (Some(place), Some(there)) = (place, self.0.there.get_mut(row)) else {
                return Err(A::Error::custom(format_args!("it has a vector for row {row}")));
            };
            if std::mem::replace(there, true) {
                return Err(A::Error::custom(format_args!("it has two vectors for row {row}")));
            }
            place.copy_from_slice(&vector);
            position += 1;
        }
        Ok(())
    }
}

/// One vector, with the row that it is for, if that is said.
struct Datum {
    dimensions: usize,
}

impl<'de> DeserializeSeed<'de> for Datum {
    type Value = (Option<usize>, Vec<f32>);

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Datum {
    type Value = (Option<usize>, Vec<f32>);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `index` and `embedding`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let (mut index, mut vector) = (None, Vec::with_capacity(self.dimensions));
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "index" => index = Some(map.next_value()?),
                "embedding" => {
                    vector.clear();
                    map.next_value_seed(Vector { into: &mut vector, most: self.dimensions })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match vector.len() == self.dimensions {
            true => Ok((index, vector)),
            false => Err(A::Error::custom(format_args!(
                "it has a vector of {} dimensions, and the model's have {}",
                vector.len(),
                self.dimensions
            ))),
        }
    }
}

/// A vector as numbers, or as the bytes of 32-bit floats in base64.
struct Vector<'a> {
    into: &'a mut Vec<f32>,
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Vector<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Vector<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of numbers or base64")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let bytes =
            STANDARD.decode(text).map_err(|_| E::custom("it has a vector that is no base64"))?;
        if bytes.len() / 4 > self.most || bytes.len() % 4 != 0 {
            return Err(E::custom(format_args!("it has a vector of {} bytes", bytes.len())));
        }
        self.into.extend(floats(&bytes));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<(), A::Error> {
        Numbers::new(self.into, self.most).visit_seq(list)
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
            (r#"{"data":[{"index":0,"embedding":[1,2,3]}]}"#, "more than 2 numbers"),
            (r#"{"data":[{"index":0,"embedding":[1]}]}"#, "1 dimensions"),
            (r#"{"data":[{"index":0,"embedding":"AACAPw"}]}"#, "base64"),
            (r#"{"data":[{"index":0,"embedding":"AACAPwAAAEAAAABA"}]}"#, "12 bytes"),
            (r#"{"data":[{"index":0,"embedding":null}]}"#, "null"),
            (r#"{"data":[{"index":0}]}"#, "0 dimensions"),
            ("[]", "expected"),
            ("{}", "no vector"),
            ("", "EOF"),
        ] {
            let message = read(body).unwrap_err();
            assert!(message.contains(word), "{body}: {message}");
        }
    }
}
