//! What can be wrong with a model's files.

/// Why a model could not be compiled, converted or inspected.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The safetensors file breaks its own format.
    #[error("the weights are not a valid safetensors file; import the model again")]
    Safetensors(#[source] safetensors::SafeTensorError),
    /// A tensor that the configuration asks for is not there.
    #[error("tensor {name} is missing; the weights do not belong to this configuration")]
    MissingTensor {
        /// Name under which it was looked for.
        name: String,
    },
    /// A tensor is there under two names, which have other values or shapes.
    #[error(
        "the tensors {prefixed} and {name} differ, and either may be meant; keep those of one kind of name in \
         the weights"
    )]
    Twice {
        /// Its name.
        name: String,
        /// The same behind the family's prefix.
        prefixed: String,
    },
    /// A tensor has another shape than the configuration says.
    #[error("tensor {name} has the shape {found:?}, but the configuration asks for {expected:?}")]
    Shape {
        /// Name in the file.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
    },
    /// A tensor has an element type that is not read yet.
    #[error(
        "tensor {name} has elements of type {found}; supported: floats of 32 bits, in an import of 16 bits as \
         well (sentence-transformers writes the former after model.float())"
    )]
    ElementType {
        /// Name in the file.
        name: String,
        /// Element type in the file.
        found: String,
    },
    /// A tensor's data is missing, too short or too long, or has values that are no finite numbers.
    #[error("tensor {name} is damaged: {problem}")]
    Tensor {
        /// Name in the file.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// `config.json` lacks a key or has a value of the wrong kind.
    #[error("config.json can't be used")]
    Config(#[source] serde_json::Error),
    /// The model asks for something that this version does not do.
    #[error("{what} is {found}, which is not supported; supported: {supported}")]
    Unsupported {
        /// The key or feature.
        what: &'static str,
        /// What the model asks for.
        found: String,
        /// What could be had instead.
        supported: String,
    },
    /// The graph, or a part of it, would be larger than it may be; the model is not at fault.
    #[error("{what} would be too large: {found}; supported: {supported}")]
    TooLarge {
        /// The graph, or its part.
        what: &'static str,
        /// How large it would be.
        found: String,
        /// How large it may be, and how it gets there.
        supported: String,
    },
    /// A Dense module can't be used.
    #[error("Dense module {number}: {source}")]
    Dense {
        /// Which one, counted from 1 in the order in which they are applied.
        number: usize,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The bytes are not an ONNX model.
    #[error("the file is not a valid ONNX model")]
    Protobuf(#[from] prost::DecodeError),
    /// The ONNX model is readable, but not what is needed here.
    #[error("the ONNX model can't be used: {0}")]
    Onnx(String),
    /// The ONNX model keeps tensor data outside its own file.
    #[error("tensor {name} keeps its data in another file; export the graph as one file")]
    ExternalData {
        /// Tensor's name.
        name: String,
    },
}

pub(crate) fn unsupported(what: &'static str, found: impl ToString, supported: &str) -> Error {
    Error::Unsupported { what, found: found.to_string(), supported: supported.to_owned() }
}
