//! What is sent, and what of the answers is believed.

use op_dbus_engine::foreign::Pooling;

use super::*;

const SHAPE: Shape = Shape { dimensions: 2, pooling: Pooling::Mean, normalize: false };
const BATCH: Batch<'_> = Batch { ids: &[1, 2, 3], lengths: &[2, 1] };
const COMPILED: &str = r#"{"name":"m","platform":"onnxruntime","inputs":[
    {"name":"input_ids","datatype":"INT32","shape":[-1,-1]},
    {"name":"lengths","datatype":"INT32","shape":[-1]}],
    "outputs":[{"name":"embedding","datatype":"FP32","shape":[-1,2]}]}"#;
const TOKENS: &str = r#"{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[-1,-1]},
    {"name":"attention_mask","datatype":"INT64","shape":[-1,-1]}],
    "outputs":[{"name":"last_hidden_state","datatype":"FP32","shape":[-1,-1,2]}]}"#;

fn feed(metadata: &str) -> Feed {
    Feed::read(metadata.as_bytes(), 2).unwrap()
}

fn json(body: &str) -> Message {
    Message { body: body.as_bytes().to_vec(), json_bytes: None }
}

fn answered(feed: &Feed, message: &Message) -> Result<[f32; 4], String> {
    let mut out = [f32::NAN; 4];
    let read = feed.answer(message, (BATCH.lengths, &SHAPE), &mut out);
    read.map(|()| out).map_err(|failure| failure.to_string())
}

#[test]
fn a_compiled_graph_is_asked_in_json() {
    let request = feed(COMPILED).request(&BATCH, false).unwrap();
    let expected = concat!(
        r#"{"inputs":[{"name":"input_ids","shape":[2,2],"datatype":"INT32","data":[1,2,3,0]},"#,
        r#"{"name":"lengths","shape":[2],"datatype":"INT32","data":[2,1]}],"#,
        r#""outputs":[{"name":"embedding"}]}"#
    );
    assert_eq!(String::from_utf8(request.body).unwrap(), expected);
    assert_eq!(request.json_bytes, None);
}

#[test]
fn tensors_travel_as_bytes_behind_the_json() {
    let request = feed(COMPILED).request(&BATCH, true).unwrap();
    let (json, bytes) = request.body.split_at(request.json_bytes.unwrap());
    let json = String::from_utf8(json.to_vec()).unwrap();
    assert!(json.contains(r#""parameters":{"binary_data_size":16}"#), "{json}");
    assert!(json.contains(r#"{"binary_data":true}"#) && !json.contains("\"data\""), "{json}");
    assert_eq!(bytes.len(), 24);
    assert_eq!(bytes[..5], [1, 0, 0, 0, 2]);
    assert!(is_binary(br#"{"name":"s","extensions":["other","binary_tensor_data"]}"#));
    assert!(!is_binary(br#"{"name":"s"}"#) && !is_binary(b"no JSON"));
}

#[test]
fn vectors_are_read_in_every_form() {
    let mut feed = feed(COMPILED);
    feed.request(&BATCH, false).unwrap();
    let head = r#"{"outputs":[{"name":"embedding","shape":[2,2],"datatype":"FP32""#;
    for data in ["[1,2,3,4]", "[[1,2],[3.0,4e0]]"] {
        let found = answered(&feed, &json(&format!(r#"{head},"data":{data}}}]}}"#)));
        assert_eq!(found, Ok([1.0, 2.0, 3.0, 4.0]), "{data}");
    }
    let mut body = format!(r#"{head},"parameters":{{"binary_data_size":16}}}}]}}"#).into_bytes();
    let json_bytes = Some(body.len());
    body.extend([1.0_f32, 2.0, 3.0, 4.0].iter().flat_map(|number| number.to_le_bytes()));
    assert_eq!(answered(&feed, &Message { body, json_bytes }), Ok([1.0, 2.0, 3.0, 4.0]));
}

#[test]
fn vectors_of_tokens_are_pooled() {
    let mut feed = feed(TOKENS);
    let request = feed.request(&BATCH, false).unwrap();
    let request = String::from_utf8(request.body).unwrap();
    assert!(request.contains(r#""datatype":"INT64","data":[1,1,1,0]"#), "{request}");
    let body = r#"{"outputs":[{"name":"last_hidden_state","shape":[2,2,2],"datatype":"FP32",
        "data":[1,2,3,4,5,6,99,99]}]}"#;
    assert_eq!(answered(&feed, &json(body)), Ok([2.0, 3.0, 5.0, 6.0]));
}

#[test]
fn answers_that_are_none_are_refused() {
    let mut feed = feed(COMPILED);
    feed.request(&BATCH, false).unwrap();
    let with = |shape: &str, datatype: &str, rest: &str| {
        json(&format!(
            r#"{{"outputs":[{{"name":"embedding","shape":{shape},"datatype":"{datatype}"{rest}}}]}}"#
        ))
    };
    for (message, word) in [
        (json(""), "EOF"),
        (json(r#"{"outputs":[]}"#), "no output embedding"),
        (with("[2,3]", "FP32", r#","data":[1,2,3,4]"#), "[2, 3]"),
        (with("[2,2]", "FP16", r#","data":[1,2,3,4]"#), "FP16"),
        (with("[2,2]", "FP32", r#","data":[1,2,3]"#), "3 numbers"),
        (with("[2,2]", "FP32", r#","data":[1,2,3,4,5]"#), "5 numbers"),
        (with("[2,2]", "FP32", r#","data":[1,2,3,NaN]"#), "expected"),
        (with("[2,2]", "FP32", ""), "0 numbers"),
    ] {
        let failure = answered(&feed, &message).unwrap_err();
        assert!(failure.contains(word), "{failure}");
    }
    let beyond = Message { body: b"{}".to_vec(), json_bytes: Some(usize::MAX) };
    assert!(answered(&feed, &beyond).unwrap_err().contains("longer than all"));
}

#[test]
fn models_that_cannot_be_fed_are_told() {
    let told = |metadata: &str| Feed::read(metadata.as_bytes(), 2).unwrap_err().to_string();
    assert!(told(&COMPILED.replace("lengths", "text")).contains("an input text"));
    assert!(told(&COMPILED.replace("input_ids", "lengths")).contains("texts are not sent"));
    assert!(told(&COMPILED.replace("INT32", "BYTES")).contains("BYTES"));
    assert!(told(&COMPILED.replace("[-1,2]", "[-1,3]")).contains("embedding (FP32 [-1, 3])"));
}
