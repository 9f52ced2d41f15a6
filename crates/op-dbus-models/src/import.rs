//! Taking over a model of the user's own: which kinds are understood, and how they are described.

use crate::error::HookError;
use crate::progress::Progress;
use crate::Pooling;

/// What an inspector finds in a user's own ONNX graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OnnxFacts {
    /// Numbers in one vector, when the graph states it.
    pub dimensions: Option<usize>,
    /// Whether the graph ends in one vector per text; else it ends in one vector per token.
    pub pooled: bool,
    /// Whether weights lie in other files beside the graph.
    pub external_data: bool,
}

/// Reads the bytes of an ONNX graph.
pub type Inspect<'a> = dyn Fn(&[u8]) -> Result<OnnxFacts, HookError> + 'a;

/// What an import needs besides the folder.
pub struct ImportOptions<'a> {
    /// The inspector for a user's own ONNX graph.
    pub inspect: &'a Inspect<'a>,
    /// Where the steps are told.
    pub progress: &'a Progress,
    /// Pooling of an ONNX graph that ends in token vectors and has no `1_Pooling` beside it.
    pub pooling: Option<Pooling>,
    /// Token limit of an ONNX graph without files that state one.
    pub max_input_tokens: Option<usize>,
}
