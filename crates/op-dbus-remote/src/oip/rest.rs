//! Requests and answers over HTTP: in JSON or, where a server has the extension for it, with the tensors
//! as bytes behind the JSON.

use op_dbus_engine::foreign::Filled;
use serde::de::{Deserialize, DeserializeSeed, Deserializer};

use super::{Data, Feed, Input, Metadata, or_default};
use crate::Shape;
use crate::failure::Failure;
use crate::http::Message;
use crate::numbers::Numbers;
use crate::openai::floats;
use crate::texts::Sent;

/// The extension by which tensors travel as bytes.
const BINARY: &str = "binary_tensor_data";

/// Where a server tells what it can do.
pub fn server_url(endpoint: &str) -> String {
    format!("{endpoint}/v2")
}

/// Where a server tells a model's inputs and outputs.
pub fn model_url(endpoint: &str, model: &str) -> String {
    format!("{endpoint}/v2/models/{model}")
}

/// Where a server takes batches.
pub fn infer_url(endpoint: &str, model: &str) -> String {
    format!("{endpoint}/v2/models/{model}/infer")
}

/// Whether a server that told this of itself takes tensors as bytes.
pub fn is_binary(told: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Server {
        #[serde(default)]
        extensions: Vec<String>,
    }
    let server = serde_json::from_slice::<Server>(told);
    server.is_ok_and(|server| server.extensions.iter().any(|name| name == BINARY))
}

/// Reads what a server tells of a model.
///
/// # Errors
/// It is not that.
pub fn metadata(told: &[u8]) -> Result<Metadata, Failure> {
    serde_json::from_slice(told).map_err(Failure::unreadable)
}

/// A request for the vectors of a batch; with `binary` the tensors are bytes behind the JSON.
///
/// # Errors
/// The request can't be written.
pub fn request(feed: &mut Feed, sent: &Sent<'_>, binary: bool) -> Result<Message, Failure> {
    feed.fill(sent);
    let texts = sent.texts.unwrap_or_default();
    let outputs = [Asked {
        name: &feed.output.name,
        parameters: binary.then_some(BinaryOutput { binary_data: true }),
    }];
    let tensor = |input| Given::new(feed, input, texts, binary);
    let request = Request { inputs: feed.inputs.iter().map(tensor).collect(), outputs };
    let mut body = serde_json::to_vec(&request).map_err(Failure::unwritable)?;
    if !binary {
        return Ok(Message { body, json_bytes: None });
    }
    let json_bytes = body.len();
    feed.inputs.iter().for_each(|input| input.write(texts, &mut body));
    Ok(Message { body, json_bytes: Some(json_bytes) })
}

/// Reads the answer to the last request, of a batch with these lengths, into `out`, `[rows, dimensions]`.
///
/// # Errors
/// It is no answer to that.
pub fn answer(
    feed: &Feed,
    message: &Message,
    (lengths, shape): (&[i32], &Shape),
    out: &mut [f32],
) -> Result<(), Failure> {
    let (json, bytes) = match message.json_bytes {
        Some(length) => message
            .body
            .split_at_checked(length)
            .ok_or_else(|| Failure::nonsense("its JSON is said to be longer than all of it"))?,
        None => (&message.body[..], &[][..]),
    };
    let answer: Answer = serde_json::from_slice(json).map_err(Failure::unreadable)?;
    let is_ours = |output: &Answered| output.name == feed.output.name;
    let mut outputs = answer.outputs;
    let place = outputs.iter().position(is_ours).ok_or_else(|| feed.missing())?;
    // The bytes of outputs that nobody asked for come in the order of the outputs as well.
    let size = |output: &Answered| output.parameters.binary_data_size;
    let begin = outputs[..place].iter().filter_map(size).fold(0, usize::saturating_add);
    let output = outputs.swap_remove(place);
    feed.check(&output.datatype, &output.shape, shape.dimensions)?;
    let found: Vec<f32> = match (size(&output), output.data) {
        (Some(size), _) if size != 4 * feed.numbers(shape.dimensions) => {
            return Err(Failure::nonsense(format_args!("its output has {size} bytes")));
        }
        (Some(size), _) => {
            let bytes = bytes.get(begin..begin.saturating_add(size));
            let short = || Failure::nonsense("it ends before the bytes of its output");
            floats(bytes.ok_or_else(short)?).collect()
        }
        (None, data) => data.map_or_else(Vec::new, |Flat(data)| data),
    };
    feed.deliver(&found, (lengths, shape), out)
}

#[derive(serde::Serialize)]
struct Request<'a> {
    inputs: Vec<Given<'a>>,
    outputs: [Asked<'a>; 1],
}

/// One input with its data.
#[derive(serde::Serialize)]
struct Given<'a> {
    name: &'a str,
    shape: Vec<usize>,
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Json<'a>>,
}

impl<'a> Given<'a> {
    fn new(feed: &'a Feed, input: &'a Input, texts: &'a [String], binary: bool) -> Self {
        let data = || match &input.data {
            Data::Integers(_, Filled::I32(data)) => Json::I32(data),
            Data::Integers(_, Filled::I64(data)) => Json::I64(data),
            Data::Texts => Json::Texts(texts),
        };
        Self {
            name: &input.name,
            shape: input.shape(&feed.padded),
            datatype: input.datatype(),
            parameters: binary.then(|| BinaryInput { binary_data_size: input.bytes(texts) }),
            data: (!binary).then(data),
        }
    }
}

#[derive(serde::Serialize)]
struct BinaryInput {
    binary_data_size: usize,
}

#[derive(serde::Serialize)]
struct Asked<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryOutput>,
}

#[derive(serde::Serialize)]
struct BinaryOutput {
    binary_data: bool,
}

/// A tensor in JSON.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum Json<'a> {
    I32(&'a [i32]),
    I64(&'a [i64]),
    Texts(&'a [String]),
}

#[derive(serde::Deserialize)]
struct Answer {
    outputs: Vec<Answered>,
}

#[derive(serde::Deserialize)]
struct Answered {
    name: String,
    shape: Vec<i64>,
    datatype: String,
    data: Option<Flat>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
}

#[derive(Default, serde::Deserialize)]
struct Parameters {
    /// How many of the bytes behind the JSON are the tensor's, if they are there.
    binary_data_size: Option<usize>,
}

/// The numbers of a tensor, flat; the length of the answer bounds them.
struct Flat(Vec<f32>);

impl<'de> Deserialize<'de> for Flat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut numbers = Vec::new();
        Numbers::new(&mut numbers).deserialize(deserializer)?;
        Ok(Self(numbers))
    }
}
