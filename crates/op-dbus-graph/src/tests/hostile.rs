//! Random and damaged files: an error, never a panic, never memory that the file does not have.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use prost::Message;

use super::exported::export;
use super::tiny::{self, Tiny};
use crate::export::onnx_to_safetensors;
use crate::inspect::inspect;
use crate::{Error, Family};

/// One thing that can happen to a file.
#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (any::<Index>(), 1u8..).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        any::<Index>().prop_map(Damage::Cut),
        (any::<Index>(), vec(any::<u8>(), 1..9)).prop_map(|(at, new)| Damage::Insert(at, new)),
        (any::<Index>(), 1usize..9).prop_map(|(at, count)| Damage::Remove(at, count)),
    ]
}

/// Most damage goes to the first `head` bytes, where the structure is.
fn apply(bytes: &mut Vec<u8>, head: usize, damages: &[Damage]) {
    for damage in damages {
        let length = bytes.len().min(head).max(1);
        match damage {
            _ if bytes.is_empty() => return,
            Damage::Flip(at, mask) => bytes[at.index(length)] ^= mask,
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Insert(at, new) => {
                let at = at.index(length);
                bytes.splice(at..at, new.iter().copied());
            }
            Damage::Remove(at, count) => {
                let at = at.index(length);
                let end = (at + count).min(bytes.len());
                bytes.drain(at..end);
            }
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_refused(bytes in vec(any::<u8>(), 0..400)) {
        prop_assert!(Tiny::new(Family::Bert).compile_weights(&bytes).is_err());
        prop_assert!(onnx_to_safetensors(&bytes).is_err());
        let _ = inspect(&bytes);
    }

    #[test]
    fn damaged_weights_do_no_harm(damages in vec(damage(), 1..4), everywhere: bool) {
        for model in Tiny::all() {
            let mut bytes = tiny::safetensors(&model.tensors);
            let head = if everywhere { bytes.len() } else { 4000 };
            apply(&mut bytes, head, &damages);
            if let Ok(onnx) = model.compile_weights(&bytes) {
                prop_assert!(inspect(&onnx).is_ok());
            }
        }
    }

    #[test]
    fn damaged_weights_of_a_module_do_no_harm(damages in vec(damage(), 1..4)) {
        let model = Tiny::new(Family::Bert).with_dense(&[(3, "Tanh")]);
        let mut bytes = tiny::safetensors(&model.dense[0].1);
        let head = bytes.len();
        apply(&mut bytes, head, &damages);
        if let Ok(onnx) = model.compile_dense(&bytes) {
            prop_assert!(inspect(&onnx).is_ok());
        }
    }

    #[test]
    fn damaged_exports_do_no_harm(damages in vec(damage(), 1..4)) {
        let mut bytes = export(&tiny::bert()).encode_to_vec();
        let head = bytes.len();
        apply(&mut bytes, head, &damages);
        let _ = inspect(&bytes);
        if let Ok(weights) = onnx_to_safetensors(&bytes) {
            let _ = Tiny::new(Family::Bert).compile_weights(&weights);
        }
    }

    #[test]
    fn a_damaged_configuration_does_no_harm(
        key in 0usize..8,
        value in prop_oneof![
            any::<i64>().prop_map(serde_json::Value::from),
            any::<f64>().prop_map(serde_json::Value::from),
            ".{0,9}".prop_map(serde_json::Value::from),
            Just(serde_json::Value::Null),
        ],
    ) {
        for mut model in Tiny::all() {
            let keys: Vec<String> = model.config.as_object().unwrap().keys().cloned().collect();
            model.config[&keys[key]] = value.clone();
            let _ = model.compile();
        }
        let mut model = Tiny::new(Family::Bert).with_dense(&[(3, "Tanh")]);
        let keys: Vec<String> = model.dense[0].0.as_object().unwrap().keys().cloned().collect();
        model.dense[0].0[&keys[key % keys.len()]] = value;
        let _ = model.compile();
    }
}

#[test]
fn weights_cut_short_anywhere_are_refused() {
    let whole = tiny::safetensors(&tiny::bert());
    for length in (0..whole.len()).step_by(7) {
        assert!(Tiny::new(Family::Bert).compile_weights(&whole[..length]).is_err(), "{length}");
    }
}

/// A safetensors file with this header and `data` zeros.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn impossible_headers_are_refused() {
    let headers = [
        r#"{"big":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]}}"#,
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
        r#"{"gap":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
        r#"{"back":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
        r#"{"minus":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#,
        r#"{"far":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}}"#,
        r#"{"few":{"dtype":"F32","shape":[200],"data_offsets":[0,12]}}"#,
    ];
    for header in headers {
        let error = Tiny::new(Family::Bert).compile_weights(&with_header(header, 12)).unwrap_err();
        assert!(matches!(error, Error::Safetensors(_)), "{header}: {error}");
    }
}

#[test]
fn a_header_longer_than_the_file_is_refused() {
    for length in [0, 9, u64::MAX, 1 << 40] {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}");
        assert!(Tiny::new(Family::Bert).compile_weights(&bytes).is_err(), "{length}");
    }
}
