//! Left operands and packed weights, laid out as the kernels' own documentation says.

use crate::Subject;
use crate::data::{Guarded, Random};
use crate::isa::Isa;
use crate::kernels::product::{GROUP, Operand, Weights};
use crate::kernels::{Element, Layout};

/// Widest vector of any instruction set, in 32-bit floats; rows are padded to it.
pub const LANES_MAX: usize = 16;

/// The nearest bfloat16, ties to even, as a float.
pub fn to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF_0000)
}

/// Memory of a left operand.
pub struct Left {
    layout: Layout,
    /// How much less than 0 to 255 the integers in memory are.
    pub shift: f32,
    values: Guarded<u8>,
    scales: Guarded<f32>,
    pub rows: usize,
    pub stride: usize,
    pub blocks: usize,
}

impl Left {
    /// Zeros, for rows of `columns` inputs.
    pub fn new(subject: &Subject, rows: usize, columns: usize) -> Self {
        let layout = subject.kernels.layout;
        // A step of no instruction set takes more than 64 inputs; what lies behind `columns` is
        // multiplied by weights of zero.
        let stride = columns.next_multiple_of(64);
        let blocks = columns.div_ceil(GROUP);
        Self {
            layout,
            shift: if subject.isa == Isa::NeonDotprod { 128.0 } else { 0.0 },
            values: Guarded::new(rows * stride * layout.input_bytes),
            scales: Guarded::new(rows * blocks * 2),
            rows,
            stride,
            blocks,
        }
    }

    /// What the kernels are given.
    pub fn operand(&mut self) -> Operand {
        Operand {
            values: self.values.as_mut_ptr(),
            stride: self.stride,
            scales: self.scales.as_mut_ptr(),
            blocks: self.blocks,
        }
    }

    /// What a row holds: floats, or the integers before scale and least value are applied.
    pub fn stored(&self, row: usize, column: usize) -> f32 {
        let bytes = self.layout.input_bytes;
        let at = (row * self.stride + column) * bytes;
        let element = &self.values[at..at + bytes];
        match (self.layout.weight, element) {
            (Element::I8, &[byte]) if self.shift > 0.0 => f32::from(byte.cast_signed()),
            (Element::I8, &[byte]) => f32::from(byte),
            (Element::I8, &[low, high]) => f32::from(i16::from_le_bytes([low, high])),
            (Element::Bf16, &[low, high]) => f32::from_bits(u32::from_le_bytes([0, 0, low, high])),
            (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => panic!("inputs of {bytes} bytes are read nowhere in these tests"),
        }
    }

    /// Scale and least value of a block of a row.
    pub fn scale(&self, row: usize, block: usize) -> (f32, f32) {
        let at = 2 * (row * self.blocks + block);
        (self.scales[at], self.scales[at + 1])
    }

    /// The stored numbers of a row.
    fn row(&self, row: usize, columns: usize) -> Vec<f64> {
        (0..columns).map(|column| f64::from(self.stored(row, column))).collect()
    }

    /// The number that the stored one stands for.
    pub fn meant(&self, row: usize, column: usize) -> f64 {
        let stored = f64::from(self.stored(row, column));
        if self.layout.weight != Element::I8 {
            return stored;
        }
        let (scale, least) = self.scale(row, column / GROUP);
        f64::from(least) + f64::from(scale) * stored
    }
}

/// Weights of one layer: what they are, and what they are packed as.
pub struct Right {
    packed: Guarded<u8>,
    scales: Guarded<f32>,
    pub bias: Guarded<f32>,
    /// `[column][input]`: what the packed weights stand for.
    meant: Vec<f32>,
    inputs: usize,
    pub padded: usize,
    steps: usize,
}

impl Right {
    /// Random weights.
    pub fn new(subject: &Subject, inputs: usize, columns: usize, random: &mut Random) -> Self {
        let layout @ Layout { panel, step, .. } = subject.kernels.layout;
        let (padded, steps) = (columns.next_multiple_of(panel), inputs.div_ceil(step));
        let blocks = inputs.div_ceil(GROUP);
        let bytes = match layout.weight {
            Element::F32 => 4,
            Element::Bf16 => 2,
            Element::I8 => 1,
        };
        let scaled = if layout.weight == Element::I8 { padded * blocks * 2 } else { 0 };
        let mut right = Self {
            packed: Guarded::new(padded * steps * step * bytes),
            scales: Guarded::new(scaled),
            bias: Guarded::from_fn(padded, |c| if c < columns { random.value() } else { 0.0 }),
            meant: vec![0.0; columns * inputs],
            inputs,
            padded,
            steps,
        };
        for column in 0..columns {
            let values: Vec<f32> = (0..inputs).map(|_| random.value() * 0.2).collect();
            right.pack(layout, column, &values, random);
        }
        right
    }

