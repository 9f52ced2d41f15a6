//! From a model's weights to the form that the kernels read from front to back.

use std::ops::Range;

use op_dbus_graph::encoder::{Dense, Encoder, Linear, Norm, RelativeBias, Tensor};

use crate::kernels::portable::to_bf16;
use crate::kernels::product::GROUP;
use crate::kernels::{Element, Layout};
use crate::maxima::{Input, Maxima};
use crate::plan::{DensePlan, LinearPlan, NormPlan, Plan};

/// Largest magnitude of an 8-bit weight.
const I8_MAX: f32 = 127.0;

/// Writes `encoder` into `out`, which is zero and as long as `plan` says. `maxima` is wanted where
/// weights are integers.
pub(crate) fn pack(
    encoder: &Encoder<'_>,
    plan: &Plan,
    layout: Layout,
    maxima: Option<&Maxima>,
    out: &mut [u8],
) {
    let mut packer = Packer { layout, out };
    packer.words(&encoder.words, &plan.words);
    packer.positions(encoder, &plan.positions);
    packer.norm(&encoder.embedding_norm, &plan.embedding_norm);
    for (index, (layer, plan)) in encoder.layers.iter().zip(&plan.layers).enumerate() {
        let maxima = |product| maxima.map(|maxima| maxima.of(index, product));
        let attention = [&layer.query, &layer.key, &layer.value];
        packer.linear(&attention, &plan.attention, maxima(Input::Attention));
        packer.linear(&[&layer.output], &plan.output, maxima(Input::Output));
        packer.norm(&layer.attention_norm, &plan.attention_norm);
        packer.linear(&[&layer.up], &plan.up, maxima(Input::Up));
        packer.linear(&[&layer.down], &plan.down, maxima(Input::Down));
        packer.norm(&layer.output_norm, &plan.output_norm);
    }
    if let Some(bias) = &encoder.relative_bias {
        packer.relative(bias, &plan.bias);
    }
    for (dense, plan) in encoder.dense.iter().zip(&plan.dense) {
        packer.dense(dense, plan);
    }
}

/// The nearest bfloat16 that is finite, as the value is.
fn nearest_bf16(value: f32) -> u16 {
    /// The largest.
    const MOST: f32 = f32::from_bits(0x7F7F_0000);
    to_bf16(value.clamp(-MOST, MOST))
}

struct Packer<'a> {
    layout: Layout,
    out: &'a mut [u8],
}

impl Packer<'_> {
    fn floats(&mut self, range: &Range<usize>) -> &mut [f32] {
        bytemuck::cast_slice_mut(&mut self.out[range.clone()])
    }

    fn words(&mut self, table: &Tensor<'_>, range: &Range<usize>) {
        if self.layout.weight == Element::F32 {
            copy(table.values(), self.floats(range));
        } else {
            let to: &mut [u16] = bytemuck::cast_slice_mut(&mut self.out[range.clone()]);
            copy(table.values().map(nearest_bf16), to);
        }
    }

    /// Each token has a position and, where the family has types, the same type.
    fn positions(&mut self, encoder: &Encoder<'_>, range: &Range<usize>) {
        let kind: Vec<f32> = match &encoder.token_type {
            Some(types) => types.row(0).collect(),
            None => vec![0.0; encoder.hidden],
        };
        let to = self.floats(range);
        let of_padding = encoder.padding.iter().flat_map(|padding| padding.position.values());
        copy(encoder.positions.values().chain(of_padding), to);
        for row in to.chunks_exact_mut(encoder.hidden) {
            row.iter_mut().zip(&kind).for_each(|(value, kind)| *value += kind);
        }
    }

    fn norm(&mut self, norm: &Norm<'_>, plan: &NormPlan) {
        copy(norm.scale.values(), self.floats(&plan.scale));
        copy(norm.shift.values(), self.floats(&plan.shift));
    }

    /// Several layers with the same inputs, one after another as one.
    /// `maxima` says how large each input gets, where it matters.
    fn linear(&mut self, parts: &[&Linear<'_>], plan: &LinearPlan, maxima: Option<&[f32]>) {
        let factors = match maxima {
            Some(maxima) if !plan.smooth.is_empty() => smoothing(parts, maxima),
            _ => vec![1.0; plan.inputs],
        };
        copy(factors.iter().map(|factor| 1.0 / factor), self.floats(&plan.smooth));
        copy(parts.iter().flat_map(|part| part.bias.values()), self.floats(&plan.bias));
        let mut row = vec![0.0; plan.inputs];
        let mut column = 0;
        for part in parts {
            for output in 0..part.weight.rows() {
                copy(part.weight.row(output), &mut row);
                row.iter_mut().zip(&factors).for_each(|(weight, factor)| *weight *= factor);
                self.column(&row, column, plan);
                column += 1;
            }
        }
    }

    /// The weights of one column.
    fn column(&mut self, row: &[f32], column: usize, plan: &LinearPlan) {
        let Layout { weight, panel, step, .. } = self.layout;
        let first = column / panel * panel * plan.steps * step + column % panel * step;
        let index = |input: usize| first + input / step * panel * step + input % step;
        let panels = &mut self.out[plan.panels.clone()];
        match weight {
            Element::F32 => {
                let panels: &mut [f32] = bytemuck::cast_slice_mut(panels);
                row.iter().enumerate().for_each(|(input, value)| panels[index(input)] = *value);
            }
            Element::Bf16 => {
                let panels: &mut [u16] = bytemuck::cast_slice_mut(panels);
                let each = row.iter().enumerate();
                each.for_each(|(input, value)| panels[index(input)] = nearest_bf16(*value));
            }
            Element::I8 => {
                let panels: &mut [i8] = bytemuck::cast_slice_mut(panels);
                let mut found = Vec::with_capacity(plan.blocks);
                for (block, values) in row.chunks(GROUP).enumerate() {
                    let scale = scale(values);
                    let mut sum = 0;
                    for (offset, value) in values.iter().enumerate() {
                        let quantised = quantise(*value, scale);
                        sum += i32::from(quantised);
                        panels[index(block * GROUP + offset)] = quantised;
                    }
                    found.push([scale, scale * sum as f32]);
                }
                let scales = self.floats(&plan.scales);
                for (block, [scale, sum]) in found.into_iter().enumerate() {
                    let at = 2 * panel * (column / panel * plan.blocks + block) + column % panel;
                    scales[at] = scale;
                    scales[at + panel] = sum;
                }
            }
        }
    }

    fn relative(&mut self, bias: &RelativeBias, range: &Range<usize>) {
        copy(bias.values.iter().flatten().copied(), self.floats(range));
    }

    fn dense(&mut self, dense: &Dense<'_>, plan: &DensePlan) {
        let (outputs, weights) = (dense.linear.rows(), self.floats(&plan.weights));
        for output in 0..outputs {
            for (input, value) in dense.linear.row(output).enumerate() {
                weights[input * outputs + output] = value;
            }
        }
        if let Some(bias) = &dense.bias {
            copy(bias.values(), self.floats(&plan.bias));
        }
    }
}

