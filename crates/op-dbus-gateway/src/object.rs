//! JSON objects: what serde derives takes an array of its fields as well.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// What a client must write as an object.
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

struct Fields<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(fields))
    }
}

#[cfg(test)]
mod tests {
    use crate::fuzz::said_to_post;

    #[test]
    fn an_array_is_no_object() {
        let sentences = r#"{"source_sentence": "a", "sentences": ["b"]}"#;
        let similarity =
            |inputs, parameters| format!(r#"{{"inputs": {inputs}, "parameters": {parameters}}}"#);
        let taken = [
            ("/v1/embeddings", r#"{"input": "a", "model": null}"#.to_owned()),
            ("/embed", r#"{"inputs": ["a"]}"#.to_owned()),
            // As Hugging Face's clients send it.
            ("/", r#"{"inputs": "a", "options": {"wait_for_model": true, "x": [1]}}"#.to_owned()),
            ("/similarity", format!(r#"{{"inputs": {sentences}}}"#)),
            ("/similarity", similarity(sentences, r#"{"truncate": false}"#)),
            // As in text-embeddings-inference.
            ("/similarity", similarity(sentences, "null")),
            ("/rerank", r#"{"query": "a", "texts": ["b"]}"#.to_owned()),
            ("/tokenize", r#"{"inputs": "a"}"#.to_owned()),
            ("/add", r#"{"text": "a"}"#.to_owned()),
        ];
        for (path, body) in taken {
            let said = said_to_post(path, "", &body);
            // There is no service: nothing is wrong with the request.
            assert!(said.starts_with("HTTP/1.1 503 "), "{path} {body}: {said}");
        }
        let refused = [
            ("/v1/embeddings", r#"["a", "default", "base64", null, null]"#.to_owned()),
            ("/embed", r#"["a", null, null, "Right", null, null]"#.to_owned()),
            ("/embed", r#"{"inputs": "a", "options": [true]}"#.to_owned()),
            ("/similarity", r#"[["a", ["b"]], [null, "Right", null]]"#.to_owned()),
            ("/similarity", similarity(r#"["a", ["b"]]"#, "{}")),
            ("/similarity", similarity(sentences, r#"[null, "Right", null]"#)),
            ("/rerank", r#"["a", ["b"], null, "Right", false, false]"#.to_owned()),
            ("/tokenize", r#"["a", null, null]"#.to_owned()),
            ("/add", r#"["a"]"#.to_owned()),
        ];
        for (path, body) in refused {
            let said = said_to_post(path, "", &body);
            assert!(said.starts_with("HTTP/1.1 400 "), "{path} {body}: {said}");
            assert!(said.contains("expected a JSON object at line 1"), "{path} {body}: {said}");
        }
    }

    #[test]
    fn a_mistake_within_says_where_it_is() {
        let said = said_to_post("/add", "", "{\n\"txet\": 1}");
        assert!(
            said.contains("unknown field `txet`, expected `text` at line 2 column 6"),
            "{said}"
        );
        let said = said_to_post("/similarity", "", r#"{"inputs": {"source_sentence": "a"}}"#);
        assert!(said.contains("missing field `sentences` at line 1 column 35"), "{said}");
    }
}
