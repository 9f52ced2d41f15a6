//! The Open Inference Protocol v2 over HTTP, in JSON or, where a server has the extension for it, with
//! the tensors as bytes behind the JSON.

use op_dbus_engine::Batch;
use op_dbus_engine::foreign::{self, Content, Filled, Integers, Output, Padded, Port};
use serde::de::{Deserialize, DeserializeSeed, Deserializer};

use crate::Shape;
use crate::failure::Failure;
use crate::http::Message;
use crate::numbers::Numbers;
use crate::openai::floats;

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

/// How a served graph is fed, and which output is taken.
#[derive(Debug)]
pub struct Feed {
    inputs: Vec<Input>,
    output: Output,
    padded: Padded,
}

/// One input.
#[derive(Debug)]
struct Input {
    name: String,
    content: Content,
    integers: Integers,
    /// Whether it is `[rows, 1]` where `[rows]` would do.
    column: bool,
    data: Filled,
}

/// What a server tells of a model.
#[derive(serde::Deserialize)]
struct Metadata {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

#[derive(serde::Deserialize)]
struct Tensor {
    name: String,
    datatype: String,
    #[serde(default)]
    shape: Vec<i64>,
}

impl Feed {
    /// Reads what a server tells of a model.
    ///
    /// # Errors
    /// Inputs that can't be filled, or no output that is clearly the embedding.
    pub fn read(told: &[u8], dimensions: usize) -> Result<Self, Failure> {
        let metadata: Metadata = serde_json::from_slice(told).map_err(Failure::unreadable)?;
        let inputs = metadata.inputs.into_iter().map(input);
        let inputs: Vec<Input> = inputs.collect::<Result<_, _>>().map_err(Failure::Quoted)?;
        if !inputs.iter().any(|input| input.content == Content::TokenIds) {
            let why = "the model there has no input input_ids, and texts are not sent";
            return Err(Failure::Away(why.to_owned()));
        }
        let ports: Vec<Port<'_>> = metadata.outputs.iter().map(port).collect();
        let output = foreign::choose(&ports, dimensions).map_err(Failure::Quoted)?;
        Ok(Self { inputs, output, padded: Padded::default() })
    }

    /// A request for the vectors of a batch; with `binary` the tensors are bytes behind the JSON.
    ///
    /// # Errors
    /// The request can't be written.
    pub fn request(&mut self, batch: &Batch<'_>, binary: bool) -> Result<Message, Failure> {
        self.padded.fill(batch);
        for input in &mut self.inputs {
            input.data.fill(input.content, &self.padded, batch.lengths);
        }
        let outputs = [Asked {
            name: &self.output.name,
            parameters: binary.then_some(BinaryOutput { binary_data: true }),
        }];
        let inputs = self.inputs.iter().map(|input| input.sent(&self.padded, binary)).collect();
        let request = Request { inputs, outputs };
        let mut body = serde_json::to_vec(&request).map_err(Failure::unwritable)?;
        if !binary {
            return Ok(Message { body, json_bytes: None });
        }
        let json_bytes = body.len();
        for input in &self.inputs {
            match &input.data {
                Filled::I32(data) => body.extend(data.iter().flat_map(|id| id.to_le_bytes())),
                Filled::I64(data) => body.extend(data.iter().flat_map(|id| id.to_le_bytes())),
            }
        }
        Ok(Message { body, json_bytes: Some(json_bytes) })
    }

    /// Numbers in the answer to the last request.
    pub fn numbers(&self, dimensions: usize) -> usize {
        let per_row = if self.output.per_token { self.padded.sequence_length } else { 1 };
        self.padded.rows * per_row * dimensions
    }

    /// Reads the answer to the last request, of a batch with these lengths, into `out`,
    /// `[rows, dimensions]`.
    ///
    /// # Errors
    /// It is no answer to that.
    pub fn answer(
        &self,
        message: &Message,
        (lengths, shape): (&[i32], &Shape),
        out: &mut [f32],
    ) -> Result<(), Failure> {
        let found = self.found(message, shape.dimensions)?;
        match self.output.per_token {
            true => {
                let sides = (self.padded.sequence_length, lengths);
                foreign::pool(shape.pooling, sides, shape.dimensions, &found, out);
            }
            false => out.copy_from_slice(&found),
        }
        Ok(())
    }

