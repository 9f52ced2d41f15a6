//! What is sent, and what of the answers is believed.

use op_dbus_engine::Batch;
use op_dbus_engine::foreign::Pooling;
use prost::Message as _;

use super::*;
use crate::http::Message;

const SHAPE: Shape =
    Shape { dimensions: 2, pooling: Pooling::Mean, normalize: false, max_input_tokens: 16 };
const BATCH: Batch<'_> = Batch { ids: &[1, 2, 3], lengths: &[2, 1] };
const COMPILED: &str = r#"{"name":"m","platform":"onnxruntime","inputs":[
    {"name":"input_ids","datatype":"INT32","shape":[-1,-1]},
    {"name":"lengths","datatype":"INT32","shape":[-1]}],
    "outputs":[{"name":"embedding","datatype":"FP32","shape":[-1,2]}]}"#;
const TOKENS: &str = r#"{"inputs":[{"name":"input_ids","datatype":"INT64","shape":[-1,-1]},
    {"name":"attention_mask","datatype":"INT64","shape":[-1,-1]}],
    "outputs":[{"name":"last_hidden_state","datatype":"FP32","shape":[-1,-1,2]}]}"#;

/// The same for texts.
const TEXTS: &str = r#"{"inputs":[{"name":"text","datatype":"BYTES","shape":[-1,1]}],
    "outputs":[{"name":"embedding","datatype":"FP32","shape":[-1,2]}]}"#;

fn told(metadata: &str, texts: bool) -> Result<Feed, Failure> {
    Feed::new(rest::metadata(metadata.as_bytes())?, texts, 2)
}

fn feed(metadata: &str) -> Feed {
    told(metadata, metadata == TEXTS).unwrap()
}

fn sent() -> Sent<'static> {
    Sent { batch: BATCH, texts: None }
}

fn json(body: &str) -> Message {
    Message { body: body.as_bytes().to_vec(), json_bytes: None }
}

fn answered(feed: &Feed, message: &Message) -> Result<[f32; 4], String> {
    let mut out = [f32::NAN; 4];
    let read = rest::answer(feed, message, (BATCH.lengths, &SHAPE), &mut out);
    read.map(|()| out).map_err(|failure| failure.to_string())
}

