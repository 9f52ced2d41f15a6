//! Reading the 32-bit floats of an ONNX tensor, trusting nothing that it says of itself.

use std::borrow::Cow;

use super::{EXTERNAL, FLOAT, Tensor};
use crate::Error;

/// Shape of `tensor`.
///
/// # Errors
/// A negative dimension, or a product that does not fit.
pub(crate) fn shape(tensor: &Tensor) -> Result<Vec<usize>, Error> {
    let shape: Option<Vec<usize>> =
        tensor.dims.iter().map(|&size| usize::try_from(size).ok()).collect();
    let fits = |shape: &Vec<usize>| {
        shape.iter().try_fold(4usize, |bytes, &size| bytes.checked_mul(size)).is_some()
    };
    shape.filter(fits).ok_or_else(|| damaged(tensor, "its dimensions are impossible".to_owned()))
}

/// Shape and little-endian bytes of a tensor of 32-bit floats. Nothing is allocated that the file
/// does not really hold.
///
/// # Errors
/// Another element type, data in another file, or data of another size than the shape says.
pub(crate) fn floats(tensor: &Tensor) -> Result<(Vec<usize>, Cow<'_, [u8]>), Error> {
    if tensor.data_type != FLOAT {
        return Err(Error::ElementType {
            name: tensor.name.clone(),
            found: format!("number {} of the ONNX schema", tensor.data_type),
        });
    }
    if tensor.data_location == EXTERNAL {
        return Err(damaged(tensor, "its data lies in another file".to_owned()));
    }
    let shape = shape(tensor)?;
    let expected = shape.iter().product::<usize>() * 4;
    let bytes = if tensor.raw_data.is_empty() {
        Cow::Owned(tensor.float_data.iter().flat_map(|value| value.to_le_bytes()).collect())
    } else {
        Cow::Borrowed(tensor.raw_data.as_slice())
    };
    if bytes.len() != expected {
        let problem = format!("it has {} bytes of data instead of {expected}", bytes.len());
        return Err(damaged(tensor, problem));
    }
    Ok((shape, bytes))
}

fn damaged(tensor: &Tensor, problem: String) -> Error {
    Error::Tensor { name: tensor.name.clone(), problem }
}
