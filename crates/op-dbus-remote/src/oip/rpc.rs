//! Requests and answers over gRPC: the messages of `inference.GRPCInferenceService` as far as they are
//! used here, with the field numbers of the protocol's published definition. Tensors travel as bytes.

use super::{Feed, Tensor};
use crate::Shape;
use crate::failure::Failure;
use crate::openai::floats;
use crate::texts::Sent;

/// Where a server tells a model's inputs and outputs.
pub const METADATA: &str = "/inference.GRPCInferenceService/ModelMetadata";
/// Where a server takes batches.
pub const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// Asks for what a server tells of a model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MetadataRequest {
    #[prost(string, tag = "1")]
    pub name: String,
}

/// A batch.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    model: String,
    #[prost(message, repeated, tag = "5")]
    inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "6")]
    outputs: Vec<Asked>,
    /// The data of each input.
    #[prost(bytes = "vec", repeated, tag = "7")]
    raw: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Asked {
    #[prost(string, tag = "1")]
    name: String,
}

/// Its vectors.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InferResponse {
    #[prost(message, repeated, tag = "5")]
    outputs: Vec<Answered>,
    /// The data of each output, unless these have their own.
    #[prost(bytes = "vec", repeated, tag = "6")]
    raw: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answered {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    datatype: String,
    #[prost(int64, repeated, tag = "3")]
    shape: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    contents: Option<Contents>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Contents {
    #[prost(float, repeated, tag = "6")]
    floats: Vec<f32>,
}

/// A request for the vectors of a batch.
pub fn request(feed: &mut Feed, model: &str, sent: &Sent<'_>) -> InferRequest {
    feed.fill(sent);
    let texts = sent.texts.unwrap_or_default();
    let side = |side: &usize| i64::try_from(*side).unwrap_or(i64::MAX);
    let inputs = feed.inputs.iter().map(|input| Tensor {
        name: input.name.clone(),
        datatype: input.datatype().to_owned(),
        shape: input.shape(&feed.padded).iter().map(side).collect(),
    });
    let raw = feed.inputs.iter().map(|input| {
        let mut bytes = Vec::with_capacity(input.bytes(texts));
        input.write(texts, &mut bytes);
        bytes
    });
    InferRequest {
        model: model.to_owned(),
        inputs: inputs.collect(),
        outputs: vec![Asked { name: feed.output.name.clone() }],
        raw: raw.collect(),
    }
}

/// Reads the answer to the last request, of a batch with these lengths, into `out`, `[rows, dimensions]`.
///
/// # Errors
/// It is no answer to that.
pub fn answer(
    feed: &Feed,
    answer: InferResponse,
    (lengths, shape): (&[i32], &Shape),
    out: &mut [f32],
) -> Result<(), Failure> {
    let mut outputs = answer.outputs.into_iter().enumerate();
    let output = outputs.find(|(_, output)| output.name == feed.output.name);
    let (place, output) = output.ok_or_else(|| feed.missing())?;
    feed.check(&output.datatype, &output.shape, shape.dimensions)?;
    let found = match (answer.raw.get(place), output.contents) {
        (Some(bytes), _) if bytes.len() == 4 * feed.numbers(shape.dimensions) => {
            floats(bytes).collect()
        }
        (Some(bytes), _) => {
            return Err(Failure::nonsense(format_args!("its output has {} bytes", bytes.len())));
        }
        (None, Some(contents)) => contents.floats,
        (None, None) => Vec::new(),
    };
    feed.deliver(&found, (lengths, shape), out)
}
