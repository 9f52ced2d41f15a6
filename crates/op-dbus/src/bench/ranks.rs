//! How far two orders of the same things agree.

/// Rank correlation of two lists of equal length; values that are equal share their mean rank.
pub fn spearman(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (ranks(one), ranks(other));
    let mean = (one.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    product(&one, &other) / (product(&one, &one) * product(&other, &other)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for equal in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = start as f64 + (equal.len() as f64 - 1.0) / 2.0;
        equal.iter().for_each(|place| ranks[*place] = rank);
        start += equal.len();
    }
    ranks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alone_counts() {
        let scores = [1.0, 2.0, 3.0, 4.0];
        assert!((spearman(&[0.1, 0.5, 0.6, 9.0], &scores) - 1.0).abs() < 1e-12);
        assert!((spearman(&[4.0, 3.0, 2.0, 1.0], &scores) + 1.0).abs() < 1e-12);
        // Checked by hand: ranks 0.5, 0.5, 2, 3 against 0, 1, 2, 3.
        let tied = spearman(&[1.0, 1.0, 2.0, 3.0], &scores);
        assert!((tied - 0.948_683_298).abs() < 1e-9, "{tied}");
    }
}
