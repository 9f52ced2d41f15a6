//! The Open Inference Protocol v2: how a served graph is fed, and which of its outputs is taken. How that
//! is written is in the modules below: over HTTP and over gRPC.

pub mod rest;
pub mod rpc;

use op_dbus_engine::foreign::{self, Content, Filled, Integers, Output, Padded, Port};
use serde::de::{Deserialize, Deserializer};

use crate::Shape;
use crate::failure::Failure;
use crate::texts::Sent;

/// The type of an input that takes texts.
const BYTES: &str = "BYTES";
/// The type of an output that is taken.
const FP32: &str = "FP32";
/// Bytes of a text's length before it.
const LENGTH_BYTES: usize = 4;

/// What a server tells of a model: as JSON, or over gRPC.
#[derive(Clone, PartialEq, prost::Message, serde::Deserialize)]
pub struct Metadata {
    #[prost(message, repeated, tag = "4")]
    inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "5")]
    outputs: Vec<Tensor>,
}

/// A tensor without its data.
#[derive(Clone, PartialEq, prost::Message, serde::Deserialize)]
struct Tensor {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    #[serde(default, deserialize_with = "or_default")]
    shape: Vec<i64>,
}

/// Reads what may be left out: some servers write `null` instead.
fn or_default<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + Deserialize<'de>,
    D: Deserializer<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
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
    /// Whether it is `[rows, 1]` where `[rows]` would do.
    column: bool,
    data: Data,
}

/// What an input is filled with.
#[derive(Debug)]
enum Data {
    Integers(Content, Filled),
    Texts,
}

impl Feed {
    /// A way to feed the model that a server tells of, with texts or with token ids.
    ///
    /// # Errors
    /// Inputs that can't be filled, or no output that is clearly the embedding.
    pub fn new(metadata: Metadata, texts: bool, dimensions: usize) -> Result<Self, Failure> {
        let inputs = match texts {
            true => vec![text_input(metadata.inputs).map_err(Failure::Quoted)?],
            false => integer_inputs(metadata.inputs)?,
        };
        let ports: Vec<Port<'_>> = metadata.outputs.iter().map(port).collect();
        let output = foreign::choose(&ports, Some(dimensions)).map_err(Failure::Quoted)?;
        if texts && output.per_token {
            let why = "the model there takes texts and gives vectors of tokens, of which only it knows \
                       how many are padding; have it pool them";
            return Err(Failure::Away(why.to_owned()));
        }
        Ok(Self { inputs, output, padded: Padded::default() })
    }

    /// Takes a batch over, for the request that is written next.
    fn fill(&mut self, sent: &Sent<'_>) {
        self.padded.fill(&sent.batch);
        for input in &mut self.inputs {
            if let Data::Integers(content, data) = &mut input.data {
                data.fill(*content, &self.padded, sent.batch.lengths);
            }
        }
    }

    /// Numbers in the answer to the last request.
    pub fn numbers(&self, dimensions: usize) -> usize {
        let per_row = if self.output.per_token { self.padded.sequence_length } else { 1 };
        self.padded.rows * per_row * dimensions
    }

    /// Whether an output that was answered is the one that was asked for.
    fn check(&self, datatype: &str, shape: &[i64], dimensions: usize) -> Result<(), Failure> {
        let mut expected = vec![self.padded.rows];
        expected.extend(self.output.per_token.then_some(self.padded.sequence_length));
        expected.push(dimensions);
        let is_expected = shape.len() == expected.len()
            && shape
                .iter()
                .zip(&expected)
                .all(|(side, wanted)| usize::try_from(*side) == Ok(*wanted));
        match datatype == FP32 && is_expected {
            true => Ok(()),
            false => Err(Failure::unreadable(format_args!(
                "its output {} is {datatype} {shape:?} where FP32 {expected:?} is expected",
                self.output.name
            ))),
        }
    }

    /// Makes vectors of the output's numbers: `out` is `[rows, dimensions]`, of a batch with these
    /// lengths.
    fn deliver(
        &self,
        found: &[f32],
        (lengths, shape): (&[i32], &Shape),
        out: &mut [f32],
    ) -> Result<(), Failure> {
        let count = self.numbers(shape.dimensions);
        if found.len() != count {
            let found = found.len();
            return Err(Failure::nonsense(format_args!(
                "it has {found} numbers, and {count} are expected"
            )));
        }
        match self.output.per_token {
            true => {
                let sides = (self.padded.sequence_length, lengths);
                foreign::pool(shape.pooling, sides, shape.dimensions, found, out);
            }
            false => out.copy_from_slice(found),
        }
        Ok(())
    }

