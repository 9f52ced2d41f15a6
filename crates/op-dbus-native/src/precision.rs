//! Precisions of the arithmetic.

use std::fmt;
use std::str::FromStr;

use crate::isa::Isa;

/// Precision of the operands of all products with weights. Sums, norms and the softmax are 32-bit
/// floats in each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// 8-bit integers, with one scale per 128 inputs of a row and of a column.
    Int8,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Int8];

    /// bfloat16 where the instruction set multiplies it faster than 32-bit floats, else those.
    pub fn auto(isa: Isa) -> Self {
        if isa.has_bf16() { Self::Bf16 } else { Self::F32 }
    }

    /// The name that settings use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|precision| precision.as_str() == name)
            .ok_or_else(|| format!("{name:?} is no precision; write one of f32, bf16, int8"))
    }
}
