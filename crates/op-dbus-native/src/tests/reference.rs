//! The encoder as its papers have it, in 64-bit floats and without any cleverness.

use op_dbus_graph::encoder::{Activation, Encoder, Linear, Norm};

/// The mean-pooled vector of one text, of length one.
pub fn vector(encoder: &Encoder<'_>, ids: &[i32]) -> Vec<f64> {
    let row = |values: &mut dyn Iterator<Item = f32>| values.map(f64::from).collect::<Vec<f64>>();
    let mut x: Vec<Vec<f64>> = Vec::new();
    let mut places = 0..;
    for id in ids.iter().map(|id| usize::try_from(*id).unwrap()) {
        let mut token = row(&mut encoder.words.row(id));
        let position = match &encoder.padding {
            Some(padding) if padding.id == id => row(&mut padding.position.values()),
            _ => row(&mut encoder.positions.row(places.next().unwrap())),
        };
        add(&mut token, &position);
        if let Some(types) = &encoder.token_type {
            add(&mut token, &row(&mut types.row(0)));
        }
        x.push(norm(&encoder.embedding_norm, &token, encoder.epsilon));
    }
    for layer in &encoder.layers {
        let all = |linear: &Linear<'_>, x: &[Vec<f64>]| -> Vec<Vec<f64>> {
            x.iter().map(|token| linear_of(linear, token)).collect()
        };
        let (q, k, v) = (all(&layer.query, &x), all(&layer.key, &x), all(&layer.value, &x));
        for (i, token) in x.iter_mut().enumerate() {
            let context = attention(encoder, i, &q, &k, &v);
            add(token, &linear_of(&layer.output, &context));
            *token = norm(&layer.attention_norm, token, encoder.epsilon);
            let mut inner = linear_of(&layer.up, token);
            inner.iter_mut().for_each(|x| *x = activated(encoder.activation, *x));
            add(token, &linear_of(&layer.down, &inner));
            *token = norm(&layer.output_norm, token, encoder.epsilon);
        }
    }
    let mut vector = vec![0.0; encoder.hidden];
    x.iter().for_each(|token| add(&mut vector, token));
    vector.iter_mut().for_each(|value| *value /= ids.len() as f64);
    for dense in &encoder.dense {
        let bias = row(&mut dense.bias.as_ref().unwrap().values());
        let weights = (0..dense.linear.rows()).map(|output| row(&mut dense.linear.row(output)));
        let sums = weights.zip(bias).map(|(weights, bias)| dot(&weights, &vector) + bias);
        vector = sums.map(f64::tanh).collect();
    }
    let length = dot(&vector, &vector).sqrt();
    vector.iter().map(|value| value / length).collect()
}

fn attention(
    encoder: &Encoder<'_>,
    i: usize,
    q: &[Vec<f64>],
    k: &[Vec<f64>],
    v: &[Vec<f64>],
) -> Vec<f64> {
    let size = encoder.hidden / encoder.heads;
    let mut context = vec![0.0; encoder.hidden];
    for head in 0..encoder.heads {
        let part = head * size..(head + 1) * size;
        let score = |j: usize| {
            let product = dot(&q[i][part.clone()], &k[j][part.clone()]) / (size as f64).sqrt();
            let apart = j.cast_signed() - i.cast_signed();
            let bias = encoder.relative_bias.as_ref().map_or(0.0, |bias| bias.at(head, apart));
            (product + f64::from(bias)).exp()
        };
        let scores: Vec<f64> = (0..k.len()).map(score).collect();
        let sum: f64 = scores.iter().sum();
        for (score, v) in scores.iter().zip(v) {
            for column in part.clone() {
                context[column] += score / sum * v[column];
            }
        }
    }
    context
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2.0_f64.sqrt())),
        Activation::GeluTanh => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            0.5 * x * (1.0 + (root * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::Relu => x.max(0.0),
    }
}

fn linear_of(linear: &Linear<'_>, x: &[f64]) -> Vec<f64> {
    let bias = linear.bias.values();
    let row = |output: usize| linear.weight.row(output).map(f64::from).collect::<Vec<f64>>();
    bias.enumerate().map(|(output, bias)| dot(&row(output), x) + f64::from(bias)).collect()
}

fn norm(norm: &Norm<'_>, x: &[f64], epsilon: f32) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let of_column = norm.scale.values().zip(norm.shift.values());
    let column = |(x, (scale, shift)): (&f64, (f32, f32))| {
        (x - mean) * inverse * f64::from(scale) + f64::from(shift)
    };
    x.iter().zip(of_column).map(column).collect()
}

fn add(to: &mut [f64], from: &[f64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
