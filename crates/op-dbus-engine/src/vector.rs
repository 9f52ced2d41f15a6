//! Arithmetic on finished vectors: normalisation, and the mean over the windows of a long text.

/// Scales `vector` to length one. A zero vector stays as it is.
pub(crate) fn normalise(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    if square > 0.0 {
        let scale = 1.0 / square.sqrt();
        for x in vector {
            *x = (f64::from(*x) * scale) as f32;
        }
    }
}

/// Mean of the rows of `vectors`, weighted; always summed in row order, so that it does not depend
/// on which window was computed first.
pub(crate) fn weighted_mean(vectors: &[f32], weights: &[u32], dimensions: usize) -> Vec<f32> {
    let mut sum = vec![0.0f64; dimensions];
    for (row, weight) in vectors.chunks_exact(dimensions.max(1)).zip(weights) {
        for (sum, x) in sum.iter_mut().zip(row) {
            *sum += f64::from(*x) * f64::from(*weight);
        }
    }
    let total = weights.iter().map(|w| f64::from(*w)).sum::<f64>().max(1.0);
    sum.into_iter().map(|x| (x / total) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_stays_zero_and_others_get_length_one() {
        let mut zero = [0.0; 4];
        normalise(&mut zero);
        assert_eq!(zero, [0.0; 4]);
        let mut vector = [3.0, 4.0];
        normalise(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
    }

    #[test]
    fn the_mean_counts_tokens() {
        assert_eq!(weighted_mean(&[1.0, 0.0, 0.0, 1.0], &[3, 1], 2), [0.75, 0.25]);
    }
}
