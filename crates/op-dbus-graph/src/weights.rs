//! The tensors of a safetensors file, checked against the shapes that a configuration asks for.

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::Deserialize;

use crate::Error;
use crate::encoder::Tensor;

/// The tensors of a model, by name.
pub(crate) struct Weights<'a> {
    tensors: SafeTensors<'a>,
}

impl<'a> Weights<'a> {
    /// Reads the table of contents; the data stays where it is.
    ///
    /// # Errors
    /// A file that breaks the format: with the tensor's name where one is to blame.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        match SafeTensors::deserialize(bytes) {
            Ok(tensors) => Ok(Self { tensors }),
            Err(error) => Err(blame(bytes, error)),
        }
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.tensor(name).is_ok()
    }

    /// The tensor `name`, which must have this shape.
    ///
    /// # Errors
    /// A missing tensor, another shape, another element type, values that are no numbers.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'a>, Error> {
        let view = self
            .tensors
            .tensor(name)
            .map_err(|_| Error::MissingTensor { name: name.to_owned() })?;
        if view.dtype() != Dtype::F32 {
            let found = view.dtype().to_string();
            return Err(Error::ElementType { name: name.to_owned(), found });
        }
        if view.shape() != shape {
            return Err(Error::Shape {
                name: name.to_owned(),
                found: view.shape().to_vec(),
                expected: shape.to_vec(),
            });
        }
        // Where such a value is met only by some texts, or vanishes in whole numbers, nothing else tells.
        let tensor = Tensor::new(shape.last().copied().unwrap_or(1), view.data());
        if !tensor.values().all(f32::is_finite) {
            let problem = "it has values that are no finite numbers".to_owned();
            return Err(Error::Tensor { name: name.to_owned(), problem });
        }
        Ok(tensor)
    }
}

#[derive(Deserialize)]
struct Entry {
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Names the tensor behind `error`, which the library does only for some mistakes.
fn blame(bytes: &[u8], error: SafeTensorError) -> Error {
    find_culprit(bytes).unwrap_or(Error::Safetensors(error))
}

fn find_culprit(bytes: &[u8]) -> Option<Error> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (header, data) = rest.split_at_checked(length)?;
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
    let data_bytes = data.len() as u64;
    let mut entries = Vec::new();
    for (name, value) in header {
        if name == "__metadata__" {
            continue;
        }
        let damaged = |problem: String| Some(Error::Tensor { name: name.clone(), problem });
        let Ok(entry) = Entry::deserialize(value) else {
            return damaged("its entry in the header can't be read".to_owned());
        };
        let (begin, end) = entry.data_offsets;
        if begin > end || end > data_bytes {
            return damaged(format!(
                "its data is said to lie at {begin}..{end}, but the file has {data_bytes} bytes"
            ));
        }
        let elements = entry.shape.iter().try_fold(1u64, |count, &size| count.checked_mul(size));
        // No element type takes more than 16 bytes, none less than half a byte.
        if elements.is_none_or(|count| (end - begin) / 16 > count || count / 2 > end - begin) {
            return damaged(format!(
                "its shape {:?} does not go with its {} bytes of data",
                entry.shape,
                end - begin
            ));
        }
        entries.push((begin, end, name));
    }
    entries.sort_unstable();
    let mut expected = 0;
    for (begin, end, name) in entries {
        if begin != expected {
            let problem = format!("its data begins at {begin} instead of {expected}");
            return Some(Error::Tensor { name, problem });
        }
        expected = end;
    }
    None
}
