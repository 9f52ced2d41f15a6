//! The element types of packed vectors: what each row becomes as bytes.

use std::borrow::Cow;

use half::f16;
use half::slice::HalfFloatSliceExt;

/// Element type of the vectors in a reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// IEEE 754 single precision, little-endian: as they were computed.
    #[default]
    F32,
    /// IEEE 754 half precision, little-endian, rounded to nearest even; what is beyond its range (65,504) becomes the
    /// end of that, as no infinity leaves the service. Components of vectors of length one are at most 1.
    F16,
    /// Signed bytes. Each vector is scaled by itself so that its largest component becomes 127 or
    /// -127, and rounded to nearest even; the scale is not kept, because a cosine does not need it.
    I8,
    /// A bit for each component, most significant first: set where it is above zero. A last byte
    /// that is not full ends with zeros, as `numpy.packbits` has it.
    B1,
}

/// The names that options have for them.
pub const NAMES: [(&str, Encoding); 4] =
    [("f32", Encoding::F32), ("f16", Encoding::F16), ("i8", Encoding::I8), ("b1", Encoding::B1)];

impl Encoding {
    /// The name that options have for it.
    pub fn name(self) -> &'static str {
        NAMES.into_iter().find(|(_, encoding)| *encoding == self).map_or("", |(name, _)| name)
    }

    /// Bytes of one vector.
    pub const fn row_bytes(self, dimensions: usize) -> usize {
        match self {
            Self::F32 => 4 * dimensions,
            Self::F16 => 2 * dimensions,
            Self::I8 => dimensions,
            Self::B1 => dimensions.div_ceil(8),
        }
    }

    /// NumPy's name of an element, and how many elements a row has.
    pub const fn numpy(self, dimensions: usize) -> (&'static str, usize) {
        match self {
            Self::F32 => ("<f4", dimensions),
            Self::F16 => ("<f2", dimensions),
            Self::I8 => ("|i1", dimensions),
            Self::B1 => ("|u1", dimensions.div_ceil(8)),
        }
    }

    /// The bytes of vectors of `dimensions` components, one after another. Single precision is not
    /// copied where numbers lie in this order anyway.
    pub fn bytes(self, vectors: &[f32], dimensions: usize) -> Cow<'_, [u8]> {
        if self == Self::F32 && cfg!(target_endian = "little") {
            return Cow::Borrowed(bytemuck::cast_slice(vectors));
        }
        let (components, width) = (dimensions.max(1), self.row_bytes(dimensions).max(1));
        let mut bytes = vec![0; vectors.len() / components * width];
        let rows = vectors.chunks_exact(components).zip(bytes.chunks_exact_mut(width));
        rows.for_each(|(vector, row)| self.write(vector, row));
        bytes.into()
    }

    /// Writes one vector to where it belongs, which is as long as [`row_bytes`](Self::row_bytes) says.
    fn write(self, vector: &[f32], row: &mut [u8]) {
        match self {
            Self::F32 => fill(row, vector.iter().map(|x| x.to_le_bytes())),
            Self::F16 => {
                let mut halves = [f16::ZERO; HALVES];
                for (some, row) in vector.chunks(HALVES).zip(row.chunks_mut(2 * HALVES)) {
                    let halves = &mut halves[..some.len()];
                    halves.convert_from_f32_slice(some);
                    for half in halves.iter_mut().filter(|half| half.is_infinite()) {
                        *half = f16::MAX.copysign(*half);
                    }
                    fill(row, halves.iter().map(|x| x.to_le_bytes()));
                }
            }
            Self::I8 => fill(row, scaled(vector).map(|byte| [byte])),
            Self::B1 => fill(row, signs(vector).map(|byte| [byte])),
        }
    }
}

/// Components that are made halves at once: what one conversion costs by itself does not show then.
const HALVES: usize = 64;

fn fill<const N: usize>(row: &mut [u8], elements: impl Iterator<Item = [u8; N]>) {
    for (place, element) in row.as_chunks_mut().0.iter_mut().zip(elements) {
        *place = element;
    }
}

fn scaled(row: &[f32]) -> impl Iterator<Item = u8> {
    let largest = row.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    // All zeros stay so.
    let scale = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    row.iter().map(move |x| ((x * scale).round_ties_even() as i8).cast_unsigned())
}

fn signs(row: &[f32]) -> impl Iterator<Item = u8> {
    row.chunks(8).map(|eight| {
        let bits = eight.iter().zip([128_u8, 64, 32, 16, 8, 4, 2, 1]);
        bits.filter(|(x, _)| **x > 0.0).map(|(_, bit)| bit).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [f32; 6] = [0.5, -1.0, 0.0, 1e-3, -2e-3, 3e-3];

    #[test]
    fn every_encoding_has_the_size_it_says() {
        let row: Vec<f32> = (0..37).map(|n| (n as f32).sin()).collect();
        for (name, encoding) in NAMES {
            assert_eq!(encoding.bytes(&row, 37).len(), encoding.row_bytes(37), "{name}");
            assert_eq!(encoding.bytes(&[], 37).len(), 0, "{name}");
        }
    }

    #[test]
    fn single_precision_is_handed_on_and_half_is_rounded() {
        let bytes = Encoding::F32.bytes(&ROWS, 3);
        assert_eq!(bytes[..4], 0.5_f32.to_le_bytes());
        assert_eq!(bytes.as_ptr(), ROWS.as_ptr().cast(), "not a copy");
        let halves = Encoding::F16.bytes(&ROWS, 3);
        assert_eq!(halves[..4], [0x00, 0x38, 0x00, 0xbc]);
        // 1e-3 has no half: 0x1419 is 0.00100040…, and its neighbours are further off.
        assert_eq!(halves[6..8], [0x19, 0x14]);
        let beyond = Encoding::F16.bytes(&[65_504.0, 3e6, -f32::MAX], 3);
        assert_eq!(*beyond, [0xff, 0x7b, 0xff, 0x7b, 0xff, 0xfb], "none is infinite");
    }

    #[test]
    fn bytes_use_their_whole_range_in_each_vector() {
        let bytes: Vec<i8> =
            Encoding::I8.bytes(&ROWS, 3).iter().map(|byte| byte.cast_signed()).collect();
        // 63.5 goes to the even neighbour.
        assert_eq!(bytes, [64, -127, 0, 42, -85, 127]);
        assert_eq!(*Encoding::I8.bytes(&[0.0, 0.0], 2), [0, 0]);
        assert_eq!(*Encoding::I8.bytes(&[f32::MIN_POSITIVE / 2.0; 2], 2), [127, 127]);
    }

    #[test]
    fn signs_are_bits_and_the_first_is_the_highest() {
        assert_eq!(*Encoding::B1.bytes(&ROWS, 3), [0b1000_0000, 0b1010_0000]);
        let nine = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0];
        assert_eq!(*Encoding::B1.bytes(&nine, 9), [0b1010_1010, 0b1000_0000]);
    }
}
