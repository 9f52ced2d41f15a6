//! From the vectors of a text's tokens to the text's vector: pooling, dense modules, length.
//!
//! Some thousand operations per text: plain Rust, which is the same on every instruction set.

use op_dbus_engine::foreign::larger;
use op_dbus_graph::Pooling;
use op_dbus_graph::encoder::DenseActivation;

use crate::encode::Model;
use crate::kernels::portable::from_bf16;
use crate::plan::Shape;

/// `to = word + position`.
pub(crate) fn add(word: &[f32], position: &[f32], to: &mut [f32]) {
    for ((to, word), position) in to.iter_mut().zip(word).zip(position) {
        *to = word + position;
    }
}

/// `to = word + position`, the word in bfloat16.
pub(crate) fn add_bf16(word: &[u16], position: &[f32], to: &mut [f32]) {
    for ((to, word), position) in to.iter_mut().zip(word).zip(position) {
        *to = from_bf16(*word) + position;
    }
}

/// Floats that [`finish`] needs to work in.
pub(crate) fn scratch(shape: &Shape) -> usize {
    let widest = shape.dense.iter().map(|dense| dense.outputs).fold(shape.hidden, usize::max);
    2 * widest
}

/// Computes a text's vector from those of its tokens, which lie `stride` apart.
pub(crate) fn finish(
    model: &Model,
    tokens: &[f32],
    stride: usize,
    scratch: &mut [f32],
    out: &mut [f32],
) {
    let (shape, plan) = (&model.packed.shape, &model.packed.plan);
    let (mut vector, mut next) = scratch.split_at_mut(scratch.len() / 2);
    pool(model.pooling, tokens, stride, &mut vector[..shape.hidden]);
    let mut length = shape.hidden;
    for (dense, plan) in shape.dense.iter().zip(&plan.dense) {
        let weights = model.packed.floats(&plan.weights);
        next[..dense.outputs].copy_from_slice(model.packed.floats(&plan.bias));
        for (value, weights) in vector[..length].iter().zip(weights.chunks_exact(dense.outputs)) {
            next.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += value * weight);
        }
        let activated = next[..dense.outputs].iter_mut();
        activated.for_each(|value| *value = activate(dense.activation, *value));
        (vector, next, length) = (next, vector, dense.outputs);
    }
    out.copy_from_slice(&vector[..length]);
    if model.normalize {
        let square: f64 = out.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
        // As torch has it: a vector of zeros stays one.
        let inverse = (1.0 / square.sqrt().max(1e-12)) as f32;
        out.iter_mut().for_each(|value| *value *= inverse);
    }
}

fn pool(pooling: Pooling, tokens: &[f32], stride: usize, to: &mut [f32]) {
    let hidden = to.len();
    to.copy_from_slice(&tokens[..hidden]);
    let rest = tokens.chunks(stride).skip(1);
    match pooling {
        Pooling::Cls => {}
        Pooling::Max => {
            for token in rest {
                to.iter_mut().zip(token).for_each(|(most, value)| larger(most, *value));
            }
        }
        Pooling::Mean => {
            for token in rest {
                to.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
            }
            let share = 1.0 / tokens.len().div_ceil(stride) as f32;
            to.iter_mut().for_each(|value| *value *= share);
        }
    }
}

fn activate(activation: DenseActivation, x: f32) -> f32 {
    match activation {
        DenseActivation::Identity => x,
        DenseActivation::Tanh => x.tanh(),
        DenseActivation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        DenseActivation::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        DenseActivation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        DenseActivation::Silu => x / (1.0 + (-x).exp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_stays_wherever_it_stands() {
        for tokens in [[f32::NAN, 1.0, 3.0], [1.0, f32::NAN, 3.0], [1.0, 3.0, f32::NAN]] {
            for pooling in [Pooling::Max, Pooling::Mean] {
                let mut to = [0.0];
                pool(pooling, &tokens, 1, &mut to);
                assert!(to[0].is_nan(), "{pooling:?} of {tokens:?}: {}", to[0]);
            }
        }
        let mut to = [0.0, 0.0];
        pool(Pooling::Max, &[1.0, -2.0, 9.0, -1.0, -3.0], 3, &mut to);
        assert_eq!(to, [1.0, -2.0]);
        assert!(activate(DenseActivation::Relu, f32::NAN).is_nan());
        assert_eq!([-1.0, 2.0].map(|x| activate(DenseActivation::Relu, x)), [0.0, 2.0]);
    }
}