    fn pack(&mut self, layout: Layout, column: usize, values: &[f32], random: &mut Random) {
        let Layout { panel, step, weight, .. } = layout;
        let first = column / panel * panel * self.steps * step + column % panel * step;
        let place = |input: usize| first + input / step * panel * step + input % step;
        let meant = &mut self.meant[column * self.inputs..][..self.inputs];
        if weight != Element::I8 {
            for (input, value) in values.iter().enumerate() {
                let at = place(input);
                if weight == Element::F32 {
                    self.packed[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
                    meant[input] = *value;
                } else {
                    let half = to_bf16(*value).to_le_bytes();
                    self.packed[at * 2..at * 2 + 2].copy_from_slice(&half[2..]);
                    meant[input] = to_bf16(*value);
                }
            }
            return;
        }
        let blocks = self.inputs.div_ceil(GROUP);
        for block in 0..blocks {
            // Any scale is as good as another for the kernel; the extremes must occur.
            let scale = 0.001 + 0.01 * random.value().abs();
            let mut sum = 0;
            for input in block * GROUP..self.inputs.min((block + 1) * GROUP) {
                let integer = (values[input] * 600.0).clamp(-127.0, 127.0) as i8;
                sum += i32::from(integer);
                self.packed[place(input)] = integer.cast_unsigned();
                meant[input] = f32::from(integer);
            }
            let at = 2 * panel * (column / panel * blocks + block) + column % panel;
            self.scales[at] = scale;
            self.scales[at + panel] = scale * sum as f32;
        }
    }

    /// What the kernels are given.
    pub fn weights(&self) -> Weights {
        Weights {
            panels: self.packed.as_ptr(),
            steps: self.steps,
            bias: self.bias.as_ptr(),
            scales: self.scales.as_ptr(),
        }
    }

    /// The sums that row `row` of `left` must give for some columns, bias included, each with the
    /// sum of the magnitudes of everything added up for it.
    pub fn sums<'a>(
        &'a self,
        left: &'a Left,
        row: usize,
        columns: impl Iterator<Item = usize> + 'a,
    ) -> impl Iterator<Item = (usize, f64, f64)> + 'a {
        let inputs = left.row(row, self.inputs);
        columns.map(move |column| {
            let bias = f64::from(self.bias[column]);
            let (mut sum, mut size) = (bias, bias.abs());
            let weights = &self.meant[column * self.inputs..][..self.inputs];
            let blocks = inputs.chunks(GROUP).zip(weights.chunks(GROUP));
            for (block, (inputs, weights)) in blocks.enumerate() {
                let (mut products, mut sizes, mut weight_sizes) = (0.0, 0.0, 0.0);
                for (input, weight) in inputs.iter().zip(weights) {
                    let product = input * f64::from(*weight);
                    products += product;
                    sizes += product.abs();
                    weight_sizes += f64::from(weight.abs());
                }
                if left.layout.weight == Element::I8 {
                    let (scale, least) = left.scale(row, block);
                    let (scale, least) = (f64::from(scale), f64::from(least));
                    let of_column = self.scale(left, column, block);
                    let all: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
                    products = of_column * (scale * products + least * all);
                    sizes = of_column * (scale * sizes + least.abs() * weight_sizes);
                }
                sum += products;
                size += sizes;
            }
            (column, sum, size)
        })
    }

    fn scale(&self, left: &Left, column: usize, block: usize) -> f64 {
        let panel = left.layout.panel;
        let at = 2 * panel * (column / panel * left.blocks + block) + column % panel;
        f64::from(self.scales[at])
    }
}