    /// The output's numbers, as many as they have to be.
    fn found(&self, message: &Message, dimensions: usize) -> Result<Vec<f32>, Failure> {
        let (json, bytes) = match message.json_bytes {
            Some(length) => message
                .body
                .split_at_checked(length)
                .ok_or_else(|| Failure::nonsense("its JSON is said to be longer than all of it"))?,
            None => (&message.body[..], &[][..]),
        };
        let answer: Answer = serde_json::from_slice(json).map_err(Failure::unreadable)?;
        let name = &self.output.name;
        let output = answer.outputs.into_iter().find(|output| output.name == *name);
        let output =
            output.ok_or_else(|| Failure::nonsense(format_args!("it has no output {name}")))?;
        let mut expected = vec![self.padded.rows];
        expected.extend(self.output.per_token.then_some(self.padded.sequence_length));
        expected.push(dimensions);
        if output.datatype != "FP32" || output.shape != expected {
            let (datatype, shape) = (output.datatype, output.shape);
            return Err(Failure::unreadable(format_args!(
                "its output {name} is {datatype} {shape:?} where FP32 {expected:?} is expected"
            )));
        }
        let count = self.numbers(dimensions);
        // The only output that was asked for is all that follows.
        let bytes = || floats(bytes.get(..count * 4).unwrap_or_default()).collect();
        let found: Vec<f32> = output.data.map_or_else(bytes, |Flat(data)| data);
        match found.len() == count {
            true => Ok(found),
            false => Err(Failure::nonsense(format_args!(
                "it has {} numbers, and {count} are expected",
                found.len()
            ))),
        }
    }
}

impl Input {
    fn sent(&self, padded: &Padded, binary: bool) -> Sent<'_> {
        let (datatype, bytes) = match self.integers {
            Integers::I32 => ("INT32", 4),
            Integers::I64 => ("INT64", 8),
        };
        let shape = match (self.content, self.column) {
            (Content::Lengths, false) => vec![padded.rows],
            (Content::Lengths, true) => vec![padded.rows, 1],
            _ => padded.shape().to_vec(),
        };
        let count: usize = shape.iter().product();
        Sent {
            name: &self.name,
            shape,
            datatype,
            parameters: binary.then_some(BinaryInput { binary_data_size: count * bytes }),
            data: (!binary).then_some(Data(&self.data)),
        }
    }
}

fn input(tensor: Tensor) -> Result<Input, String> {
    let Tensor { name, datatype, shape } = tensor;
    let content = Content::of(&name).ok_or_else(|| {
        format!(
            "the model there wants an input {name}, which is not supported; supported: input_ids, \
             attention_mask, token_type_ids, lengths"
        )
    })?;
    let integers = match datatype.as_str() {
        "INT32" => Integers::I32,
        "INT64" => Integers::I64,
        _ => {
            return Err(format!(
                "the model there wants its input {name} as {datatype}; only INT32 and INT64 are \
                 supported"
            ));
        }
    };
    let data = Filled::new(integers);
    Ok(Input { name, content, integers, column: shape.len() == 2, data })
}

fn port(tensor: &Tensor) -> Port<'_> {
    let floats = (tensor.datatype == "FP32").then_some(&tensor.shape[..]);
    Port { name: &tensor.name, floats, shown: format!("{} {:?}", tensor.datatype, tensor.shape) }
}

#[derive(serde::Serialize)]
struct Request<'a> {
    inputs: Vec<Sent<'a>>,
    outputs: [Asked<'a>; 1],
}

#[derive(serde::Serialize)]
struct Sent<'a> {
    name: &'a str,
    shape: Vec<usize>,
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryInput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
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

/// The integers of an input.
struct Data<'a>(&'a Filled);

impl serde::Serialize for Data<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Filled::I32(data) => data.serialize(serializer),
            Filled::I64(data) => data.serialize(serializer),
        }
    }
}

#[derive(serde::Deserialize)]
struct Answer {
    outputs: Vec<Answered>,
}

#[derive(serde::Deserialize)]
struct Answered {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    data: Option<Flat>,
}

/// The numbers of a tensor, flat; the length of the answer bounds them.
struct Flat(Vec<f32>);

impl<'de> Deserialize<'de> for Flat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut numbers = Vec::new();
        Numbers::new(&mut numbers, usize::MAX).deserialize(deserializer)?;
        Ok(Self(numbers))
    }
}

#[cfg(test)]
mod tests;
