//! What a `model.safetensors` says about itself, without reading its numbers.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::Error;

/// The largest header that is read.
const HEADER_BYTES_MAX: u64 = 100 << 20;

/// Reads the header and proves that every tensor lies inside the file and nothing else does.
pub(crate) fn read_header(path: &Path) -> Result<Metadata, Error> {
    let fail = |error| Error::io("read", path, error);
    let broken = |found: String| {
        Error::unsupported(
            format!("{} is not a whole safetensors file ({found})", path.display()),
            "an undamaged model.safetensors; fetch or copy it again",
        )
    };
    let mut file = File::open(path).map_err(fail)?;
    let bytes = file.metadata().map_err(fail)?.len();
    let mut length = [0; 8];
    if bytes < 8 {
        return Err(broken(format!("it has {bytes} bytes")));
    }
    file.read_exact(&mut length).map_err(fail)?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_BYTES_MAX || length > bytes - 8 {
        return Err(broken(format!("its header says that it has {length} bytes")));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(fail)?;
    // Deserializing proves that the tensors follow each other without gap or overlap, and that
    // each has the size of its shape.
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| broken(error.to_string()))?;
    let data = bytes - 8 - length;
    if header.data_len() as u64 != data {
        let stated = header.data_len();
        return Err(broken(format!("{data} bytes of numbers, and the header states {stated}")));
    }
    Ok(header)
}

/// Shape and element type of the one tensor whose name ends in `suffix`: exporters put various
/// prefixes before.
pub(crate) fn find<'a>(header: &'a Metadata, suffix: &str) -> Option<(&'a [usize], Dtype)> {
    let tensors = header.tensors();
    let mut names = tensors.iter().filter(|(name, _)| name.ends_with(suffix));
    let (_, info) = names.next()?;
    Some((info.shape.as_slice(), info.dtype)).filter(|_| names.next().is_none())
}