fn copy<V>(from: impl Iterator<Item = V>, to: &mut [V]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = from);
}

/// Scale of a block of weights: of those that clip the largest a little, the one whose rounding
/// loses least.
fn scale(values: &[f32]) -> f32 {
    let most = values.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    if most < f32::MIN_POSITIVE * I8_MAX {
        return 0.0;
    }
    let loss = |scale: f32| {
        let apart = |value: &f32| value - f32::from(quantise(*value, scale)) * scale;
        values.iter().map(apart).map(|apart| apart * apart).sum::<f32>()
    };
    let candidates = (0..=8).map(|step| most / I8_MAX * (1.0 - 0.02 * step as f32));
    let best = candidates.map(|scale| (loss(scale), scale)).min_by(|a, b| a.0.total_cmp(&b.0));
    best.map_or(most / I8_MAX, |(_, scale)| scale)
}

fn quantise(value: f32, scale: f32) -> i8 {
    if scale == 0.0 {
        return 0;
    }
    (value / scale).round_ties_even().clamp(-I8_MAX, I8_MAX) as i8
}

/// How many times smaller than the average an input's maximum is that the calibration texts have hardly moved.
const HARDLY_MOVED: f32 = 64.0;

/// Factors of a product's inputs by which large inputs are made smaller and their weights larger,
/// so that both lose as little as possible when they are rounded (SmoothQuant, Xiao et al. 2022,
/// with alpha 0.5).
fn smoothing(parts: &[&Linear<'_>], maxima: &[f32]) -> Vec<f32> {
    let mut most = vec![0.0_f32; maxima.len()];
    for part in parts {
        for output in 0..part.weight.rows() {
            let row = part.weight.row(output);
            most.iter_mut().zip(row).for_each(|(most, weight)| *most = most.max(weight.abs()));
        }
    }
    // What the texts have hardly moved, as a neuron behind ReLU may be at 0 for all of them, is not small: it
    // is unknown. Made as much larger, it would leave nothing of its neighbours on the first text that moves it.
    let average = maxima.iter().sum::<f32>() / maxima.len().max(1) as f32;
    let known = |maximum: f32| if maximum < average / HARDLY_MOVED { average } else { maximum };
    let factor = |(maximum, most): (&f32, &f32)| known(*maximum) / most.max(1e-9);
    maxima.iter().zip(&most).map(|input| factor(input).sqrt().clamp(1e-3, 1e3)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::Packed;
    use crate::tests::made_up::{LONG, SIZES, Weights};

    /// Column and input of each packed weight, in the order in which they lie.
    fn places(plan: &LinearPlan, layout: Layout) -> impl Iterator<Item = (usize, usize)> {
        let Layout { panel, step, .. } = layout;
        (0..plan.columns / panel).flat_map(move |first| {
            (0..plan.steps).flat_map(move |before| {
                let place = move |at: usize| (first * panel + at / step, before * step + at % step);
                (0..panel * step).map(place)
            })
        })
    }

    /// Whether `packed` is what `weight` rounds to, in units of a scale where it has one.
    fn is_rounded(packed: f32, weight: f32, element: Element) -> bool {
        match element {
            Element::F32 => packed == weight,
            Element::Bf16 => (packed - weight).abs() <= weight.abs() / 256.0,
            // `scale` may clip the largest of a block by a sixth.
            Element::I8 if packed.abs() == I8_MAX => {
                packed * weight > 0.0 && (0.995..1.2).contains(&(weight / packed))
            }
            Element::I8 => (packed - weight).abs() <= 0.501,
        }
    }

    /// One layer of several parts, read in the order in which `LinearPlan` says that it lies.
    fn check(packed: &Packed, plan: &LinearPlan, parts: &[&Linear<'_>], layout: Layout) {
        let element = layout.weight;
        let rows = |part: &&Linear<'_>| -> Vec<Vec<f32>> {
            (0..part.weight.rows()).map(|row| part.weight.row(row).collect()).collect()
        };
        let weights: Vec<Vec<f32>> = parts.iter().flat_map(rows).collect();
        let bytes = packed.part(&plan.panels);
        let whole = |half: &u16| f32::from_bits(u32::from(*half) << 16);
        let found: Vec<f32> = match element {
            Element::F32 => packed.floats(&plan.panels).to_vec(),
            Element::Bf16 => bytemuck::cast_slice::<u8, u16>(bytes).iter().map(whole).collect(),
            Element::I8 => bytes.iter().map(|byte| f32::from(byte.cast_signed())).collect(),
        };
        assert_eq!(found.len(), plan.columns * plan.steps * layout.step);
        let scales = packed.floats(&plan.scales);
        let scale = |column: usize, block: usize, of: usize| {
            let panel = layout.panel;
            scales[((column / panel * plan.blocks + block) * 2 + of) * panel + column % panel]
        };
        let mut sums = vec![0.0; plan.columns * plan.blocks];
        for ((column, input), found) in places(plan, layout).zip(found) {
            let Some(weight) = weights.get(column).and_then(|row| row.get(input)) else {
                assert_eq!(found, 0.0, "{layout:?}: column {column}, input {input} is padding");
                continue;
            };
            let block = input / GROUP;
            sums[column * plan.blocks + block] += found;
            let scale = if element == Element::I8 { scale(column, block, 0) } else { 1.0 };
            let fits = is_rounded(found, weight / scale, element);
            assert!(
                fits,
                "{layout:?}: column {column}, input {input}: {found} · {scale}, {weight}"
            );
        }
        if element == Element::I8 {
            for (at, sum) in sums.into_iter().enumerate() {
                let (column, block) = (at / plan.blocks, at % plan.blocks);
                assert_eq!(scale(column, block, 1), scale(column, block, 0) * sum, "{layout:?}");
            }
        }
        let biases = parts.iter().flat_map(|part| part.bias.values());
        assert!(packed.floats(&plan.bias).iter().copied().zip(biases).all(|(a, b)| a == b));
    }

    /// Those of instruction sets as well that this CPU lacks.
    #[test]
    fn every_layout_can_be_read_back() {
        let weights = Weights::new(if cfg!(miri) { SIZES[0] } else { LONG }, 1);
        let encoder = weights.encoder();
        let layer = &encoder.layers[1];
        for (weight, input_bytes) in [(Element::F32, 4), (Element::Bf16, 2), (Element::I8, 1)] {
            let steps = |panel| [1, 2, 4, 8].map(|step| (panel, step));
            for (panel, step) in [8, 16, 32].into_iter().flat_map(steps) {
                let layout = Layout { weight, panel, step, input_bytes };
                let packed = Packed::build(&encoder, layout, None).unwrap();
                let plan = &packed.plan.layers[1];
                let attention = [&layer.query, &layer.key, &layer.value];
                check(&packed, &plan.attention, &attention, layout);
                check(&packed, &plan.output, &[&layer.output], layout);
                check(&packed, &plan.up, &[&layer.up], layout);
                check(&packed, &plan.down, &[&layer.down], layout);
            }
        }
    }

    #[test]
    fn an_input_that_was_never_seen_is_smoothed_as_the_others() {
        let weights = [0.5_f32; 8].map(f32::to_le_bytes).concat();
        let part = Linear { weight: Tensor::new(4, &weights), bias: Tensor::new(2, &weights[..8]) };
        let factors = smoothing(&[&part], &[2.0, 0.0, 1.0, 1e-6]);
        assert_eq!(factors[0], 2.0);
        assert!((factors[1] - 1.5_f32.sqrt()).abs() < 1e-6, "{factors:?}");
        assert_eq!((factors[2], factors[3]), (2.0_f32.sqrt(), factors[1]));
    }
}
