//! Medians with what lies around them, cosines and ranks.

/// A figure over all rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// The spread of one figure per round; zeros for no rounds.
    pub fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else {
            return Self::default();
        };
        let middle = values.len() / 2;
        let median = match values.len().is_multiple_of(2) {
            true => f64::midpoint(values[middle - 1], values[middle]),
            false => values[middle],
        };
        Self { median, min: *min, max: *max }
    }

    /// `median (least–most)` with so many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
    }
}

/// Mean and least cosine of rows with rows.
pub fn cosines(one: &[Vec<f32>], other: &[Vec<f32>]) -> (f64, f64) {
    let all: Vec<f64> = one.iter().zip(other).map(|(a, b)| cosine(a, b)).collect();
    let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
    (mean, all.iter().copied().fold(f64::INFINITY, f64::min))
}

/// Cosine of two vectors.
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

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
    fn medians_lie_between_the_extremes() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert_eq!((spread.median, spread.min, spread.max), (2.0, 1.0, 3.0));
        assert_eq!(spread.show(1), "2.0 (1.0–3.0)");
        assert_eq!(Spread::of(vec![4.0, 1.0]).median, 2.5);
    }

    #[test]
    fn ranks_and_cosines() {
        let scores = [1.0, 2.0, 3.0, 4.0];
        assert!((spearman(&[0.1, 0.5, 0.6, 9.0], &scores) - 1.0).abs() < 1e-12);
        assert!((spearman(&[1.0, 1.0, 2.0, 3.0], &scores) - 0.948_683_298).abs() < 1e-9);
        let rows = |values: [[f32; 2]; 2]| values.map(|row| row.to_vec()).to_vec();
        let (mean, min) = cosines(&rows([[1.0, 0.0], [0.0, 2.0]]), &rows([[3.0, 0.0], [1.0, 0.0]]));
        assert_eq!((mean, min), (0.5, 0.0));
    }
}
