//! The functions of single numbers: activations by products that add nothing but a bias, the
//! exponential by the weights of an attention whose scores are nothing but a bias.

use crate::data::{Guarded, assert_near};
use crate::kernels::attention::{Attention, scratch_floats};
use crate::kernels::product::{Activation, Finish, Operand, Product, Weights};
use crate::operand::LANES_MAX;
use crate::precision::Precision;
use crate::product::activated;
use crate::{Subject, Test};

pub const TESTS: &[Test] = &[
    ("gelu_of_single_numbers", gelu),
    ("gelu_by_tanh_of_single_numbers", gelu_tanh),
    ("relu_of_single_numbers", relu),
    ("activations_of_no_number", no_number),
    ("exponential_of_single_numbers", exponential),
];

/// Numbers of all magnitudes, and closely those around 0; as many as fill whole panels.
fn numbers() -> Vec<f32> {
    let close = (-1_400..=1_400).map(|i| i as f32 * 0.005);
    let wide = (-40..=40).map(|i| i as f32 * 2.5);
    let tiny = (-38..4).flat_map(|i| [10.0_f32.powi(i), -(10.0_f32.powi(i))]);
    let extremes = [0.0, -0.0, 1e-40, -1e-40, 4.999_999, 5.000_001, -5.0, 3e18, -3e18, 1e6];
    let beyond = [1e30, -1e30, f32::MIN_POSITIVE, -f32::MIN_POSITIVE];
    let extremes = extremes.into_iter().chain(beyond);
    let mut all: Vec<f32> = close.chain(wide).chain(tiny).chain(extremes).collect();
    all.resize(all.len().next_multiple_of(256), 0.5);
    all
}

/// Activates each number: it is the bias of a column whose weights are zero.
fn activate(subject: &Subject, activation: Activation, numbers: &[f32]) -> Guarded<f32> {
    let layout = subject.kernels.layout;
    let columns = numbers.len();
    let mut inputs = Guarded::<u8>::new(LANES_MAX * layout.input_bytes);
    let weights = Guarded::<u8>::new(columns * layout.step * 4);
    let bias = Guarded::from_fn(columns, |column| numbers[column]);
    let mut found = Guarded::<f32>::new(columns);
    let operand = |values: *mut u8| Operand {
        values,
        stride: columns,
        scales: std::ptr::null_mut(),
        blocks: 1,
    };
    let job = Product {
        input: operand(inputs.as_mut_ptr()),
        rows: 1,
        weights: Weights {
            panels: weights.as_ptr(),
            steps: 1,
            bias: bias.as_ptr(),
            scales: std::ptr::null(),
        },
        first: 0,
        end: columns,
        finish: Finish::Activate {
            activation,
            to: operand(found.as_mut_ptr().cast()),
            smooth: std::ptr::null(),
        },
    };
    // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
    unsafe { (subject.kernels.multiply)(&job) };
    found
}

/// Of what is no number there is none: what a text came to that no vector is made of must be told.
fn no_number(subject: &Subject) {
    if subject.precision == Precision::Int8 {
        return;
    }
    let numbers = [f32::NAN; 256];
    for activation in [Activation::Gelu, Activation::GeluTanh, Activation::Relu] {
        let found = activate(subject, activation, &numbers);
        let halves = |value: &f32| [value.to_bits() << 16, value.to_bits() & 0xFFFF_0000];
        let is_none = match subject.kernels.layout.input_bytes {
            2 => found[..128].iter().flat_map(halves).all(|bits| f32::from_bits(bits).is_nan()),
            _ => found.iter().all(|value| value.is_nan()),
        };
        assert!(is_none, "{activation:?}");
    }
}

