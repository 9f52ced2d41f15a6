//! Reading a model whose bytes somebody else wrote.

use prost::{Message, decode_length_delimiter};

use super::Model;
use crate::Error;

/// The most fields that are read: a graph of thousands of nodes has less than a tenth of that. One without content has
/// two bytes in a file and hundreds in memory.
const FIELDS_MAX: usize = 1_000_000;

/// The model in `onnx`.
///
/// # Errors
/// Bytes that are not an ONNX model, or one that would take far more memory than it has bytes.
pub(crate) fn read(onnx: &[u8]) -> Result<Model, Error> {
    check(onnx)?;
    Ok(Model::decode(onnx)?)
}

/// A message of which a model may have any number.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Training,
    Function,
    Graph,
    Node,
    Attribute,
    Tensor,
    SparseTensor,
    ValueInfo,
    Type,
    TensorType,
    Shape,
}

impl Kind {
    /// What the field of that number holds, where it is such a message.
    fn inside(self, field: usize) -> Option<Self> {
        match (self, field) {
            (Self::Model, 20) => Some(Self::Training),
            (Self::Model, 25) => Some(Self::Function),
            (Self::Model, 7) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => {
                Some(Self::Graph)
            }
            (Self::Graph, 1) | (Self::Function, 7) => Some(Self::Node),
            (Self::Node, 5) | (Self::Function, 11) => Some(Self::Attribute),
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => {
                Some(Self::Tensor)
            }
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Some(Self::SparseTensor),
            (Self::Graph, 11 | 12) => Some(Self::ValueInfo),
            (Self::ValueInfo, 2) => Some(Self::Type),
            (Self::Type, 1) => Some(Self::TensorType),
            (Self::TensorType, 2) => Some(Self::Shape),
            _ => None,
        }
    }

    /// Whether that field holds integers one after another, of a byte each at least.
    fn packs(self, field: usize) -> bool {
        matches!((self, field), (Self::Attribute, 8) | (Self::Tensor, 1))
    }
}

/// Counts fields where they lie.
fn check(onnx: &[u8]) -> Result<(), Error> {
    let damaged = || Error::Onnx("it is no sequence of protobuf fields".to_owned());
    let (mut fields, mut open) = (0, vec![(Kind::Model, onnx)]);
    while let Some((kind, mut rest)) = open.pop() {
        while !rest.is_empty() {
            let key = decode_length_delimiter(&mut rest)?;
            let (field, form) = (key >> 3, key & 7);
            let length = match form {
                // A number, of as many bytes as it needs.
                0 => decode_length_delimiter(&mut rest).map(|_| 0)?,
                1 => 8,
                2 => decode_length_delimiter(&mut rest)?,
                5 => 4,
                _ => return Err(damaged()),
            };
            let (content, behind) = rest.split_at_checked(length).ok_or_else(damaged)?;
            rest = behind;
            fields += 1;
            match kind.inside(field) {
                Some(inside) if form == 2 => open.push((inside, content)),
                None if kind.packs(field) => fields += content.len(),
                _ => {}
            }
            if fields > FIELDS_MAX {
                return Err(Error::Onnx(format!(
                    "it has more than the {FIELDS_MAX} nodes, attributes, tensors and other fields \
                     that are read"
                )));
            }
        }
    }
    Ok(())
}
