//! Medians with what lies around them, cosines and ranks.

// As the service tells it.
#[path = "../../../crates/op-dbus-api/src/cosine.rs"]
mod cosine;
// As `op-dbus bench` tells it.
#[path = "../../../crates/op-dbus/src/bench/ranks.rs"]
mod ranks;

pub use cosine::cosine;
pub use ranks::spearman;

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
    fn rows_are_compared_with_rows() {
        let rows = |values: [[f32; 2]; 2]| values.map(|row| row.to_vec()).to_vec();
        let (mean, min) = cosines(&rows([[1.0, 0.0], [0.0, 2.0]]), &rows([[3.0, 0.0], [1.0, 0.0]]));
        assert_eq!((mean, min), (0.5, 0.0));
    }
}