/// Compares an activation with the reference; `allowed` tells how far from `f(x)` it may be.
fn check(subject: &Subject, activation: Activation, allowed: impl Fn(f64, f64) -> f64) {
    // Integers would hide what is to be seen here, and share the function with bfloat16.
    if subject.precision == Precision::Int8 {
        return;
    }
    let numbers = numbers();
    let found = activate(subject, activation, &numbers);
    let bf16 = subject.precision == Precision::Bf16;
    for (index, &x) in numbers.iter().enumerate() {
        let found = match subject.kernels.layout.input_bytes {
            // The first of two lies in the lower half.
            2 => f32::from_bits(found[index / 2].to_bits() << (16 * (1 - index % 2)) & 0xFFFF_0000),
            _ => found[index],
        };
        let x = f64::from(x);
        let expected = activated(activation, x);
        // Denormal numbers may become 0.
        let rounding = if bf16 { expected.abs() / 256.0 + 1e-37 } else { 0.0 };
        let allowed = allowed(x, expected) + rounding;
        assert_near(found, expected, allowed, || format!("{activation:?} of {x:e}"));
    }
}

fn gelu(subject: &Subject) {
    let fit = if subject.precision == Precision::F32 { 2e-6 } else { 2e-4 };
    // Beyond ±5 the integral is taken for 0 or 1, which is off by up to 2.9e-7 there.
    check(subject, Activation::Gelu, |x, expected| fit + 3e-7 * expected.abs().max(x.abs()));
}

fn gelu_tanh(subject: &Subject) {
    check(subject, Activation::GeluTanh, |x, expected| {
        1e-6 * expected.abs() + 3e-7 * x.abs().min(10.0)
    });
}

fn relu(subject: &Subject) {
    check(subject, Activation::Relu, |_, _| 0.0);
}

/// Key 0 has a score of 0 and key `j` one of `-x[j]`; value `j` is 1 in column `j` alone. So column
/// `j` of the result is `e^(-x[j])` times column 0.
fn exponential(subject: &Subject) {
    const KEYS: usize = 64;
    // Weights and values are rounded to bfloat16 where those are multiplied, and the exponential is
    // coarser, by 8e-5, than which the half of a last place is much more.
    let is_rounded = subject.isa.has_bf16() && subject.precision != Precision::F32;
    let rounding = if is_rounded { 1.0 / 256.0 } else { 0.0 };
    for scale in [1e-5_f32, 0.003, 0.01, 0.1, 0.27, 1.0, 1.37] {
        let scores: Vec<f32> = (0..KEYS).map(|key| -(key as f32) * scale).collect();
        // The last query's bias begins with the first key's.
        let bias =
            Guarded::from_fn(2 * KEYS + LANES_MAX, |i| scores.get(i).copied().unwrap_or(0.0));
        // Queries, keys and values of one token after another; only the last query counts.
        let rows = Guarded::from_fn(KEYS * 3 * KEYS + LANES_MAX, |i| {
            let (token, column) = (i / (3 * KEYS), i % (3 * KEYS));
            if column >= 2 * KEYS && column - 2 * KEYS == token { 1.0 } else { 0.0 }
        });
        let mut found = Guarded::<f32>::new(KEYS * KEYS);
        let mut scratch = Guarded::<f32>::new(scratch_floats(KEYS, KEYS));
        let job = Attention {
            heads: 1,
            queries: rows.as_ptr(),
            keys: rows[KEYS..].as_ptr(),
            values: rows[2 * KEYS..].as_ptr(),
            stride: 3 * KEYS,
            length: KEYS,
            size: KEYS,
            scale: 1.0,
            bias: bias.as_ptr(),
            bias_stride: 0,
            to: found.as_mut_ptr(),
            to_stride: KEYS,
            scratch: scratch.as_mut_ptr(),
        };
        // SAFETY: the CPU has the instruction set; the sizes are those of the memory.
        unsafe { (subject.kernels.attend)(&job) };
        let last = &found[(KEYS - 1) * KEYS..];
        for (score, weight) in scores.iter().zip(last) {
            let expected = f64::from(*score).max(-87.0).exp();
            let ratio = (f64::from(*weight) / f64::from(last[0])) as f32;
            // 3e-7 of the finer polynomial, what two products with the sum's inverse are rounded by, and
            // the score's own last place, which is the larger the less it is.
            let relative = rounding + 5e-7 + f64::from(f32::EPSILON * score.abs());
            assert_near(ratio, expected, relative * expected + 1e-38, || format!("e^{score}"));
        }
    }
}
