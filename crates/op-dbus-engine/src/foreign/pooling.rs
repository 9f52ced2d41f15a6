//! Pooling and normalisation outside the graph, for graphs that end in token vectors.

/// How the token vectors of a text become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// Mean over the text's own tokens.
    Mean,
    /// The first token's vector.
    Cls,
    /// Largest value of each dimension over the text's own tokens.
    Max,
}

/// A vector shorter than this has no direction that could be told.
const LENGTH_MIN: f32 = 1e-12;

/// Reduces `tokens` (`[rows, sequence length, dimensions]`), of which each row has `lengths` of its
/// own, into `out` (`[rows, dimensions]`).
pub fn pool(
    pooling: Pooling,
    (sequence_length, lengths): (usize, &[i32]),
    dimensions: usize,
    tokens: &[f32],
    out: &mut [f32],
) {
    let rows = tokens.chunks_exact(sequence_length * dimensions);
    let vectors = out.chunks_exact_mut(dimensions);
    for ((row, vector), &length) in rows.zip(vectors).zip(lengths) {
        let length = usize::try_from(length).unwrap_or(0);
        let own = row.chunks_exact(dimensions).take(length);
        match pooling {
            Pooling::Cls => vector.copy_from_slice(&row[..dimensions]),
            Pooling::Mean => {
                vector.fill(0.0);
                for token in own {
                    vector.iter_mut().zip(token).for_each(|(sum, value)| *sum += value);
                }
                vector.iter_mut().for_each(|sum| *sum /= length as f32);
            }
            Pooling::Max => {
                vector.copy_from_slice(&row[..dimensions]);
                for token in own.skip(1) {
                    vector.iter_mut().zip(token).for_each(|(most, value)| larger(most, *value));
                }
            }
        }
    }
}

/// `most`, or `value` if that is larger. What is not a number stays, as it does in sums: `f32::max` would hide it.
#[inline]
pub fn larger(most: &mut f32, value: f32) {
    if value > *most || value.is_nan() {
        *most = value;
    }
}

/// Refuses values that are no numbers, or past what 32 bits hold.
///
/// # Errors
/// A clause: there is such a value.
pub fn finite(out: &[f32]) -> Result<(), String> {
    match out.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(format!("it has the value {value} in a vector")),
        None => Ok(()),
    }
}

/// Divides every vector of `out` by its length.
///
/// # Errors
/// A clause: a vector has no length to be divided by.
pub fn normalize(dimensions: usize, out: &mut [f32]) -> Result<(), String> {
    for vector in out.chunks_exact_mut(dimensions) {
        let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
        if !(length.is_finite() && length >= LENGTH_MIN) {
            return Err(format!(
                "it has a vector of the length {length}, which can't be made one of length 1"
            ));
        }
        vector.iter_mut().for_each(|value| *value /= length);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_never_counts() {
        let tokens = [1.0, 8.0, 3.0, -2.0, 99.0, 99.0, 1.0, 1.0, 2.0, 2.0, 6.0, -6.0];
        let pooled = |pooling| {
            let mut out = [0.0; 4];
            pool(pooling, (3, &[2, 3]), 2, &tokens, &mut out);
            out
        };
        assert_eq!(pooled(Pooling::Mean), [2.0, 3.0, 3.0, -1.0]);
        assert_eq!(pooled(Pooling::Cls), [1.0, 8.0, 1.0, 1.0]);
        assert_eq!(pooled(Pooling::Max), [3.0, 8.0, 6.0, 2.0]);
    }

    #[test]
    fn what_is_not_a_number_stays_wherever_it_stands() {
        for (first, second, own) in [(f32::NAN, 1.0, 2), (1.0, f32::NAN, 2), (f32::NAN, 1.0, 1)] {
            let mut out = [0.0];
            pool(Pooling::Max, (3, &[own]), 1, &[first, second, 3.0], &mut out);
            assert!(out[0].is_nan(), "{first}, {second}: {}", out[0]);
        }
        assert!(finite(&[1.0, f32::MAX]).is_ok());
        assert!(finite(&[1.0, f32::NAN]).unwrap_err().contains("NaN"));
        assert!(finite(&[f32::NEG_INFINITY]).unwrap_err().contains("-inf"));
    }

    #[test]
    fn a_vector_without_a_length_is_an_error() {
        let mut out = [3.0, 4.0, 0.0, -2.0];
        assert_eq!(normalize(2, &mut out), Ok(()));
        assert_eq!(out, [0.6, 0.8, 0.0, -1.0]);
        for (wrong, length) in [(0.0, "0"), (1e-30, "0"), (1e30, "inf"), (f32::NAN, "NaN")] {
            let error = normalize(2, &mut [3.0, 4.0, wrong, wrong]).unwrap_err();
            assert!(error.contains(&format!("of the length {length},")), "{wrong}: {error}");
        }
    }
}