    /// An answer without the output that was asked for.
    fn missing(&self) -> Failure {
        Failure::nonsense(format_args!("it has no output {}", self.output.name))
    }
}

impl Input {
    fn datatype(&self) -> &'static str {
        match &self.data {
            Data::Integers(_, Filled::I32(_)) => "INT32",
            Data::Integers(_, Filled::I64(_)) => "INT64",
            Data::Texts => BYTES,
        }
    }

    fn shape(&self, padded: &Padded) -> Vec<usize> {
        match (&self.data, self.column) {
            (Data::Integers(Content::Lengths, _) | Data::Texts, false) => vec![padded.rows],
            (Data::Integers(Content::Lengths, _) | Data::Texts, true) => vec![padded.rows, 1],
            _ => padded.shape().to_vec(),
        }
    }

    /// Bytes that [`write`](Self::write) adds.
    fn bytes(&self, texts: &[String]) -> usize {
        match &self.data {
            Data::Integers(_, Filled::I32(data)) => size_of_val(&data[..]),
            Data::Integers(_, Filled::I64(data)) => size_of_val(&data[..]),
            Data::Texts => texts.iter().map(|text| LENGTH_BYTES + text.len()).sum(),
        }
    }

    /// Adds the tensor as bytes: integers in little-endian, texts each behind its length.
    fn write(&self, texts: &[String], into: &mut Vec<u8>) {
        match &self.data {
            Data::Integers(_, Filled::I32(data)) => {
                into.extend(data.iter().flat_map(|id| id.to_le_bytes()));
            }
            Data::Integers(_, Filled::I64(data)) => {
                into.extend(data.iter().flat_map(|id| id.to_le_bytes()));
            }
            Data::Texts => {
                for text in texts {
                    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                    into.extend(length.to_le_bytes());
                    into.extend(text.as_bytes());
                }
            }
        }
    }
}

fn integer_inputs(tensors: Vec<Tensor>) -> Result<Vec<Input>, Failure> {
    let inputs = tensors.into_iter().map(input);
    let inputs: Vec<Input> = inputs.collect::<Result<_, _>>().map_err(Failure::Quoted)?;
    let is_ids = |input: &Input| matches!(input.data, Data::Integers(Content::TokenIds, _));
    match inputs.iter().any(is_ids) {
        true => Ok(inputs),
        false => Err(Failure::Away("the model there has no input input_ids".to_owned())),
    }
}

fn input(tensor: Tensor) -> Result<Input, String> {
    let Tensor { name, datatype, shape } = tensor;
    if datatype == BYTES {
        return Err(format!(
            "the model there wants its input {name} as BYTES, which texts are; set inputs in \
             [providers.remote] to texts to send those"
        ));
    }
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
    let data = Data::Integers(content, Filled::new(integers));
    Ok(Input { name, column: shape.len() == 2, data })
}

/// The one input of a model that takes texts, whatever its name.
fn text_input(tensors: Vec<Tensor>) -> Result<Input, String> {
    match <[Tensor; 1]>::try_from(tensors) {
        Ok([Tensor { name, datatype, shape }]) if datatype == BYTES => {
            Ok(Input { name, column: shape.len() == 2, data: Data::Texts })
        }
        Ok([Tensor { name, datatype, .. }]) => Err(format!(
            "the model there wants its input {name} as {datatype}, and texts are BYTES; set inputs in \
             [providers.remote] to token-ids"
        )),
        Err(tensors) => Err(format!(
            "the model there has {} inputs, and a model that takes texts has one, of BYTES; set inputs \
             in [providers.remote] to token-ids",
            tensors.len()
        )),
    }
}

fn port(tensor: &Tensor) -> Port<'_> {
    let floats = (tensor.datatype == FP32).then_some(&tensor.shape[..]);
    Port { name: &tensor.name, floats, shown: format!("{} {:?}", tensor.datatype, tensor.shape) }
}

#[cfg(test)]
mod tests;
