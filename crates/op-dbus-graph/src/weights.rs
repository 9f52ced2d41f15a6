//! The tensors of a safetensors file, checked against the shapes that a configuration asks for.

use safetensors::{Dtype, SafeTensors};

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
    /// A file that breaks the format.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let tensors = SafeTensors::deserialize(bytes).map_err(Error::Safetensors)?;
        Ok(Self { tensors })
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
