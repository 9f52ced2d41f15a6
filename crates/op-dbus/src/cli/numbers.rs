//! The numbers of a vector as it came, in whatever encoding.

use std::fmt;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use half::f16;
use op_dbus_daemon::bus::encoding::{self, Encoding};

/// What NumPy would show for an element of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
#[serde(untagged)]
pub enum Number {
    /// One component.
    Float(f32),
    /// One component without its scale, or the signs of eight.
    Byte(i16),
}

impl Number {
    /// The numbers in the bytes of one vector.
    pub fn of(row: &[u8], encoding: Encoding) -> Vec<Self> {
        match encoding {
            Encoding::F32 => floats(row).map(Self::Float).collect(),
            Encoding::F16 => {
                let halves = row.as_chunks().0.iter().map(|half| f16::from_le_bytes(*half));
                halves.map(|half| Self::Float(half.to_f32())).collect()
            }
            Encoding::I8 => row.iter().map(|byte| Self::Byte(byte.cast_signed().into())).collect(),
            Encoding::B1 => row.iter().map(|byte| Self::Byte((*byte).into())).collect(),
        }
    }
}

/// The components of vectors in single precision.
pub fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value))
}

/// The encodings by their names.
pub fn encodings() -> impl TypedValueParser<Value = Encoding> {
    let names = PossibleValuesParser::new(encoding::NAMES.map(|(name, _)| name));
    names
        .map(|given| encoding::NAMES.into_iter().find(|(name, _)| *name == given))
        .map(|known| known.map_or_else(Encoding::default, |(_, encoding)| encoding))
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float(value) => value.fmt(f),
            Self::Byte(value) => value.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_writes_what_is_read() {
        let vector = [0.5, -1.0, 0.25];
        let shown = |encoding: Encoding| {
            let row = encoding.bytes(&vector, vector.len());
            let numbers = Number::of(&row, encoding);
            numbers.iter().map(Number::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(Encoding::F32), "0.5 -1 0.25");
        assert_eq!(shown(Encoding::F16), "0.5 -1 0.25");
        assert_eq!(shown(Encoding::I8), "64 -127 32");
        assert_eq!(shown(Encoding::B1), "160");
        assert_eq!(serde_json::to_string(&Number::Byte(-127)).unwrap(), "-127");
    }
}