#[test]
fn a_compiled_graph_is_asked_in_json() {
    let request = rest::request(&mut feed(COMPILED), &sent(), false).unwrap();
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
    let request = rest::request(&mut feed(COMPILED), &sent(), true).unwrap();
    let (json, bytes) = request.body.split_at(request.json_bytes.unwrap());
    let json = String::from_utf8(json.to_vec()).unwrap();
    assert!(json.contains(r#""parameters":{"binary_data_size":16}"#), "{json}");
    assert!(json.contains(r#"{"binary_data":true}"#) && !json.contains("\"data\""), "{json}");
    assert_eq!(bytes.len(), 24);
    assert_eq!(bytes[..5], [1, 0, 0, 0, 2]);
    assert!(rest::is_binary(br#"{"name":"s","extensions":["other","binary_tensor_data"]}"#));
    assert!(!rest::is_binary(br#"{"name":"s"}"#) && !rest::is_binary(b"no JSON"));
}

#[test]
fn texts_are_strings_or_bytes_behind_their_length() {
    let texts = ["a \"b\"".to_owned(), "é".to_owned()];
    let sent = Sent { batch: BATCH, texts: Some(&texts) };
    let request = rest::request(&mut feed(TEXTS), &sent, false).unwrap();
    let json = String::from_utf8(request.body).unwrap();
    let tensor = r#"{"name":"text","shape":[2,1],"datatype":"BYTES","data":["a \"b\"","é"]}"#;
    assert!(json.contains(tensor), "{json}");
    let request = rest::request(&mut feed(TEXTS), &sent, true).unwrap();
    let (json, bytes) = request.body.split_at(request.json_bytes.unwrap());
    assert!(String::from_utf8_lossy(json).contains(r#""binary_data_size":15"#));
    let expected = [&[5, 0, 0, 0][..], b"a \"b\"", &[2, 0, 0, 0], "é".as_bytes()].concat();
    assert_eq!(bytes, expected);
    let request = rpc::request(&mut feed(TEXTS), "m", &sent).encode_to_vec();
    assert!(request.windows(expected.len()).any(|part| part == expected));
}

/// Numbers of fields and their types, as the protocol has them on the wire.
#[test]
fn a_batch_over_grpc_is_written_as_the_protocol_says() {
    let mut feed = feed(COMPILED);
    let request = rpc::request(&mut feed, "m", &sent()).encode_to_vec();
    let text = |tag: u8, text: &str| [&[tag << 3 | 2, text.len() as u8], text.as_bytes()].concat();
    let part = |tag: u8, part: Vec<u8>| [vec![tag << 3 | 2, part.len() as u8], part].concat();
    let shape = |sides: &[u8]| part(3, sides.to_vec());
    let input =
        |name, sides: &[u8]| part(5, [text(1, name), text(2, "INT32"), shape(sides)].concat());
    let raw = |ids: &[i32]| part(7, ids.iter().flat_map(|id| id.to_le_bytes()).collect());
    let expected = [
        text(1, "m"),
        input("input_ids", &[2, 2]),
        input("lengths", &[2]),
        part(6, text(1, "embedding")),
        raw(&[1, 2, 3, 0]),
        raw(&[2, 1]),
    ];
    assert_eq!(request, expected.concat());
    let numbers = [1.0_f32, 2.0, 3.0, 4.0].map(f32::to_le_bytes).concat();
    let output = |more: Vec<u8>| {
        let known = [text(1, "embedding"), text(2, "FP32"), shape(&[2, 2]), more].concat();
        [text(1, "m"), text(2, "1"), part(5, known)].concat()
    };
    let read = |answer: Vec<u8>| {
        let mut out = [f32::NAN; 4];
        let answer = rpc::InferResponse::decode(&answer[..]).map_err(|error| error.to_string())?;
        let read = rpc::answer(&feed, answer, (BATCH.lengths, &SHAPE), &mut out);
        read.map(|()| out).map_err(|failure| failure.to_string())
    };
    let raw = |bytes: &[u8]| [output(Vec::new()), part(6, bytes.to_vec())].concat();
    assert_eq!(read(raw(&numbers)), Ok([1.0, 2.0, 3.0, 4.0]));
    let contents = part(5, part(6, numbers.clone()));
    assert_eq!(read(output(contents)), Ok([1.0, 2.0, 3.0, 4.0]));
    assert!(read(raw(&numbers[..12])).unwrap_err().contains("12 bytes"));
    assert!(read(output(Vec::new())).unwrap_err().contains("0 numbers"));
    assert!(read(text(1, "m")).unwrap_err().contains("no output embedding"));
}

#[test]
fn vectors_are_read_in_every_form() {
    let mut feed = feed(COMPILED);
    rest::request(&mut feed, &sent(), false).unwrap();
    let head = r#"{"outputs":[{"name":"embedding","shape":[2,2],"datatype":"FP32""#;
    for data in ["[1,2,3,4]", "[[1,2],[3.0,4e0]]"] {
        let found = answered(&feed, &json(&format!(r#"{head},"data":{data}}}]}}"#)));
        assert_eq!(found, Ok([1.0, 2.0, 3.0, 4.0]), "{data}");
    }
}

/// As KServe and MLServer write what they leave out.
#[test]
fn null_is_as_if_it_were_not_there() {
    let metadata = COMPILED.replace("[-1]", "null").replace("\"m\"", "null");
    let mut feed = feed(&metadata);
    rest::request(&mut feed, &sent(), false).unwrap();
    for parameters in ["null", "{}", r#"{"binary_data_size":null,"content_type":null}"#] {
        let found = answered(
            &feed,
            &json(&format!(
                r#"{{"model_version":null,"id":null,"parameters":null,"outputs":[{{
                "name":"embedding","shape":[2,2],"datatype":"FP32","parameters":{parameters},
                "data":[1,2,3,4]}}]}}"#
            )),
        );
        assert_eq!(found, Ok([1.0, 2.0, 3.0, 4.0]), "{parameters}");
    }
    assert!(!rest::is_binary(br#"{"name":"s","extensions":null}"#));
}

/// As the answer says, whatever else a server adds.
#[test]
fn the_bytes_of_the_output_are_found_among_others() {
    let mut feed = feed(COMPILED);
    rest::request(&mut feed, &sent(), true).unwrap();
    let floats = |numbers: &[f32]| -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    let (ours, other) = (floats(&[1.0, 2.0, 3.0, 4.0]), floats(&[9.0; 3]));
    let output = |name: &str, size: usize| {
        format!(
            r#"{{"name":"{name}","shape":[2,2],"datatype":"FP32",
            "parameters":{{"binary_data_size":{size}}}}}"#
        )
    };
    let read = |outputs: &[String], bytes: &[&[u8]]| {
        let json = format!(r#"{{"outputs":[{}]}}"#, outputs.join(",")).into_bytes();
        let json_bytes = Some(json.len());
        answered(&feed, &Message { body: [json, bytes.concat()].concat(), json_bytes })
    };
    let (embedding, counts) = (output("embedding", 16), output("counts", 12));
    let json = r#"{"name":"counts","shape":[1],"datatype":"INT32","data":[9]}"#.to_owned();
    for (outputs, bytes) in [
        (vec![embedding.clone()], vec![&ours[..]]),
        (vec![embedding.clone(), counts.clone()], vec![&ours, &other]),
        (vec![counts.clone(), embedding.clone()], vec![&other, &ours]),
        (vec![json, embedding.clone()], vec![&ours]),
    ] {
        assert_eq!(read(&outputs, &bytes), Ok([1.0, 2.0, 3.0, 4.0]), "{outputs:?}");
    }
    for (outputs, word) in [
        (vec![output("embedding", 12)], "its output has 12 bytes"),
        (vec![counts.clone(), embedding], "it ends before"),
        (vec![output("counts", usize::MAX), output("embedding", 16)], "it ends before"),
    ] {
        assert!(read(&outputs, &[&ours]).unwrap_err().contains(word), "{outputs:?}");
    }
}

#[test]
fn vectors_of_tokens_are_pooled() {
    let mut feed = feed(TOKENS);
    let request = rest::request(&mut feed, &sent(), false).unwrap();
    let request = String::from_utf8(request.body).unwrap();
    assert!(request.contains(r#""datatype":"INT64","data":[1,1,1,0]"#), "{request}");
    let body = r#"{"outputs":[{"name":"last_hidden_state","shape":[2,2,2],"datatype":"FP32",
        "data":[1,2,3,4,5,6,99,99]}]}"#;
    assert_eq!(answered(&feed, &json(body)), Ok([2.0, 3.0, 5.0, 6.0]));
}

#[test]
fn answers_that_are_none_are_refused() {
    let mut feed = feed(COMPILED);
    rest::request(&mut feed, &sent(), false).unwrap();
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
    let said = |metadata: &str, texts| told(metadata, texts).unwrap_err().to_string();
    let ids = |metadata: &str| said(metadata, false);
    assert!(ids(&COMPILED.replace("lengths", "text")).contains("an input text"));
    assert!(ids(&COMPILED.replace("input_ids", "lengths")).contains("no input input_ids"));
    assert!(ids(&COMPILED.replace("INT32", "FP16")).contains("FP16"));
    assert!(ids(TEXTS).contains("set inputs in [providers.remote] to texts"));
    assert!(ids(&COMPILED.replace("[-1,2]", "[-1,3]")).contains("embedding (FP32 [-1, 3])"));
    assert!(said(COMPILED, true).contains("2 inputs"));
    assert!(
        said(&TEXTS.replace("BYTES", "INT64"), true).contains("set inputs in [providers.remote]")
    );
    assert!(said(&TEXTS.replace("[-1,2]", "[-1,-1,2]"), true).contains("have it pool them"));
}
